"""Send a built kernel to Kaggle, where it starts to run, and ask how it fares."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.kaggle.errors import acted, one_line
from common.kaggle.scratch import scratch_folder
from common.kaggle.send_once import PUSH_POLICY, send_once
from common.kaggle.session import KaggleSession, kaggle_session
from common.retry import RetryPolicy
from kernels.build.metadata import METADATA_FILE, check_kernel_id, read_metadata
from kernels.kaggle_calls import ask, kernel_version, save_kernel

_STARTS = "SaveKernel"  # Kaggle's method
_IN_DOUBT = (
    "the kernel may have started: look at `python -m pipeline kernel status` before pushing it "
    "again"
)


@dataclass(frozen=True)
class KernelVersion:
    """A version of a kernel that Kaggle has accepted and runs."""

    kernel_id: str  # "owner/slug"
    version: int
    url: str


@dataclass(frozen=True)
class KernelStatus:
    """How the latest run of a kernel fares."""

    kernel_id: str
    state: str  # "queued", "running", "complete", "error", "cancel_requested", …
    failure_message: str


def push(
    folder: Path,
    *,
    policy: RetryPolicy = PUSH_POLICY,
    say: Callable[[str], None] = lambda line: None,
) -> KernelVersion:
    """Send the kernel in `folder`, which `kernels.build.build` wrote, as a new version; it starts
    to run.

    It is never sent twice: where the answer is lost, Kaggle is asked for the kernel's version.

    Args:
        folder: holds the script and its metadata.
        policy: how often it is tried again where that does no harm, and with which waits.
        say: told about each failure that is tried again.

    Raises:
        PipelineError: an incomplete folder, missing or refused credentials, a kernel that Kaggle
            refuses, or one whose attached sources it does not know.
    """
    metadata = read_metadata(folder)
    action = f"push kernel {folder}"
    begun: list[str] = []  # requests that start a kernel
    acts = acted((_STARTS,), begun)
    with kaggle_session(action, in_doubt=_IN_DOUBT, acts=acts) as session:
        kernel_id = str(metadata["id"])
        if "/" not in kernel_id:
            kernel_id = f"{session.username}/{kernel_id}"
        with scratch_folder("kernel-push") as copy:
            _copy_with_owner(folder, metadata, kernel_id, copy)
            last = ask(
                lambda: kernel_version(session, kernel_id),
                what=f"{action}: ask for its latest version",
                policy=policy,
                say=say,
            )

            def arrived() -> KernelVersion | None:
                version = kernel_version(session, kernel_id)
                url = f"https://www.kaggle.com/code/{kernel_id}"
                return KernelVersion(kernel_id, version, url) if version > last else None

            answer = send_once(
                lambda: save_kernel(session, str(copy), lambda: begun.append(_STARTS)),
                arrived,
                what=f"push kernel {kernel_id}",
                policy=policy,
                say=say,
            )
        if isinstance(answer, KernelVersion):
            return answer
        _refuse_partial(kernel_id, answer)
        return KernelVersion(kernel_id, int(answer.version_number), answer.url)


def status(
    kernel_id: str,
    *,
    policy: RetryPolicy = PUSH_POLICY,
    say: Callable[[str], None] = lambda line: None,
) -> KernelStatus:
    """Return how the latest run of the kernel "owner/slug" fares; without an owner, one's own.

    Args:
        kernel_id: as above.
        policy: how often it is asked again, and with which waits.
        say: told about each failure that is tried again.

    Raises:
        UsageError: no name of a kernel.
        PipelineError: missing or refused credentials, no such kernel, no connection.
    """
    check_kernel_id(kernel_id)
    action = f"status of kernel {kernel_id}"
    with kaggle_session(action) as session:
        full_id = kernel_id if "/" in kernel_id else f"{session.username}/{kernel_id}"
        answer: KernelStatus = ask(
            lambda: status_in(session, full_id), what=action, policy=policy, say=say
        )
        return answer


def status_in(session: KaggleSession, full_id: str) -> KernelStatus:
    """Return how the latest run of the kernel "owner/slug" fares, in an open session."""
    answer = session.api.kernels_status(full_id)
    return KernelStatus(full_id, answer.status.name.lower(), answer.failure_message)


def _copy_with_owner(
    folder: Path, metadata: dict[str, object], kernel_id: str, target: Path
) -> None:
    """Copy the kernel to where its id can be completed: the built folder stays as it is."""
    code_file = str(metadata["code_file"])
    shutil.copyfile(folder / code_file, target / Path(code_file).name)
    completed = {**metadata, "id": kernel_id, "code_file": Path(code_file).name}
    (target / METADATA_FILE).write_text(json.dumps(completed), encoding="utf-8")


def _refuse_partial(kernel_id: str, answer: Any) -> None:
    """Turn a refusal that came as a value into an error."""
    if answer is None or answer.error:
        said = one_line(answer.error) if answer is not None else "nothing"
        raise PipelineError(
            f"kernel {kernel_id}: Kaggle refused it: {said}; correct the recipe or the sources, "
            "build it again, then push"
        )
    unknown = [
        f"{kind} sources {', '.join(names)}"
        for kind, names in (
            ("dataset", answer.invalid_dataset_sources),
            ("competition", answer.invalid_competition_sources),
            ("kernel", answer.invalid_kernel_sources),
            ("model", answer.invalid_model_sources),
        )
        if names
    ]
    if unknown:
        raise PipelineError(
            f"kernel {kernel_id}: version {answer.version_number} runs without {'; '.join(unknown)}"
            ": Kaggle does not know them or the account may not read them; correct and push again"
        )
