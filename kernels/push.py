"""Send a built kernel to Kaggle, where it starts to run; ask how it fares and what it wrote."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.kaggle.errors import one_line, status_of
from common.kaggle.sender import ask, send_once
from common.kaggle.session import POLICY, KaggleSession, kaggle_session
from common.retry import RetryPolicy
from kernels.building.metadata import read_metadata

UNKNOWN = (403, 404)  # how Kaggle says that a name of one's own is not in use: it tells no more
_PAGE = 200
_IN_DOUBT = (
    "the kernel may have started: look at `python -m pipeline kernel status` before pushing it "
    "again"
)
_SOURCES = ("dataset", "competition", "kernel", "model")
_NOT_SENT = ("id", "code_file")  # of kernel-metadata.json; others by the client's names:
_RENAMED = {
    **{"title": "new_title", "keywords": "category_ids"},
    **{f"{kind}_sources": f"{kind}_data_sources" for kind in _SOURCES},
}


@dataclass(frozen=True)
class KernelVersion:
    """A version of a kernel that Kaggle has accepted and runs."""

    kernel_id: str  # "owner/slug"
    version: int
    url: str


@dataclass(frozen=True)
class KernelStatus:
    """How the latest run of a kernel fares."""

    kernel_id: str  # "owner/slug"
    state: str  # "queued", "running", "complete", "error", "cancel_requested", …
    failure_message: str


def push(folder: Path, *, policy: RetryPolicy = POLICY) -> KernelVersion:
    """Send the kernel in `folder`, which `kernel build` wrote, as a new version; it starts to run.

    It is never sent twice: where the answer is lost, Kaggle is asked for the kernel's version.

    Raises:
        PipelineError: an incomplete folder, missing or refused credentials, a kernel that Kaggle
            refuses, or one whose attached sources it does not know.
    """
    metadata = read_metadata(folder)
    with kaggle_session(f"push kernel {folder}", policy) as session:
        kernel_id = session.own(metadata["id"])
        request = _request(folder, metadata, kernel_id)
        last = ask(session, lambda: kernel_version(session, kernel_id))

        def send() -> int:
            with session.api.build_kaggle_client() as client:
                answer = client.kernels.kernels_api_client.save_kernel(request)
            return _accepted(kernel_id, answer)

        def arrived() -> int | None:
            version = kernel_version(session, kernel_id)
            return version if version > last else None

        version = send_once(session, send, arrived, _IN_DOUBT)
    return KernelVersion(kernel_id, version, f"https://www.kaggle.com/code/{kernel_id}")


def status(kernel_id: str) -> KernelStatus:
    """Return how the latest run of the kernel "owner/slug" fares; without an owner, one's own.

    Raises:
        PipelineError: missing or refused credentials, no such kernel, no connection.
    """
    with kaggle_session(f"status of kernel {kernel_id}") as session:
        return ask(session, lambda: kernel_status(session, session.own(kernel_id)))


def kernel_status(session: KaggleSession, kernel_id: str) -> KernelStatus:
    """Return how the latest run of the kernel "owner/slug" fares."""
    answer = session.api.kernels_status(kernel_id)
    state = answer.status.name.lower()
    return KernelStatus(kernel_id, state, one_line(answer.failure_message or ""))


def kernel_version(session: KaggleSession, kernel_id: str) -> int:
    """Return the number of a kernel's latest version; 0 where there is no such kernel."""
    try:
        answer = session.call("kernels", "get_kernel", _named(kernel_id))
    except Exception as error:
        if status_of(error) in UNKNOWN:
            return 0
        raise
    return int(answer.metadata.current_version_number or 0) if answer.metadata else 0


def kernel_output(session: KaggleSession, kernel_id: str) -> tuple[list[tuple[str, str]], str]:
    """List what a kernel's latest session wrote, by name and signed address; and return its log."""
    files, log, token = [], "", ""
    while True:
        asked = {**_named(kernel_id), "pageSize": _PAGE, "pageToken": token}
        page = session.call("kernels", "list_kernel_session_output", asked)
        files += [(item.file_name, item.url) for item in page.files or []]
        log, token = log or page.log or "", page.next_page_token
        if not token:
            return files, log


def _named(kernel_id: str) -> dict[str, str]:
    owner, _, slug = kernel_id.partition("/")
    return {"userName": owner, "kernelSlug": slug}


def _request(folder: Path, metadata: dict[str, Any], kernel_id: str) -> Any:
    from kagglesdk.kernels.types.kernels_api_service import ApiSaveKernelRequest

    request = ApiSaveKernelRequest()
    request.slug = kernel_id
    request.text = (folder / metadata["code_file"]).read_text(encoding="utf-8")
    for key, value in metadata.items():
        if key not in _NOT_SENT and value is not None:
            setattr(request, _RENAMED.get(key, key), value)
    return request


def _accepted(kernel_id: str, answer: Any) -> int:
    if answer.error:
        raise PipelineError(
            f"kernel {kernel_id}: Kaggle refused it: {one_line(answer.error)}; correct the recipe "
            "or the sources, build it again, then push"
        )
    version = int(answer.version_number)
    invalid = {kind: getattr(answer, f"invalid_{kind}_sources") for kind in _SOURCES}
    unknown = [f"{kind} sources {', '.join(names)}" for kind, names in invalid.items() if names]
    if unknown:
        raise PipelineError(
            f"kernel {kernel_id}: version {version} runs without {one_line('; '.join(unknown))}"
            ": Kaggle does not know them or the account may not read them; correct and push again"
        )
    return version
