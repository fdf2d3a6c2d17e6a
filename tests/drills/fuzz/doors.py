"""The doors: functions that read files from others, each with valid files as seeds."""

import functools
import gzip
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf import text_format  # type: ignore[import-untyped]

from common.errors import PipelineError
from common.settings import CONFIGS, SAMPLE
from data.graph_store.stored_graph import read_graph
from data.hlo.files import unpack
from data.hlo.formats import split_modules
from data.hlo.programs import read_programs
from data.tree import GraphFile, collection_named
from ensembles.ranking.options import read_measured, read_menu
from ensembles.ranking.program import NamedGraph, load_graph
from ensembles.ranking.suggest import read_runtimes
from models.config.recipe import load_recipe
from submissions.check import check_submission, read_submission
from tests.data.npz.damaged_archives import read_arrays, repacked
from tests.features.hlo_modules import layout_tuning, small_module, tile_tuning

MAX_MESSAGE = 4_000  # characters
MENUS = (b"xla_a = [true, false]\nxla_b = [1, 0.5, 'x,y']\n", b"xla_a = ['x']\n")
SETTINGS = (b'xla_a,xla_b,runtime_ns\ntrue,"x,y",1e3\n,0.5,\n', b"runtime_ns,xla_b,xla_a\n7,,\n")


class Door(NamedTuple):
    """One function that reads a file, and may only raise PipelineError.

    Attributes:
        seeds: Returns the contents of valid files, from which the fuzzer starts.
    """

    suffix: str
    enter: Callable[[Path], object]
    seeds: Callable[[], Iterator[bytes]]
    max_bytes: int


def try_door(door: Door, content: bytes, path: Path) -> None:
    """Read some bytes with a door.

    Raises:
        Exception: The door raised an error that is no PipelineError: a defect.
        AssertionError: The message is too long, has several lines, or does not name the file.
    """
    path.write_bytes(content)
    try:
        door.enter(path)
    except PipelineError as error:
        message = str(error)
        assert message.splitlines() == [message], message
        assert len(message) <= MAX_MESSAGE, len(message)
        assert path.stem in message, message


def _enter_settings(path: Path) -> None:
    read_measured(path, {"xla_a": ("", "true", "false"), "xla_b": ("", "1", "0.5", "x,y")})


def _enter_npz(path: Path) -> None:
    faults = []
    for name in ("layout:xla:random", "tile:xla"):
        try:
            read_graph(GraphFile(collection_named(name), "valid", path.stem, path))
        except PipelineError as error:
            faults.append(error)
    raise faults[0]  # no file is both


def _small_npz(kind: str, **changed: np.ndarray) -> bytes:
    """Pack a graph of the sample with three configs and few nodes, so that inputs are read fast."""
    paths = (SAMPLE / "npz" / kind).rglob("*.npz")
    smallest = min(paths, key=lambda path: len(read_arrays(path.read_bytes())["node_opcode"]))
    arrays = read_arrays(smallest.read_bytes())
    per_config = [key for key in arrays if key.startswith("config_")]
    per_config += ["node_config_feat"] * (kind == "layout")
    few = {key: values[:3] if key in per_config else values for key, values in arrays.items()}
    return repacked(few | changed)


def _npz_seeds() -> Iterator[bytes]:
    for kind in ("layout", "tile"):
        yield _small_npz(kind)
    arrays = read_arrays(_small_npz("tile"))  # the same numbers in another form
    other = {key: np.asfortranarray(values.astype(">f8")) for key, values in arrays.items()}
    yield repacked(other)


def _hlo_seeds() -> Iterator[bytes]:
    yield b"/* a comment */ // and another\nHloModule text, is_scheduled=true"
    yield b"\x3c\x00\x00\x00 a flatbuffer that holds ML\xefR\x0dStableHLO_v1.15.0"
    for message in (layout_tuning(), tile_tuning(), small_module()):
        yield message.SerializeToString()
        yield b"# proto-file: a\n" + text_format.MessageToBytes(message)


