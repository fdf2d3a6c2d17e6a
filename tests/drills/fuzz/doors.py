"""The doors: functions that read files from others, each with valid files as seeds."""

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.errors import PipelineError
from common.settings import CONFIGS, SAMPLE
from data.graph_store.stored_graph import read_graph
from data.hlo.programs import read_programs
from data.tree import GraphFile, collection_named
from models.config.recipe import load_recipe
from submissions.check import check_submission, read_submission
from tests.data.npz.damaged_archives import read_arrays, repacked
from tests.features.hlo_modules import layout_tuning, small_module, tile_tuning

MAX_MESSAGE = 4_000  # characters


class Door(NamedTuple):
    """One function that reads a file, and may only raise PipelineError.

    Attributes:
        suffix: The suffix of the files.
        enter: Reads a file.
        seeds: Returns the contents of valid files, from which the fuzzer starts.
        max_bytes: The largest input that the fuzzer tries.
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


def _enter_npz(path: Path) -> None:
    faults = []
    for name in ("layout:xla:random", "tile:xla"):
        try:
            read_graph(GraphFile(collection_named(name), "valid", path.stem, path))
        except PipelineError as error:
            faults.append(error)
    raise faults[0]  # no file is both


def _npz_seeds() -> Iterator[bytes]:
    for kind in ("layout", "tile"):
        files = sorted((SAMPLE / "npz" / kind).rglob("*.npz"), key=lambda path: path.stat().st_size)
        for path in files[:2]:
            yield path.read_bytes()
    arrays = read_arrays(files[0].read_bytes())  # the same numbers in another form
    other = {key: np.asfortranarray(values.astype(">f8")) for key, values in arrays.items()}
    yield repacked(other)


def _hlo_seeds() -> Iterator[bytes]:
    yield b"/* a comment */ // and another\nHloModule text, is_scheduled=true"
    yield b"\x3c\x00\x00\x00 a flatbuffer that holds ML\xefR\x0dStableHLO_v1.15.0"
    for message in (layout_tuning(), tile_tuning(), small_module()):
        yield message.SerializeToString()


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
        chosen = sorted(members)[int(rng.integers(len(members)))]
    except Exception:  # an earlier change has broken the archive, or emptied it
        return mutate(content, max_size)
    members[chosen] = mutate(members[chosen], len(members[chosen]) + 64)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return packed.getvalue()
