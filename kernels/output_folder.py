"""A kernel's output while it is fetched: a hidden folder beside the place where it will appear."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.kaggle.errors import passing_fault
from common.network import PASSING_STATUS, retry_after_s
from common.retry import RetryableError, RetryPolicy, retry
from data.fetch.download import check_address
from kernels.kaggle_calls import OutputFile

NOTE = ".kernel-output.json"
_TIMEOUT_S = (15, 60)  # to connect; between two pieces of the answer
_CHUNK_BYTES = 1 << 16  # what a dropped connection may cost
_WRONG_SIZE = "does not match expected size"  # in the client's words
_LONGEST_NAME = 1000  # characters

Note = dict[str, Any]  # of which kernel and version the output is


class OutputFolder:
    """The files fetched so far of one version of a kernel; those of another one are dropped.

    Raises:
        PipelineError: the folder cannot be written.
    """

    def __init__(
        self, out: Path, note: Note, policy: RetryPolicy, say: Callable[[str], None]
    ) -> None:
        self._out, self._note, self._policy, self._say = out, note, policy, say
        self._root = out.absolute().parent / f".{out.name}.part"
        self._whole, self._begun = self._root / "whole", self._root / "begun"
        if _read_note(self._root) != note:
            shutil.rmtree(self._root, ignore_errors=True)
        write_text(self._root / NOTE, json.dumps(note))
        self._whole.mkdir(exist_ok=True)

    def fetch(self, api: Any, file: OutputFile) -> None:
        """Download one file, unless it is there; an interrupted download is gone on with.

        Raises:
            PipelineError: storage refuses it, the disk is full, or the tries are used up.
        """
        target = self._whole / file.name
        if target.is_file():
            return
        # The client keeps its notes beside the file, so each one begins in a folder of its own.
        begun = self._begun / hashlib.sha256(file.name.encode()).hexdigest()[:16] / "content"
        begun.parent.mkdir(parents=True, exist_ok=True)
        retry(
            lambda: _download(api, file, begun),
            what=f"download {file.name}",
            policy=self._policy,
            say=self._say,
            gained=lambda: begun.stat().st_size if begun.exists() else 0,
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        begun.replace(target)

    def add(self, name: str, text: str) -> None:
        """Add a text, unless the kernel wrote a file of that name itself."""
        if not (self._whole / name).exists():
            write_text(self._whole / name, text)

    def become_whole(self) -> None:
        """Put all that was fetched into its place."""
        write_text(self._whole / NOTE, json.dumps(self._note))
        if self._out.exists():
            self._out.rmdir()  # empty: looked at before
        self._whole.rename(self._out)
        shutil.rmtree(self._root)


def is_fetched(out: Path, note: Note) -> bool:
    """Tell whether `out` holds this very output already.

    Raises:
        UsageError: it holds something else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if out.is_dir() and _read_note(out) == note:
        return True
    raise UsageError(
        f"{out}: is in the way: not version {note['version']} of {note['kernel']}; choose another "
        "--out"
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse names of files that would not lie below one folder, each in its own place.

    Raises:
        PipelineError: names the first one.
    """
    files, folders = set(), set()
    for name in names:
        path = PurePosixPath(name)
        plain = name == path.as_posix() and name.isprintable() and "\\" not in name
        if not plain or path.is_absolute() or ".." in path.parts or name in ("", ".", NOTE):
            raise PipelineError(f"file {name!r}: expected a path within the output; nothing kept")
        if len(name) > _LONGEST_NAME or ":" in path.parts[0]:
            raise PipelineError(f"file {name[:80]!r}: no name for a file here; nothing kept")
        if name in files:
            raise PipelineError(f"file {name!r}: is listed twice; nothing kept")
        files.add(name)
        folders |= {parent.as_posix() for parent in path.parents}
    if files & folders:
        raise PipelineError(f"file {min(files & folders)!r}: is a folder, too; nothing kept")


def _download(api: Any, file: OutputFile, target: Path) -> None:
    """Make one attempt, by the client, which goes on where its notes say that it may."""
    import requests

    check_address(file.url.partition("?")[0])
    try:
        with requests.get(file.url, stream=True, timeout=_TIMEOUT_S) as response:
            _check_answer(response, file.name)
            options = {"quiet": True, "resume": True, "max_retries": 0, "timeout": _TIMEOUT_S}
            api.download_file(response, str(target), None, chunk_size=_CHUNK_BYTES, **options)
    except (RetryableError, PipelineError):
        raise
    except Exception as error:
        # Where a resumed download is refused, the client stores the refusal itself.
        if _WRONG_SIZE in str(error):
            shutil.rmtree(target.parent)
            target.parent.mkdir()
            raise RetryableError("what came is not the file that was announced") from None
        passing = passing_fault(error)
        if passing is None:
            raise
        raise RetryableError(passing[0], retry_after_s=retry_after_s(passing[1])) from None


def _check_answer(response: Any, name: str) -> None:
    """Let a file through; the client would store a refusal as if it were one.

    Raises:
        RetryableError: another try may bring it.
        PipelineError: none will.
    """
    status = response.status_code
    if status in PASSING_STATUS:
        asked_s = retry_after_s(response.headers.get("Retry-After", ""))
        raise RetryableError(f"HTTP {status}", retry_after_s=asked_s)
    if status != 200:
        raise PipelineError(
            f"download {name}: HTTP {status}: Kaggle's storage does not give it out; its address "
            "may have expired: run the command again, it goes on from here"
        )


def _read_note(folder: Path) -> Note | None:
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None
