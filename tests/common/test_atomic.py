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


def test_the_file_appears_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
        assert temporary.name.startswith(".")
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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


def test_a_read_only_folder_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(65_534)  # root may write everywhere; nobody may not
        with pytest.raises(PipelineError) as caught:
            write_text(tmp_path / "file", "text")
    finally:
        if is_root:
            os.seteuid(0)
    assert str(caught.value) == f"{tmp_path / 'file'}: cannot be written: Permission denied"


def test_nobodys_mask_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that makes a file meanwhile would get it with the wrong permissions."""
    before = os.umask(0o027)
    set_mask = os.umask

    def touched(mask: int) -> int:
        raise AssertionError(mask)

    monkeypatch.setattr(os, "umask", touched)
    try:
        write_text(tmp_path / "file", "")
    finally:
        set_mask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640  # as of any new file


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


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/nowhere/input.npz"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_something_else_in_the_block_is_its_own(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(type(error)), atomic_path(tmp_path / "file"):
        raise error
    assert list(tmp_path.iterdir()) == []
