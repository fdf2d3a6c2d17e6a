"""Install attached wheels in a kernel, and check the packages of the image before hours of work.

A kernel runs `python -m kernels.packages SITE FOLDER...` first. Only the standard library is
imported here, because any other package may be missing.
"""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINS_FILE = "requirements.txt"
# No kernel imports these pinned packages, or works without them.
_NOT_IN_KERNELS = frozenset({"kaggle", "optuna", "plotly", "six", "sqlalchemy", "zlib-ng"})
_MODULES = {"protobuf": "google", "scikit-learn": "sklearn"}
# The packages of the project that are in a kernel.
PACKAGES = (
    *("common", "data", "features", "models", "ensembles"),
    *("submissions", "kernels", "pipeline", "configs"),
)


def main(site: str = "", *folders: str) -> None:
    """Install newer wheels, print a line for each older package, and fail if a name is missing."""
    install([wheel for folder in folders for wheel in sorted(Path(folder).glob("*.whl"))], site)
    for package, pin in pinned_versions(ROOT).items():
        if is_older(package, pin):
            say(f"{package} {version(package)} is older than {pin}, which is tested")
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
    """Return the imports of the code that fail and their files, by pinned package."""
    modules = {_MODULES.get(name, name.replace("-", "_")): name for name in pinned_versions(root)}
    files = dict.fromkeys(((module, "__name__") for module in modules), root / PINS_FILE)
    # Custom models are in folders of their own.
    for path in sorted({*root.glob("*.py"), *root.glob("[!.]*/**/*.py")}):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                files |= dict.fromkeys(((node.module, alias.name) for alias in node.names), path)
            elif isinstance(node, ast.Import):
                files |= dict.fromkeys(((alias.name, "__name__") for alias in node.names), path)
    faults: dict[str, list[str]] = {}
    for (module, name), path in files.items():
        package = modules.get(module.partition(".")[0])
        if package and (fault := _import_fault(module, name)):
            faults.setdefault(package, []).append(f"{fault} ({path.relative_to(root)})")
    return faults


def _import_fault(module: str, name: str) -> str:
    """Describe why a name of a module cannot be imported; "" if it can."""
    top = module.partition(".")[0]
    try:
        place = __import__(module, fromlist=[name])
    # A module can fail in any way, for example if it was compiled for another numpy.
    except Exception as error:
        foreign = isinstance(error, ModuleNotFoundError) and f"{error.name}.".partition(".")[0]
        # A submodule may need a package that only some options use, for example tensorboard.
        return (
            ""
            if module != top and foreign not in (False, top)
            else f"{module}: {error}".splitlines()[0]
        )
    return "" if hasattr(place, name) else f"{module}.{name}"


if __name__ == "__main__":
    main(*sys.argv[1:])
