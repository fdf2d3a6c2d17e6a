"""Jobs on a Ray cluster: equal results, lost workers and rejected addresses."""

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
from common.jobs.ray_cluster import UNSEEN, RayCluster, _do_on_machine
from common.jobs.run_jobs import Job, run_jobs
from common.progress import log, progress, reporter_name, watched_by
from common.settings import ROOT, how_to_install
from tests.common.jobs import work
from tests.support.command_line import call

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
TILES = ("--recipe", "smoke", "--set", "tile.models=[tile_linear,late_fusion_sage]")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restore the environment variables, because Ray reads them at its import and its start."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def train(source: Path, folder: Path) -> None:
    """Make a folder's files; get killed once in between."""
    progress(f"train into {folder}", 0, 1)
    log.info(f"reads {source}")
    (folder / "weights").write_text(2 * source.read_text())
    if not source.with_name("killed").exists():
        source.with_name("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def refuse(folder: Path) -> None:
    """Raise an error that names a file written by another job."""
    raise PipelineError(f"{folder / 'weights'}: {(folder / 'weights').read_text()}")


@needs_ray
def test_lost_worker_is_replaced_and_relative_paths_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # workers import this file
    source, folder = Path("source"), Path("run")
    source.write_text("text")
    folder.mkdir()
    jobs = [
        Job("train", train, (source, folder)),
        Job("bad", refuse, (folder,), after=frozenset({"train"})),
        Job("wide", work.talk, ("wide",), threads=64),  # more than there are
    ]
    told = Counter[tuple[str, str]]()
    watcher = watched_by(lambda what, *_: told.update([(reporter_name(what), what)]))
    with watcher, pytest.raises(PipelineError) as error:
        run_jobs(jobs, RayCluster("local", at_most=2, folder=folder))
    assert str(error.value) == "run/weights: texttext"
    assert [path.name for path in folder.iterdir()] == ["weights"]
    lost = "train: its worker was lost (WorkerCrashedError); it resumes in another worker"
    said = [lost, f"failed: bad: {error.value}", *["reads source"] * 2]
    assert Counter(caplog.messages) == Counter([*said, *(f"wide says {n}" for n in range(30))])
    assert told["train", "train into run"] == 2 and told["wide", "talk wide"]


def test_machine_that_does_not_see_the_folder_does_nothing(tmp_path: Path) -> None:
    machine = socket.gethostname()
    assert _do_on_machine(Job("a", print), None, tmp_path, tmp_path / "b") == (UNSEEN, machine)


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
    assert line == f"error: --ray: Ray is missing; {how_to_install('ray')}"
