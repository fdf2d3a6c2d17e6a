"""Jobs on a Ray cluster: the same results, files that travel, and what is refused."""

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from errno import ECONNREFUSED
from importlib.util import find_spec
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.progress import log, progress, teller_or, watched_by
from pipeline.jobs.ray_cluster import FOLDER, PROBE, RayCluster
from pipeline.jobs.run_jobs import Job, run_jobs
from tests.pipeline.jobs import work
from tests.support.command_line import call

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
TILES = ("--recipe", "smoke", "--set", "tile.models=[tile_linear,late_fusion_sage]")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Take back what is set for Ray, which reads it when it is imported and when it is begun."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def train(source: Path, folder: Path) -> None:
    """Make a folder's files; get killed once in between, with a file left that is of no use."""
    progress(f"train into {folder}", 0, 1)
    log.info(f"reads {source}")
    assert not (folder / "half").exists()
    (folder / "old").unlink()
    (folder / "DONE").write_text("done")
    (folder / "weights").write_text(2 * source.read_text())
    if not source.with_name("killed").exists():
        source.with_name("killed").touch()
        (folder / "half").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def refuse(folder: Path) -> None:
    """Fail as readers do, in the name of what has come from another job."""
    raise PipelineError(f"{folder / 'weights'}: {(folder / 'weights').read_text()}")


@needs_ray
def test_files_travel_and_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To a machine with a folder of its own, where a worker is killed, and others go on."""
    caplog.set_level("INFO")
    source, folder, there = (tmp_path / name for name in ("source", "run", "there"))
    source.write_text("text")
    folder.mkdir()
    (folder / "old").touch()
    jobs = [
        Job("train", train, (source, folder), reads=(source,), makes=(folder,)),
        Job("bad", refuse, (folder,), after=frozenset({"train"}), reads=(folder,)),
        Job("wide", work.talk, ("wide",), threads=64),  # more than there are
    ]
    told = Counter[tuple[str, str]]()
    watcher = watched_by(lambda what, *_: told.update([(teller_or(what), what)]))
    os.environ[FOLDER] = str(there)
    with watcher, pytest.raises(PipelineError) as error:
        run_jobs(jobs, RayCluster("local", at_most=2))
    assert str(error.value) == f"{folder}/weights: texttext"
    files = {path.name: path.stat().st_mtime_ns for path in sorted(folder.iterdir())}
    assert list(files) == ["DONE", "weights"]
    for path in (source, *folder.iterdir()):
        copy = there / path.relative_to("/")
        assert copy.read_bytes() == path.read_bytes()
        assert copy.stat().st_mtime_ns == path.stat().st_mtime_ns
    lost = "train: its worker was lost (WorkerCrashedError); it goes on elsewhere"
    said = [lost, f"failed: bad: {error.value}", *[f"reads {source}"] * 2]
    assert Counter(caplog.messages) == Counter([*said, *(f"wide says {n}" for n in range(30))])
    assert told["train", f"train into {folder}"] == 2 and told["wide", "talk wide"]


@needs_ray
@pytest.mark.slow
def test_a_run_on_a_local_cluster_ends_with_the_same_bytes(tiny_tree: Path, tmp_path: Path) -> None:
    place = ("--data", tiny_tree, "--collections", "tile:xla")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)  # nobody imports it unasked
        call("run", *place, *TILES, "--workers", 1, "--out", tmp_path / "one")
    call("run", *place, *TILES, "--workers", 2, "--ray", "local", "--out", tmp_path / "ray")
    for path in (tmp_path / "one").rglob("*.*"):
        own = tmp_path / "ray" / path.relative_to(tmp_path / "one")
        assert "report" in path.name or path.read_bytes() == own.read_bytes()
    assert not list(tmp_path.rglob(PROBE))


@needs_ray
def test_a_cluster_that_does_not_answer_is_one_line(tiny_tree: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    words = ("run", "--data", tiny_tree, *TILES, "--out", tmp_path / "run", "--ray", address)
    *_, line = call(*words, expect=2).splitlines()
    assert line.startswith(
        f"error: --ray {address}: no cluster to work with: [Errno {ECONNREFUSED}]"
    )
    assert not (tmp_path / "run").exists()


def test_without_ray_it_is_named(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ("run", "--data", tiny_tree, *TILES, "--out", tmp_path / "run", "--ray", "local")
    *_, line = call(*words, expect=2).splitlines()
    assert line == "error: --ray: Ray is missing; pip install -r requirements-ray.txt"
