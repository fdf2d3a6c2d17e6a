"""Files with programs: modules by name as FILE#NAME, the folders of XLA's dumps, and gzip."""

import gzip
import io
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from common.errors import PipelineError, UsageError
from common.files import missing_path

EXPECTED = (
    "tuning data, HLO (protobuf or text), StableHLO, a jax.export artifact, or a gzip file of one"
)
HOW_TO_DUMP = 'XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_proto" writes modules'
FIXED_SHAPES = (
    "export the program for fixed shapes, or give --batch N for one symbolic size of jax.export"
)
# A module of the dataset has at most 25 MB. The limit bounds the memory of bad files.
MAX_UNPACKED_BYTES = 1 << 30
# A module in a dump, at the steps of the compiler at which layouts are not fixed or all is done.
_DUMPED = re.compile(
    r"(module_\d+\..+?)\."
    r"(\d{4}\..+\.before_layout-assignment|before_optimizations?"
    r"|(?:sm_[\d.]+_gpu_|[^.]+_)?after_optimizations?)"
    r"\.(hlo\.pb|hlo|txt)(?:\.gz)?"
)


def split_choice(path: Path) -> tuple[Path, str | None]:
    """Split FILE#NAME into the file and the name. The name is None if FILE is the whole path."""
    folder, mark, name = path.name.rpartition("#")
    return (path.with_name(folder), name) if mark and folder and not path.exists() else (path, None)


def choose(path: Path, names: Sequence[tuple[str, ...]], choice: str | None) -> int:
    """Return the position of the module of a file that has a name.

    Args:
        names: All names of each module. The first is its unique name.

    Raises:
        UsageError: Not exactly one module has the name. The message lists all.
    """
    places = [place for place, of_module in enumerate(names) if choice in (None, *of_module)]
    if len(places) == 1:
        return places[0]
    fault = "and none chosen" if choice is None else f"called '{choice}'"
    titles = ", ".join(of_module[0] for of_module in names)
    raise UsageError(
        f"{path}: {len(places) or 'no'} modules {fault}; expected {path}#NAME with one of {titles}"
    )


def find_dumped(folder: Path, choice: str | None) -> Path:
    """Return a module's file of a dump: before layouts are chosen if it has one, else unoptimized.

    Args:
        choice: Name of the module, for example "jit_step", "module_0004" or "module_0004.jit_step".
    """
    modules: dict[str, list[tuple[int, bool, str]]] = {}
    for path in folder.iterdir():
        if match := _DUMPED.fullmatch(path.name):
            module, step, form = match.groups()
            order = ("after_opt" in step) - step[0].isdigit()
            modules.setdefault(module, []).append((order, form != "hlo.pb", path.name))
    if not modules:
        raise PipelineError(f"{folder}: a folder without modules; expected a file; {HOW_TO_DUMP}")
    names = sorted(modules)
    place = choose(folder, [(name, *name.split(".", 1)) for name in names], choice)
    return folder / min(modules[names[place]])[2]


def locate(
    path: Path, choice: str | None = None, expected: str = EXPECTED
) -> tuple[Path, str | None]:
    """Return the file that FILE, FILE#NAME or a dump names, and the name of a module in it.

    `choice` is the name of a module if the path has none.
    """
    path, name = split_choice(path)
    choice = name if choice is None else choice
    if path.is_dir():
        return find_dumped(path, choice), None
    if not path.exists():
        raise missing_path(path, expected)
    return path, choice


def unpack(path: Path, content: bytes) -> bytes:
    """Return the content of a file, unpacked if gzip compressed it."""
    if content.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(MAX_UNPACKED_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            fault = f"{path}: damaged gzip file: {error}"
            raise PipelineError(f"{fault}; expected {EXPECTED}") from error
        if len(content) > MAX_UNPACKED_BYTES:
            limit = f"{MAX_UNPACKED_BYTES >> 20} MiB"
            raise PipelineError(f"{path}: unpacks to over {limit}; expected {EXPECTED}")
    if not content:
        raise PipelineError(f"{path}: is empty; expected {EXPECTED}")
    return content
