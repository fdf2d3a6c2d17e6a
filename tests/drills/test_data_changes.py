"""Data that may only be read, and data that goes or changes while a run reads it.

A store that may not be written is in tests/data/graph_store/test_prepare_faults.py as well.
"""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from data.tree import collection_named, find_graphs
from tests.drills.outcome import check_same
from tests.drills.processes import POLL_S, Scene, Watched, refused
from tests.kernels.kaggle_machine import has_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Arguments: a folder that can be written, the command. All else can only be read.
READ_ONLY = """
set -e
free=$1; shift
mount --bind "$free" "$free"
grep -v " $free " /proc/self/mounts | cut -d" " -f2 | while read -r place; do
  case "$place" in /proc*|/sys*|/dev*) ;; *) mount -o remount,bind,ro "$place" || true ;; esac
done
exec "$@"
"""
needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="needs mounts: unshare -rm")


def begin_read_only(scene: Scene, words: list[str], free: Path) -> Watched:
    """Start a command that can write to one folder alone; torch wants a temporary one as well."""
    enter = ("unshare", "-rm", "sh", "-c", READ_ONLY, "enter", str(free))
    return Watched(scene, words, enter=enter, environment={"TMPDIR": str(free)})


@needs_namespaces
def test_a_run_needs_to_write_nowhere_but_into_its_folders(calm: Scene, tmp_path: Path) -> None:
    free = tmp_path / "free"
    scene = calm.elsewhere(free)
    watched = begin_read_only(scene, scene.run(), free)
    assert watched.end() == 0, watched.lines
    check_same(scene.out, calm.out)


@needs_namespaces
def test_a_store_or_a_run_folder_that_cannot_be_written_is_one_line(
    calm: Scene, tmp_path: Path
) -> None:
    free, closed = tmp_path / "free", tmp_path / "closed"
    closed.mkdir()
    scene = calm.elsewhere(free)
    for words, place in (
        (scene.run("--store", closed / "store"), closed / "store"),
        ([*scene.run("--out", closed / "run")], closed / "run"),
    ):
        line = refused(begin_read_only(scene, words, free))
        assert line.startswith(f"error: {place}"), line
        assert line.endswith("cannot be written: Read-only file system"), line


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def replace_by_another(path: Path) -> None:
    other = next(file for file in sorted(path.parent.iterdir()) if file != path)
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize("change", [remove, cut, replace_by_another])
@pytest.mark.parametrize("stage", ["pack", "audit", "train"])
def test_a_file_that_changes_meanwhile(
    change: Callable[[Path], None], stage: str, calm: Scene, tmp_path: Path
) -> None:
    """The run ends with the bytes of the data as they were packed, or names the file.

    Once the file is back, the run goes on, or it is one of the other data and says so.
    """
    tree = tmp_path / "tree"
    shutil.copytree(calm.data, tree)
    scene = Scene.at(tmp_path / "scene", tree)
    tiles = (collection_named("tile:xla"),)
    path = find_graphs(tree, collections=tiles, splits=("train",))[-1].path
    watched = Watched(scene, scene.run(), warm=True)
    while not watched.stage.startswith(stage):
        assert watched.process.poll() is None
        time.sleep(POLL_S)
        watched.look()
    watched.send(signal.SIGSTOP)
    whole = path.read_bytes()
    change(path)
    watched.send(signal.SIGCONT)
    if watched.end() != 0:
        assert str(path) in refused(watched)
    elif change is not replace_by_another:
        check_submissions(scene, calm)
    path.write_bytes(whole)
    again = Watched(scene, scene.run(), warm=True)
    if again.end() == 2:
        assert change is replace_by_another
        assert "was begun with data = " in refused(again, 2)
    else:
        assert again.end() == 0, again.lines
        check_submissions(scene, calm)


def check_submissions(scene: Scene, calm: Scene) -> None:
    """Demand that both submissions are those of the calm run."""
    for name in ("submission.csv", "submission-valid.csv"):
        assert (scene.out / name).read_bytes() == (calm.out / name).read_bytes()
