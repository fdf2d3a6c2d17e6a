"""Data and code that may only be read: a run writes into its own folders, or says where not."""

from pathlib import Path

import pytest

from tests.drills.outcome import check_same
from tests.drills.processes import Scene, Watched, refused
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