def _enter_text(path: Path) -> None:
    for module in split_modules(path, unpack(path, path.read_bytes())):
        module.for_parser()


def _text_seeds() -> Iterator[bytes]:
    yield b"HloModule a\n\nENTRY %main (p: f32[2]) -> f32[2] {\n ROOT %p = f32[2] parameter(0)\n}"
    yield b"ENTRY a {\n ROOT p = f32[] parameter(0)\n}\n ENTRY  %b (q: f32[]) -> f32[] {\n}\nc {\n}"
    yield b"%add (x: f32[]) -> f32[] {\n ROOT %x = f32[] parameter(0)\n}\nHloModule b\nENTRY e {}"
    yield b"// -----\nmodule @m {\n func.func public @f() { return }\n}\n// -----\nmodule {}"
    yield b"#loc = loc(unknown)\nmodule @jit_f attributes {} {\n func.func @main() {}\n}"
    yield b"ML\xefR\x0dStableHLO_v1.15.0\x00" + bytes(range(64))
    yield b"\x3c\x00\x00\x00 a flatbuffer \x10\x00\x00\x00ML\xefR\x0dStableHLO_v1"
    yield gzip.compress(b"HloModule c\nENTRY e { ROOT p = f32[] parameter(0) }")


@functools.cache
def _graph() -> NamedGraph:
    return load_graph(min((SAMPLE / "npz/layout").rglob("*.npz"), key=lambda p: p.stat().st_size))


def _measured_seeds() -> Iterator[bytes]:
    yield b"config,config_hash,runtime_ns\n0,,1000\n1,,2000.5\n2,,\n3,,inf\n"
    yield b'\xef\xbb\xbfconfig,runtime_ns\r\n"0","7e3"\r\n'


def _enter_submission(path: Path) -> None:
    expected = {"tile:xla:" + "a" * 32: 7, "layout:xla:random:" + "b" * 32: 4}
    check_submission(path, expected)
    read_submission(path)


def _submission_seeds() -> Iterator[bytes]:
    rows = f"tile:xla:{'a' * 32},0;1;2;3;4\nlayout:xla:random:{'b' * 32},3;2;1;0\n"
    yield f"ID,TopConfigs\n{rows}".encode()
    yield f"ID,TopConfigs\r\n{rows}".encode()


def _recipe_seeds() -> Iterator[bytes]:
    for path in sorted(CONFIGS.glob("*.toml")):
        yield path.read_bytes()


DOORS = {
    "npz": Door(".npz", _enter_npz, _npz_seeds, 1 << 20),
    "measured": Door(".csv", lambda p: read_runtimes(p, _graph()), _measured_seeds, 1 << 12),
    "menu": Door(".toml", lambda p: read_menu(str(p)), lambda: iter(MENUS), 1 << 12),
    "settings": Door(".csv", _enter_settings, lambda: iter(SETTINGS), 1 << 12),
    "text": Door(".mlir", _enter_text, _text_seeds, 1 << 16),
    "hlo": Door(".pb", read_programs, _hlo_seeds, 1 << 18),
    "submission": Door(".csv", _enter_submission, _submission_seeds, 1 << 18),
    "recipe": Door(".toml", lambda path: load_recipe(str(path)), _recipe_seeds, 1 << 17),
}


def mutate_npz(
    content: bytes, max_size: int, seed: int, mutate: Callable[[bytes, int], bytes]
) -> bytes:
    """Change one member of an archive and pack it again, so that its checksums are right.

    Now and then the archive itself is changed instead.
    """
    rng = np.random.default_rng(seed)
    if rng.random() < 0.2:
        return mutate(content, max_size)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {
                info.filename: archive.read(info)
                for info in archive.infolist()
                if info.file_size < 1 << 20
            }
        changed = sorted(members)[int(rng.integers(len(members)))]
    except Exception:  # an earlier change has broken the archive, or emptied it
        return mutate(content, max_size)
    members[changed] = mutate(members[changed], len(members[changed]) + 64)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return packed.getvalue()
