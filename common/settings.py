"""Paths and configuration: default folders, and typed recipes in TOML.

A recipe is one TOML file, checked against a frozen model of its keys. An unknown key, a wrong type
or a value out of range is refused with the key's dotted name. `--set a.b=value` overrides a key
before the check.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import PipelineError, UsageError, did_you_mean, one_of, plain_fault
from common.files import missing_path, open_regular
from common.progress import log

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
# Only a wheel makes one package of the folder that has all packages.
IS_INSTALLED = (ROOT / "__init__.py").is_file()
USER_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fast-or-slow"
RAW_DATA = ROOT / "data" / "raw"
SAMPLE = ROOT / "data" / "sample"
RUN_CONFIG = "config.toml"

# Folders of the competition's files on Kaggle: the present one, then that of older images.
KAGGLE_MOUNTS = (
    Path("/kaggle/input/competitions/predict-ai-model-runtime"),
    Path("/kaggle/input/predict-ai-model-runtime"),
)

# A bare word in a list. TOML itself reads true, false and numbers.
UNQUOTED = re.compile(r"(?<=[\[, ])(?!(?:true|false)\b)([a-zA-Z_][\w.:+-]*)(?=[\], ])")
UNQUOTED_DOT = re.compile(r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)')
# The whole configuration of a run has a fiftieth of this size.
MAX_TOML_BYTES = 1 << 18
# tomllib takes minutes for a line with a key of thousands of parts, or fails.
MAX_DOTS = 100
# Last parts of the place of a fault if its value can have several types.
UNION_TYPES = frozenset({"bool", "int", "float", "str"})


class FrozenConfig(BaseModel):
    """Base of every configuration. It is frozen and typed, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @classmethod
    def from_table(cls, table: dict[str, Any], *, source: str, above: str = "") -> Self:
        """Check a table of settings. An error names the dotted key, with `above` in front."""
        try:
            # As JSON, because strict Python would also refuse a list where a tuple is typed.
            strict = cls.model_config.get("strict", True)
            return cls.model_validate_json(json.dumps(table, default=str), strict=strict)
        except ValidationError as error:
            first, *others = error.errors()
            key = _dotted(first)
            if first["type"] == "extra_forbidden":
                fault = f"unknown key '{above}{key}'; {cls._expected_keys(key)}"
                raise UsageError(f"{source}: {fault}") from None
            # A value of several types has a fault for each type.
            problems = [plain_fault(fault) for fault in (first, *others) if _dotted(fault) == key]
            problem = " or ".join(dict.fromkeys(problems)).replace(" or expected ", " or ")
            state = "missing" if first["type"] == "missing" else repr(first["input"])
            where = f"key '{above}{key}' is {state}: " if key else ""
            raise UsageError(f"{source}: {where}{problem}") from None

    @classmethod
    def _expected_keys(cls, key: str) -> str:
        *parents, name = key.split(".")
        model: Any = cls
        for parent in parents:
            field = getattr(model, "model_fields", {}).get(parent)
            model = field.annotation if field else model
        names = sorted(getattr(model, "model_fields", {}))
        return f"expected one of: {one_of(name, names)}" if names else "no such key exists"


def _dotted(fault: Mapping[str, Any]) -> str:
    """Return the key of an entry of pydantic's `errors()`, without the types of a union."""
    place = [part for part in fault["loc"] if part not in UNION_TYPES]
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")


def how_to_install(name: str) -> str:
    """Return the command that installs requirements-NAME.txt, which a wheel has too."""
    pinned = f"-r {ROOT / f'requirements-{name}.txt'} -c {ROOT / 'constraints.txt'}"
    return f"{sys.executable} -m pip install {pinned}"


def cache_dir() -> Path:
    """Return the folder of stores and downloads: data/ in a checkout, else one of the user."""
    try:
        is_in_checkout = not IS_INSTALLED and Path.cwd().is_relative_to(ROOT)
    except FileNotFoundError:  # the working folder was deleted
        is_in_checkout = False
    return ROOT / "data" if is_in_checkout else USER_CACHE


def download_dir() -> Path:
    """Return the folder of `fetch`, in which `default_data_dir` finds the dataset."""
    return Path(os.environ.get("PIPELINE_DATA") or cache_dir() / "raw" / "tpugraphs")


