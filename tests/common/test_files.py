"""A file is either whole or as it was before, and a folder has one process, whatever happens."""

import errno
import os
import subprocess
import sys
import zlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common import files
from common.errors import PipelineError, UsageError
from common.files import (
    LOCK,
    UNSEALED,
    alone_in,
    atomic_path,
    checksum_of,
    locked,
    missing_path,
    read_json,
    read_table,
    write_bytes,
    write_sealed,
    write_table,
    write_text,
)
from common.progress import log_lines_to
from common.settings import ROOT, FrozenConfig
from tests.data.npz.damaged_archives import flipped
from tests.support.failing_calls import failing, needs_compiler


def test_missing_path_names_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "sample" / "npz").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    absent = "no such file or folder; expected data"
    for name, line in {
        "data/smaple": f"data/smaple: {absent}; did you mean data/sample?",
        "dta/samle/nqz": f"dta/samle/nqz: {absent}; did you mean data/sample/npz?",
        f"{tmp_path}/dat": f"{tmp_path}/dat: {absent}; did you mean {tmp_path}/data?",
        "data/quite_other": f"data/quite_other: {absent}",
        "data/sample.csv": f"data/sample.csv: {absent}",
        "quite_other/sample": f"quite_other/sample: {absent}",
        "data": "data: is a folder; expected data",
        "x" * 300: f"{'x' * 300}: {absent}",
    }.items():
        assert str(missing_path(Path(name), "data")) == line


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


def test_folder_in_use_is_one_line_that_names_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path / LOCK):
        pass  # the file stays
    with alone_in(tmp_path), pytest.raises(UsageError) as error, alone_in(tmp_path):
        raise AssertionError("both are in the folder")
    told = f"{tmp_path}: another process works in it (lock {tmp_path / LOCK}); wait for it to end"
    assert str(error.value) == told
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="file: cannot be written"), alone_in(tmp_path / "file"):
        raise AssertionError("a file is no folder")


def test_long_wait_for_a_lock_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SILENT_S", 0.01)
    lines, first = list[str](), ExitStack()
    first.enter_context(locked(tmp_path / LOCK))

    def release(line: str) -> None:
        lines.append(line)
        first.close()

    with log_lines_to(release), locked(tmp_path / LOCK):
        pass
    [line] = lines
    assert line.startswith(f"note: {tmp_path}: another process works in it (lock ")


TEXT = f'{{"weights": [0.25, 0.75], "checksum": "{UNSEALED}", "more": true}}'.encode()
TABLE = pl.DataFrame({"graph": ["one", "two"] * 50, "score": np.linspace(0, 1, 100)})


def test_seal_is_the_crc_32_of_the_unsealed_file(tmp_path: Path) -> None:
    digits = f"{zlib.crc32(TEXT):08x}"
    write_sealed(tmp_path / "file", TEXT)
    assert (tmp_path / "file").read_bytes() == TEXT.replace(b"00000000", digits.encode())
    assert checksum_of(TEXT) == digits


def test_table_from_elsewhere_is_read_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    TABLE.write_parquet(path)
    assert read_table(path).equals(TABLE)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(PipelineError, match=r"table\.parquet: cannot be read: ") as error:
        read_table(path)
    assert "\n" not in str(error.value)
    write_table(path, TABLE)
    assert pl.read_parquet(path).equals(TABLE)  # any other reader reads it
    path.write_bytes(flipped(path.read_bytes(), 50, 1))
    with pytest.raises(PipelineError, match=r"table\.parquet: damaged: "):
        read_table(path)


