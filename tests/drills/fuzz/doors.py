"""The doors: what reads a file that somebody else wrote, and files to begin from."""

import functools
import io
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from typer.testing import CliRunner

from common.errors import PipelineError
from common.files import checksum_of
from common.settings import CONFIGS, SAMPLE
from data.graph_store.stored_graph import read_graph
from data.hlo.programs import read_programs
from data.tree import GraphFile, collection_named
from models.config.recipe import load_recipe
from models.run_folder import DONE
from models.trees.boosting import read_booster
from pipeline.__main__ import app
from submissions.check import check_submission, read_submission
from tests.data.npz.damaged_archives import read_arrays, repacked
from tests.features.hlo_modules import layout_tuning, small_module, tile_tuning
from tests.support.boosters import NAMES, booster_text, rows
from tests.support.command_line import call

MAX_MESSAGE = 4_000  # characters
KEPT = ("config.toml", "report.json", "metrics.jsonl", DONE, ".safetensors", ".txt", ".parquet")
SMALL_RUN = (
    "tile.models=[late_fusion_sage,tile_boosting]",
    "late_fusion_sage.training.steps=2",
    "late_fusion_sage.hidden=8",
    "tile_boosting.num_boost_round=3",
)


class Door(NamedTuple):
    """One way into the program: `enter` reads a file, and raises nothing but PipelineError."""

    suffix: str  # of the files that come in here
    enter: Callable[[Path], object]
    seeds: Callable[[], Iterator[bytes]]  # contents to begin from
    max_bytes: int


def try_door(door: Door, content: bytes, path: Path) -> None:
    """Let some bytes in.

    Raises:
        Exception: whatever but a PipelineError leaves the door: a defect.
        AssertionError: the message is not one line of bearable length that names the file.
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


def _enter_booster(path: Path) -> None:
    read_booster(path, NAMES).predict(rows(), num_threads=1)


def _booster_seeds() -> Iterator[bytes]:
    for is_constant in (False, True):
        yield booster_text(is_constant=is_constant).encode()


def _enter_run(path: Path) -> None:
    """List, report and rank with a run folder, whose sender has counted its checksums anew."""
    folder = path.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
    except Exception:  # an archive that was changed itself is no folder
        return
    for mark in folder.rglob(DONE):
        lines = mark.read_bytes().split(b"\n")
        for number, line in enumerate(lines):
            file = mark.parent / line.partition(b" ")[2].decode(errors="replace").replace("\0", "")
            if number and file.is_file():
                lines[number] = f"{checksum_of(file.read_bytes())} {file.name}".encode()
        mark.write_bytes(b"\n".join(lines))
    graph = next((SAMPLE / "npz" / "tile" / "xla" / "valid").glob("*.npz"))
    ranked = [folder, *(config.parent for config in folder.glob("models/*/*/config.toml"))]
    calls = [("runs", folder), ("runs", folder, "--json"), ("report", "--run", folder)]
    for words in [*calls, *(("rank", "--run", run, graph) for run in ranked)]:
        result = CliRunner().invoke(app, [*map(str, words)])
        assert result.exit_code in (0, 1, 2) and "internal error" not in result.output, words
        assert max(map(len, result.stderr.splitlines()), default=0) <= MAX_MESSAGE


@functools.cache
def _run_seeds() -> tuple[bytes, ...]:
    """Return a small run, and one of its models, as archives."""
    packed = []
    with tempfile.TemporaryDirectory() as name:
        sets = [word for one in SMALL_RUN for word in ("--set", one)]
        words = ("--recipe", "smoke", "--collections", "tile", "--limit-graphs", "1")
        call("run", "--data", SAMPLE, *words, *sets, "--workers", "1", "--out", f"{name}/run")
        whole = Path(name, "run")
        for root in (whole, whole / "models" / "tile-xla" / "tile_boosting-seed0"):
            content = io.BytesIO()
            with zipfile.ZipFile(content, "w") as archive:
                for file in sorted(root.rglob("*")):
                    if file.name.endswith(KEPT) and "scores" not in file.parts:
                        archive.write(file, file.relative_to(root))
            packed.append(content.getvalue())
    return tuple(packed)


DOORS = {
    "npz": Door(".npz", _enter_npz, _npz_seeds, 1 << 20),
    "hlo": Door(".pb", read_programs, _hlo_seeds, 1 << 18),
    "submission": Door(".csv", _enter_submission, _submission_seeds, 1 << 18),
    "booster": Door(".txt", _enter_booster, _booster_seeds, 1 << 16),
    "run": Door(".zip", _enter_run, lambda: iter(_run_seeds()), 1 << 20),
    "recipe": Door(".toml", lambda path: load_recipe(str(path)), _recipe_seeds, 1 << 17),
}


def mutate_numbers(content: bytes, seed: int) -> bytes:
    """Put other integers in the place of some, as they are at the edges of ranges."""
    rng = np.random.default_rng(seed)
    for _ in range(rng.integers(1, 5)):
        found = list(re.finditer(rb"-?\d+", content))
        if not found:
            break
        place = found[int(rng.integers(len(found)))]
        edges = (0, 1, -1, 4, 5, -5, -6, 2**31, -(2**31), 2**63, 10**30, int(rng.integers(-9, 9)))
        number = str(edges[int(rng.integers(len(edges)))]).encode()
        content = content[: place.start()] + number + content[place.end() :]
    return content


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
