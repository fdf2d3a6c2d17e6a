"""A file is either whole or as it was before, whatever happens on the way."""

import errno
import os
from pathlib import Path

import pytest

from common.atomic import atomic_path, write_bytes, write_text
from common.errors import PipelineError


def test_text_is_written_as_utf_8_with_unix_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.txt"
    write_text(path, "größer\n1\n")
    assert path.read_bytes() == "größer\n1\n".encode()
    write_bytes(path, b"other")
    assert path.read_bytes() == b"other"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["folder", "file/below", "x" * 300])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("in the way")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PipelineError) as caught:
        write_text(tmp_path / name, "text")
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / name}: cannot be written: ")
    assert len(line.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


FULL = "No space left on device (os error 28)"  # as libraries written in Rust have it


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError(), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (FileNotFoundError(errno.ENOENT, "", "/nowhere/input.npz"), FileNotFoundError),
        (ConnectionResetError(errno.ECONNRESET, ""), ConnectionResetError),
        (OSError(errno.ENOSPC, ""), PipelineError),
        (RuntimeError(FULL), PipelineError),
    ],
    ids=str,
)
def test_an_error_leaves_the_old_file_and_is_ours_if_it_is_of_writing(
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


def test_what_a_disk_does_not_take_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    write_text(tmp_path / "file", "")
    os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