class Content(FrozenConfig):
    name: str
    weights: dict[str, float] = {}  # noqa: RUF012 - pydantic copies defaults


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "a", "other": 1}', "key 'other': expected no such key"),
        ('{"name": "a", "weights": {"b": "c"}}', "key 'weights.b': expected a number"),
        ("[" * 100_000, "content: not JSON: rec"),
        (None, "No such file"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_another_content_is_one_line_that_names_the_key(
    text: str | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PipelineError) as caught:
        read_json(path, Content, expected="a name; remove the file")
    line = str(caught.value)
    assert line.startswith(f"{path}: cannot be read: {problem}") and "\n" not in line
    assert line.endswith("expected a name; remove the file") is (text is not None)


READ = "print(read_bytes(path).decode())"
WRITE = "write_text(path, 'new'); print(path.read_text())"
CREATE = "path.unlink(); create_text(path, 'new'); print(path.read_text())"
SWEEP = "sweep(path.parent, '*'); print('new')"
LOCKED = "with alone_in(path.parent): print('new')"
SEALED = (
    "write_sealed(path, path.read_bytes()); check_seal(path, '')\n"
    "path.write_bytes(path.read_bytes()[1:]); check_seal(path, 'remove it')"
)
ALWAYS = -1


@needs_compiler
@pytest.mark.parametrize(
    ("line", "call", "number", "nth", "output"),
    [
        # A passing error is tried again.
        (READ, "open", errno.EIO, 1, TEXT.decode()),
        (READ, "read", errno.ESTALE, 1, TEXT.decode()),
        (READ, "open", errno.EIO, ALWAYS, "{path}: cannot be read: Input/output error"),
        (READ, "read", errno.ESTALE, ALWAYS, "{path}: cannot be read: Stale file handle"),
        # A file system may lack an operation.
        (WRITE, "fsync", errno.EINVAL, ALWAYS, "new"),
        (WRITE, "fsync", errno.ENOTSUP, ALWAYS, "new"),
        (CREATE, "link", errno.EXDEV, ALWAYS, "new"),
        (CREATE, "link", errno.EPERM, ALWAYS, "new"),
        (SWEEP, "unlink", errno.EBUSY, ALWAYS, "new"),
        (SEALED, "mmap", errno.ENODEV, ALWAYS, "{path}: damaged: it is not as it was written; re"),
        (LOCKED, "flock", errno.ENOLCK, ALWAYS, "{folder}: cannot be written: No locks available"),
        (LOCKED, "flock", errno.EOPNOTSUPP, ALWAYS, "{folder}: cannot be written: Operation not"),
        # The second call releases the lock.
        (LOCKED, "flock", errno.EIO, 2, "{folder}/.lock: cannot be written: Input/output error"),
        (WRITE, "write", errno.ENOSPC, ALWAYS, "{path}: cannot be written: No space left on"),
        (WRITE, "fsync", errno.EIO, ALWAYS, "{path}: cannot be written: Input/output error"),
        (WRITE, "rename", errno.EDQUOT, ALWAYS, "{path}: cannot be written: Disk quota exceeded"),
        (WRITE, "open", errno.ENOSPC, ALWAYS, "{path}: cannot be written: No space left on"),
    ],
)
def test_failing_call_has_no_effect_or_is_one_line(
    *, line: str, call: str, number: int, nth: int, output: str, tmp_path: Path
) -> None:
    """`path` is a file with TEXT."""
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    names = "import sys; from pathlib import Path; from common.files import *"
    program = f"{names}; path = Path(sys.argv[1])\n{line}"
    failure = failing(call, number, tmp_path, nth=abs(nth), always=nth == ALWAYS)
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        cwd=ROOT,
        env={**os.environ, **failure},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = (done.stdout + done.stderr).strip().splitlines()[-1]
    expected = output.replace("{path}", str(path)).replace("{folder}", str(tmp_path))
    assert printed.partition("Error: ")[2].startswith(expected) or printed == expected
    assert ("with locks; put the folder on a local disk" in printed) == (
        call == "flock" and nth < 0
    )
    if "cannot be written" in printed:
        assert [path.name for path in tmp_path.iterdir()] in (["file"], ["file", LOCK])
        assert path.read_bytes() == TEXT
