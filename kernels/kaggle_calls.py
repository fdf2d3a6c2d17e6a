"""Calls of the Kaggle client that it has no plain method for: the one place with its inner names.

The client repeats a dataset's creation when its answer is lost, leaves out files whose upload
failed, and writes signed addresses into the common temporary folder; here it does not.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from data.errors import PipelineError
from data.fetch.retry import Again, Patience, persist
from data.network import retry_after_s
from kernels.client_errors import passing_fault, refusal
from kernels.credentials import KaggleSession

_CREATES = ("create_dataset", "create_dataset_version")  # must not be repeated blindly
_UNKNOWN = (403, 404)  # how Kaggle says that a name of one's own is not in use: it tells no more
_PAGE = 200
Say = Callable[[str], None]


@dataclass(frozen=True)
class DatasetState:
    """What Kaggle says of a dataset."""

    status: str  # "ready", "failed", "deleted", or that it is being made
    version: int


@dataclass(frozen=True)
class OutputFile:
    """A file that a kernel wrote, and the signed address it can be had from for a while."""

    name: str
    url: str


def patiently(call: Callable[[], Any], *, what: str, patience: Patience, say: Say) -> Any:
    """Call the client where a repetition does no harm, until it succeeds or patience ends.

    Raises:
        Exception: as the call, if another try would not mend it.
        PipelineError: patience is at its end.
    """

    def attempt() -> Any:
        try:
            return call()
        except Exception as error:
            passing = passing_fault(error)
            if passing is None:
                raise
            raise Again(passing[0], retry_after_s=retry_after_s(passing[1])) from None

    return persist(attempt, what=what, patience=patience, say=say)


def dataset_state(session: KaggleSession, dataset_id: str) -> DatasetState | None:
    """Return a dataset's state; None where there is no such dataset.

    Raises:
        Exception: as the client, if it is refused for another reason.
    """
    try:
        answer = json.loads(session.api.dataset_status(dataset_id, format="json"))
    except Exception as error:
        own = dataset_id.partition("/")[0].lower() == session.username.lower()
        if _refused_by(error, _UNKNOWN if own else _UNKNOWN[1:]):
            return None
        raise
    return DatasetState(answer["status"], int(answer["current_version_number"] or 0))


def dataset_files(session: KaggleSession, dataset_id: str) -> list[str]:
    """List the names of a dataset's files as Kaggle knows them."""
    names: list[str] = []
    token = None
    while True:
        page = session.api.dataset_list_files(dataset_id, page_token=token, page_size=_PAGE)
        names += [file.name for file in page.dataset_files or [] if file is not None]
        token = page.next_page_token
        if not token:
            return names


def kernel_version(session: KaggleSession, kernel_id: str) -> int:
    """Return the number of a kernel's latest version; 0 where there is no such kernel."""
    from kagglesdk.kernels.types.kernels_api_service import ApiGetKernelRequest

    request = ApiGetKernelRequest()
    request.user_name, _, request.kernel_slug = kernel_id.partition("/")
    try:
        with session.api.build_kaggle_client() as client:
            answer = client.kernels.kernels_api_client.get_kernel(request)
    except Exception as error:
        if _refused_by(error, _UNKNOWN):
            return 0
        raise
    return int(answer.metadata.current_version_number or 0) if answer.metadata else 0


def kernel_output(session: KaggleSession, kernel_id: str) -> tuple[list[OutputFile], str]:
    """List what a kernel's latest session wrote, and its log."""
    from kagglesdk.kernels.types.kernels_api_service import ApiListKernelSessionOutputRequest

    files: list[OutputFile] = []
    log, token = "", ""
    while True:
        request = ApiListKernelSessionOutputRequest()
        request.user_name, _, request.kernel_slug = kernel_id.partition("/")
        request.page_size, request.page_token = _PAGE, token
        with session.api.build_kaggle_client() as client:
            page = client.kernels.kernels_api_client.list_kernel_session_output(request)
        files += [OutputFile(item.file_name, item.url) for item in page.files or []]
        log = log or page.log
        token = page.next_page_token
        if not token:
            return files, log


@contextmanager
def careful_uploads(
    session: KaggleSession,
    expected: int,
    send: Callable[[Callable[[], Any]], Any],
    *,
    patience: Patience,
    say: Say,
) -> Iterator[None]:
    """Let the client upload all files or none, and make a dataset by one request only.

    Args:
        expected: how many files and packed folders must arrive before the dataset is made.
        send: called with the request that makes the dataset; sends it.
    """
    api, uploads = session.api, session.api.upload_files

    def upload_files(request: Any, *arguments: Any, **options: Any) -> None:
        uploads(request, *arguments, **options)
        if len(request.files) != expected:
            raise PipelineError(
                f"{len(request.files)} of {expected} files arrived in Kaggle's storage; no dataset "
                "was made; try again"
            )

    def with_retry(method: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        if method.__name__ in _CREATES:
            return lambda request: send(lambda: method(request))
        return lambda request: patiently(
            lambda: method(request), what="upload", patience=patience, say=say
        )

    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="kaggle-uploads-") as own:
        try:
            api.upload_files, api.with_retry = upload_files, with_retry
            tempfile.tempdir = own
            yield
        finally:
            tempfile.tempdir = before
            del api.upload_files, api.with_retry


def _refused_by(error: BaseException, statuses: Sequence[int]) -> bool:
    """Tell whether Kaggle has refused with one of these statuses."""
    answer = refusal(error)
    return answer is not None and answer[0] in statuses
