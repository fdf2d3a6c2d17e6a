"""Install attached wheels in a kernel, and check the packages of the image before hours of work.

A kernel runs `python -m kernels.packages SITE FOLDER...` first. Only the standard library is
imported here, because any other package may be missing.
"""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PINS_FILE = "requirements.txt"
# No kernel imports these pinned packages, or works without them.
_NOT_IN_KERNELS = frozenset({"kaggle", "optuna", "plotly", "six", "sqlalchemy", "zlib-ng"})
_MODULES = {"protobuf": "google", "scikit-learn": "sklearn"}
_OPTIONAL = re.compile("TYPE_CHECKING|ImportError|ModuleNotFoundError")


def main(site: str = "", *folders: str) -> None:
    """Install newer wheels, print a line for each older package, and fail if a name is missing."""
    install([wheel for folder in folders for wheel in sorted(Path(folder).glob("*.whl"))], site)
    for package, tested in pinned_versions(ROOT).items():
        if is_older(package, tested):
            say(f"{package} {version(package)} is older than {tested}, which is tested")
    missing = missing_names(ROOT)
    for package, names in missing.items():
        say(f"the image lacks {package}: {', '.join(names)}")
    if missing:
        options = " ".join(f"--newer {package}" for package in missing)
        sys.exit(
            f"kernel: the image lacks {', '.join(missing)}; attach a dataset named …-wheels that "
            f"has newer ones: `fast-or-slow kernel wheels {options} --out FOLDER` writes it"
        )


def say(line: str) -> None:
    sys.stdout.write(f"kernel: {line}\n")
    sys.stdout.flush()


def install(wheels: Iterable[Path], site: str) -> None:
    """Install the wheels of packages that are missing, or older than the wheel."""
    newest: dict[str, tuple[list[int], Path]] = {}
    for wheel in wheels:
        name, number = wheel.name.split("-")[:2]
        if is_older(name, number, if_missing=True):
            newest[name] = max(newest.get(name, ([], wheel)), (_numbers(number), wheel))
    paths = [str(path) for _, path in newest.values()]
    if not paths:
        return
    say(f"installing {', '.join(paths)}")
    # With dependencies, pip would install a second torch.
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", site, *paths]
    if subprocess.run(command, check=False).returncode:  # noqa: S603
        sys.exit(f"kernel: {', '.join(newest)}: not installed; expected wheels for this Python")
    importlib.invalidate_caches()


def pinned_versions(root: Path) -> dict[str, str]:
    """Return the pinned version of each package that kernels import."""
    path = root / PINS_FILE
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    pins = (line.partition(" ")[0].replace("_", "-").partition("==") for line in lines)
    return {name: pin for name, _, pin in pins if pin and name not in _NOT_IN_KERNELS}


def is_older(package: str, number: str, *, if_missing: bool = False) -> bool:
    """Return whether the installed version of a package is older than a version."""
    try:
        return _numbers(version(package)) < _numbers(number)
    except PackageNotFoundError:
        return if_missing


def _numbers(number: str) -> list[int]:
    # "2.10.0+cu128" is as new as "2.10".
    numbers = [int(digits) for digits in re.findall(r"\d+", number.partition("+")[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def missing_names(root: Path) -> dict[str, list[str]]:
    """Return the names that the code imports and the installed packages lack, by package.

    Each name has the file that needs it. A missing module has its name.
    """
    modules = {_MODULES.get(name, name.replace("-", "_")): name for name in pinned_versions(root)}
    needed: dict[tuple[str, str], Path] = {}
    for path in sorted({*root.glob("*.py"), *root.glob("[!.]*/**/*.py")}):
        needed |= dict.fromkeys(imported_names(ast.parse(path.read_bytes())), path)
    missing: dict[str, list[str]] = {}
    for (module, name), path in sorted(needed.items()):
        package = modules.get(module.partition(".")[0])
        if package and (problem := _problem(module, name)):
            missing.setdefault(package, []).append(f"{problem} ({path.relative_to(root)})")
    return missing


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the imports of a file and the attributes of imported modules: module and dotted name.

    The name is "" for the module itself. Imports for type checkers, and those whose failure is
    handled, are left out.
    """
    places: dict[str, tuple[str, str]] = {}
    nodes = _needed_nodes(tree)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.module, alias.name
                places[alias.asname or alias.name] = node.module, f"{alias.name}."
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
                top = alias.name.partition(".")[0]
                places[alias.asname or top] = (alias.name if alias.asname else top), ""
    for node in nodes:
        place: ast.AST = node
        parts: list[str] = []
        while isinstance(place, ast.Attribute):
            parts.insert(0, place.attr)
            place = place.value
        if parts and isinstance(place, ast.Name) and place.id in places:
            module, above = places[place.id]
            yield module, above + ".".join(parts)


def _needed_nodes(tree: ast.AST) -> list[ast.AST]:
    nodes, waiting = list[ast.AST](), [tree]
    while waiting:
        node = waiting.pop()
        heads: list[ast.AST | None] = [node.test] if isinstance(node, ast.If) else []
        heads += [handler.type for handler in node.handlers] if isinstance(node, ast.Try) else []
        if not any(_OPTIONAL.search(ast.unparse(head)) for head in heads if head):
            nodes.append(node)
            waiting += ast.iter_child_nodes(node)
    return nodes


def _problem(module: str, name: str) -> str:
    """Describe what is missing; "" if a module loads and has a dotted name.

    Only the names of modules are checked, and not those of classes.
    """
    top = module.partition(".")[0]
    place: object = None
    for path in (top, module):
        try:
            place = importlib.import_module(path)
        # A module can fail in any way, for example if it was compiled for another numpy.
        except Exception as error:
            foreign = isinstance(error, ModuleNotFoundError) and f"{error.name}.".partition(".")[0]
            # A submodule may need a package that only some options use, for example tensorboard.
            is_optional = path != top and foreign not in (False, top)
            return "" if is_optional else f"{path}: {error}".splitlines()[0]
    for part in name.split(".") if name else []:
        if not isinstance(place, ModuleType):
            return ""
        is_package = hasattr(place, "__path__")
        if not (hasattr(place, part) or (is_package and find_spec(f"{place.__name__}.{part}"))):
            return f"{place.__name__}.{part}"
        place = getattr(place, part, None)
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
