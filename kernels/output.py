"""Fetch what a finished kernel wrote: checked paths, whole or not at all, going on after a cut."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.atomic import write_text
from common.errors import PipelineError
from common.kaggle.sender import ask
from common.kaggle.session import kaggle_session
from common.retry import RetryPolicy
from kernels.build.metadata import check_kernel_id
from kernels.kaggle_calls import KernelStatus, kernel_output, kernel_status, kernel_version
from kernels.output_folder import NOTE, OutputFolder, check_names, is_fetched

OUTPUT_POLICY = RetryPolicy()
_ENDED_BADLY = ("error", "cancel_acknowledged")


@dataclass(frozen=True)
class KernelOutput:
    """What was fetched of a kernel's version."""

    kernel_id: str
    version: int
    folder: Path
    files: int
    unfinished: bool  # it stopped itself before its end, and goes on with this output


def fetch_output(
    kernel_id: str,
    out: Path,
    *,
    policy: RetryPolicy = OUTPUT_POLICY,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> KernelOutput:
    """Download what the latest version of a kernel wrote, and its log, into `out`.

    `out` appears when all of it is there. Until then the files lie in a hidden folder beside it,
    and the same command goes on with them, unless the kernel has another version by then. Of a
    kernel that failed only the log is fetched, into a file beside `out`.

    Args:
        kernel_id: "owner/slug"; without an owner, one's own.
        out: a new or empty folder, or one that holds this very output.
        policy: how often a request is tried again, and with which waits.
        say: told about each failure that is tried again.
        progress: told how many files are there.

    Raises:
        UsageError: `out` is in the way.
        PipelineError: the kernel has not finished or has failed, a name that leaves `out`, missing
            or refused credentials, no space, or the network fails for good.
    """
    check_kernel_id(kernel_id)
    action = f"output of kernel {kernel_id}"
    with kaggle_session(action, policy) as session:
        full_id = session.own(kernel_id)
        status = ask(session, lambda: kernel_status(session, full_id))
        _refuse_running(status)
        files, log = ask(session, lambda: kernel_output(session, full_id))
        _refuse_failed(status, log, out.with_name(f"{out.name}.log"))
        version = ask(session, lambda: kernel_version(session, full_id))
        note = {"kernel": full_id, "version": version}
        if not is_fetched(out, note):
            check_names([file.name for file in files])
            folder = OutputFolder(out, note, policy, say)
            for number, file in enumerate(files):
                folder.fetch(session.api, file)
                progress("download", number + 1, len(files))
            if log:
                folder.add(f"{full_id.partition('/')[2]}.log", log)
            folder.become_whole()
    fetched = [path for path in out.rglob("*") if path.is_file() and path.name != NOTE]
    return KernelOutput(full_id, version, out, len(fetched), _is_unfinished(out))


def _refuse_running(status: KernelStatus) -> None:
    if status.state not in ("complete", *_ENDED_BADLY):
        raise PipelineError(
            f"kernel {status.kernel_id}: is {status.state}; its output can be had once it is "
            "complete: ask `python -m pipeline kernel status`"
        )


def _refuse_failed(status: KernelStatus, log: str, log_file: Path) -> None:
    """Keep the log of a kernel that ended badly, which tells why, and refuse the rest."""
    if status.state == "complete":
        return
    if log:
        write_text(log_file, log)
    said = f": {status.failure_message}" if status.failure_message else ""
    where = f"; its log is in {log_file}" if log else ""
    raise PipelineError(f"kernel {status.kernel_id}: ended as {status.state}{said}{where}")


def _is_unfinished(out: Path) -> bool:
    """Tell whether a kernel says of its output that it is not finished."""
    try:
        facts = json.loads((out / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and facts.get("finished") is False
