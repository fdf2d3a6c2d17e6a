"""A file is either whole or as it was before, and a folder has one process, whatever happens."""

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from common import files
from common.errors import PipelineError, UsageError
from common.files import LOCK, alone_in, atomic_path, locked, write_bytes, write_text
from common.progress import heard_by
from common.settings import ROOT


def test_text_is_written_as_utf_8_with_unix_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.txt"
    write_text(path, "größer\n1\n")
    assert path.read_bytes() == "größer\n1\n".encode()
    write_text(path, "half a pair: \ud83d")
    assert path.read_bytes() == rb"half a pair: \ud83d"
    write_bytes(path, b"other")
    assert path.read_bytes() == b"other"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["folder", "file/below", "x" * 300])
def test_place_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("in the way")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PipelineError) as caught:
        write_text(tmp_path / name, "text")
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / name}: cannot be written: ")
    assert len(line.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError(), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (FileNotFoundError(errno.ENOENT, "", "/nowhere/input.npz"), FileNotFoundError),
        (ConnectionResetError(errno.ECONNRESET, ""), ConnectionResetError),
        (OSError(errno.ENOSPC, ""), PipelineError),
    ],
    ids=str,
)
def test_error_leaves_the_old_file(
    tmp_path: Path, error: BaseException, raised: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(raised) as caught, atomic_path(path) as temporary:
        temporary.write_text("half")
        assert temporary.parent == path.parent
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    if raised is PipelineError:
        assert str(caught.value) == f"{path}: cannot be written: No space left on device"


def test_failed_flush_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some disks fail only when they are asked to keep what was written."""
    path = tmp_path / "file"
    path.write_text("old")

    def failing(number: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(PipelineError, match="file: cannot be written: Input/output error"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    write_text(tmp_path / "file", "")
    os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


# What file systems answer that have no flock(2): some FUSE, Lustre, NFS without its daemon, others.
NO_FLOCK = [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL]


def forbid_flock(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [None, *NO_FLOCK])
def test_folder_in_use_names_the_process_and_the_lock(
    number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(tmp_path / LOCK):
        pass  # with flock: the file stays
    if number is not None:
        forbid_flock(number, monkeypatch)
    owner = tmp_path / (LOCK if number is None else f"{LOCK}.owner")
    with alone_in(tmp_path), pytest.raises(UsageError) as error, alone_in(tmp_path):
        raise AssertionError("both are in the folder")
    told = f"{tmp_path}: another process works in it (process {os.getpid()} on "
    assert str(error.value).startswith(told)
    assert re.search(rf", lock {owner}, \d:\d\d:\d\d old\); wait for it to end", str(error.value))
    with alone_in(tmp_path):
        assert not list(tmp_path.glob("*.tmp"))


def test_lock_of_another_host_is_named_with_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_flock(errno.ENOSYS, monkeypatch)
    left = tmp_path / f"{LOCK}.owner"
    left.write_text("4242\nnode7?pidns-f0000001\n")
    before = time.time() - 26.5 * 3600
    os.utime(left, (before, before))
    with pytest.raises(UsageError) as error, alone_in(tmp_path):
        raise AssertionError("nobody knows whether that process is dead")
    told = f"process 4242 on node7, lock {left}, 1 day, 2:"
    assert told in str(error.value) and "remove the lock if that process is gone" in str(
        error.value
    )
    left.unlink()
    with alone_in(tmp_path):
        pass


@pytest.mark.parametrize("has_flock", [True, False])
def test_lock_of_a_dead_process_is_free(
    has_flock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "import fcntl, os, sys",
        "from pathlib import Path",
        "from common.files import alone_in",
        "def flock(*_): raise OSError(38, 'Function not implemented')",
        "fcntl.flock = fcntl.flock if sys.argv[2] == 'True' else flock",
        "with alone_in(Path(sys.argv[1])): os._exit(3)",
    )
    command = [sys.executable, "-c", "\n".join(lines), tmp_path, str(has_flock)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 3
    if not has_flock:
        forbid_flock(errno.ENOSYS, monkeypatch)
        assert (tmp_path / f"{LOCK}.owner").exists()
    with alone_in(tmp_path):
        pass


@pytest.mark.parametrize("number", [None, errno.ENOSYS])
def test_long_wait_for_a_lock_is_reported(
    number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number is not None:
        forbid_flock(number, monkeypatch)
    monkeypatch.setattr(files, "SILENT_S", 0.01)
    lines = list[str]()
    has_lock, is_told = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / LOCK):
            has_lock.set()
            is_told.wait(60)

    def hear(line: str) -> None:
        lines.append(line)
        is_told.set()

    holder = threading.Thread(target=hold)
    holder.start()
    has_lock.wait(60)
    with heard_by(hear), locked(tmp_path / LOCK):
        holder.join()
    [line] = lines
    assert line.startswith(f"note: {tmp_path}: another process works in it (process {os.getpid()}")
