"""Fetch what a finished kernel wrote: checked paths, whole or not at all, going on after a cut."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.kaggle.sender import ask
from common.kaggle.session import kaggle_session
from common.progress import progress
from common.retry import RetryPolicy
from data.fetch.download import download, http_session
from kernels.building.metadata import read_object
from kernels.push import KernelStatus, kernel_output, kernel_status, kernel_version

OUTPUT_POLICY = RetryPolicy()
NOTE = ".kernel-output.json"  # of which kernel and version the output is
_ENDED_BADLY = ("error", "cancel_acknowledged")


@dataclass(frozen=True)
class KernelOutput:
    """What was fetched of a kernel's version."""

    kernel_id: str
    version: int
    folder: Path
    files: int
    unfinished: bool  # it stopped itself before its end, and goes on with this output


def fetch_output(kernel_id: str, out: Path, *, policy: RetryPolicy = OUTPUT_POLICY) -> KernelOutput:
    """Download what the latest version of a kernel wrote, and its log, into `out`.

    `out` appears when all of it is there. Until then the files lie in a hidden folder beside it,
    and the same command goes on with them, unless the kernel has another version by then. Of a
    kernel that failed only the log is fetched, into a file beside `out`.

    Args:
        kernel_id: "owner/slug"; without an owner, one's own.

    Raises:
        UsageError: `out` is in the way.
        PipelineError: the kernel has not finished or has failed, a name that leaves `out`, missing
            or refused credentials, no space, or the network fails for good.
    """
    with kaggle_session(f"output of kernel {kernel_id}", policy) as session:
        full_id = session.own(kernel_id)
        status = ask(session, lambda: kernel_status(session, full_id))
        if status.state not in ("complete", *_ENDED_BADLY):
            raise PipelineError(
                f"kernel {full_id}: is {status.state}; its output can be had once it is complete"
            )
        files, log = ask(session, lambda: kernel_output(session, full_id))
        if status.state != "complete":
            _keep_log(status, log, out.with_name(f"{out.name}.log"))
        version = ask(session, lambda: kernel_version(session, full_id))
        note = {"kernel": full_id, "version": version}
        if not _is_fetched(out, note):
            _check_names([name for name, _ in files])
            whole = _fetch(dict(files), out, note, policy)
            log_file = whole / f"{full_id.partition('/')[2]}.log"
            if log and not log_file.exists():
                write_text(log_file, log)
            write_text(whole / NOTE, json.dumps(note))
            if out.exists():
                out.rmdir()  # empty: looked at before
            whole.rename(out)
            shutil.rmtree(whole.parent)
    n_files = sum(path.is_file() for path in out.rglob("*")) - 1  # without the note
    unfinished = _facts_in(out / "kernel.json").get("finished") is False
    return KernelOutput(full_id, version, out, n_files, unfinished)


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        path = PurePosixPath(name)
        is_plain = name == path.as_posix() and name.isprintable() and "\\" not in name
        is_below = name != "." and not path.is_absolute() and ".." not in path.parts
        if not (is_plain and is_below and name != NOTE):
            raise PipelineError(
                f"file {name[:80]!a}: expected a path within the output; nothing kept"
            )


def _fetch(addresses: dict[str, str], out: Path, note: dict[str, Any], policy: RetryPolicy) -> Path:
    root = out.absolute().with_name(f".{out.name}.part")
    if _facts_in(root / NOTE) != note:
        shutil.rmtree(root, ignore_errors=True)
    write_text(root / NOTE, json.dumps(note))
    whole = root / "whole"
    whole.mkdir(exist_ok=True)
    with http_session(policy) as session:
        for number, (name, address) in enumerate(addresses.items()):
            download(session, address, whole / name, policy=policy)
            progress("download", number + 1, len(addresses))
    return whole


def _is_fetched(out: Path, note: dict[str, Any]) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if _facts_in(out / NOTE) == note:
        return True
    wanted = f"version {note['version']} of {note['kernel']}"
    raise UsageError(f"{out}: is in the way: not {wanted}; choose another --out")


def _keep_log(failed: KernelStatus, log: str, log_file: Path) -> NoReturn:
    if log:
        write_text(log_file, log)
    said = f": {failed.failure_message}" if failed.failure_message else ""
    where = f"; its log is in {log_file}" if log else ""
    raise PipelineError(f"kernel {failed.kernel_id}: ended as {failed.state}{said}{where}")


def _facts_in(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except PipelineError:
        return {}