def default_data_dir() -> Path:
    """Return the data folder: PIPELINE_DATA, else Kaggle's mount, a download, or the sample."""
    variable = os.environ.get("PIPELINE_DATA")
    if variable:
        if not Path(variable).is_dir():
            fault = missing_path(Path(variable), "a folder that contains npz/")
            raise PipelineError(f"PIPELINE_DATA={fault}")
        return Path(variable)
    raw = (RAW_DATA, USER_CACHE / "raw")
    for folder in (*KAGGLE_MOUNTS, *raw, *(folder / "tpugraphs" for folder in raw)):
        if any((folder / tree).is_dir() for tree in ("npz", "npz_all/npz")):
            return folder
    if SAMPLE.is_dir():
        return SAMPLE
    raise PipelineError(
        "no data: pass --data DIR (a folder that contains npz/), or set PIPELINE_DATA; "
        "`fast-or-slow fetch` downloads the dataset"
    )


def default_store_dir(data_dir: Path) -> Path:
    """Return the folder of a data folder's packed graphs: below PIPELINE_STORE, or a cache.

    On Kaggle, whose working folder is small, it is below the system's temporary folder. A new store
    outside of a checkout is named in a note.
    """
    place = data_dir.resolve()
    digest = hashlib.blake2b(str(place).encode(), digest_size=4).hexdigest()
    root = cache_dir() / "store"
    if any(mount.is_dir() for mount in KAGGLE_MOUNTS):
        root = Path(tempfile.gettempdir()) / "pipeline-store"
    name = f"{place.name or 'root'}-{digest}"
    if variable := os.environ.get("PIPELINE_STORE"):
        return Path(variable) / name
    if root.is_relative_to(USER_CACHE) and not (root / name).exists():
        log.info(f"store: {root / name}; PIPELINE_STORE or --store name another folder")
    return root / name


def read_toml(path: Path, fault: type[PipelineError] = PipelineError) -> dict[str, Any]:
    """Read a TOML file of settings."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_TOML_BYTES + 1)
        if len(content) > MAX_TOML_BYTES:
            raise PipelineError(f"{path}: expected settings, at most {MAX_TOML_BYTES} bytes")
        text = content.decode("utf-8-sig")
        for number, line in enumerate(text.splitlines(), start=1):
            if line.count(".") > MAX_DOTS:
                raise PipelineError(f"{path}: line {number}: expected fewer than {MAX_DOTS} dots")
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path}: cannot be read: not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise fault(f"{path}: not a TOML file: {error}") from error


def recipe_path(name_or_file: str, *, folder: Path = CONFIGS, what: str = "recipe") -> Path:
    """Find a recipe by its name in `folder`, or by the path of a .toml file."""
    is_file = name_or_file.endswith(".toml")
    path = Path(name_or_file) if is_file else folder / f"{name_or_file}.toml"
    if os.path.isfile(path):  # noqa: PTH113 — False for a name that no file can have
        return path
    if os.path.exists(name_or_file) or is_file:  # noqa: PTH110
        place = Path(name_or_file)
        inside = f"; did you mean {place / RUN_CONFIG}?" * (place / RUN_CONFIG).is_file()
        raise UsageError(f"{what} {missing_path(place, f'a .toml file with a {what}')}{inside}")
    names = sorted(path.stem for path in folder.glob("*.toml"))
    raise UsageError(
        f"{what} '{name_or_file}': no such {what}; known: {', '.join(names)}; or give a .toml file"
        f"{did_you_mean(name_or_file, names)}"
    )


def apply_overrides(table: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Set values of a recipe.

    A value that is not TOML (a bare word) is a string, also inside a list. So `--set
    features.prune=config` and `--set layout.models=[layout_linear]` need no quotes.
    """
    result = deepcopy(table)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip() or override.count(".") > MAX_DOTS:
            raise UsageError(f"--set {override!r}: expected key=value")
        set_value(result, key.strip(), _parse_value(text.strip()), source=f"--set {override!r}")
    return result


def set_value(table: dict[str, Any], key: str, value: Any, *, source: str) -> None:
    """Set the value of a dotted key in place. A part in double quotes may contain dots."""
    *parents, last = (part.strip('"') for part in UNQUOTED_DOT.split(key))
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise UsageError(f"{source}: '{parent}' is not a table of the recipe")
    table[last] = value


def _parse_value(text: str) -> Any:
    has_quotes = "'" in text or '"' in text
    for toml in (text, text if has_quotes else UNQUOTED.sub(r'"\1"', text)):
        try:
            table = tomllib.loads(f"value = {toml}")
        except (ValueError, RecursionError):
            continue
        # Further lines of the text must not be lost.
        if len(table) == 1:
            return table["value"]
    return text
