"""Calls of the Kaggle client that it has no plain method for, and how to repeat them.

Its inner names are here and in `kernels.datasets.uploads` alone.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import PipelineError
from common.kaggle.errors import explain, passing_fault, refusal
from common.kaggle.session import KaggleSession
from common.network import retry_after_s
from common.retry import RetryableError, RetryPolicy, retry

_UNKNOWN = (403, 404)  # how Kaggle says that a name of one's own is not in use: it tells no more
_PAGE = 200
_LATER = "check the network, or try again in a few minutes"
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


def patiently(call: Callable[[], Any], *, what: str, policy: RetryPolicy, say: Say) -> Any:
    """Call the client where a repetition does no harm, until it succeeds or the tries are used up.

    Raises:
        Exception: as the call, if another try would not mend it.
        PipelineError: the tries are used up.
    """

    def attempt() -> Any:
        try:
            return call()
        except Exception as error:
            passing = passing_fault(error)
            if passing is None:
                raise
            raise RetryableError(passing[0], retry_after_s=retry_after_s(passing[1])) from None

    return retry(attempt, what=what, policy=policy, say=say, advice=_LATER)


def ask(call: Callable[[], Any], *, what: str, policy: RetryPolicy, say: Say) -> Any:
    """Ask Kaggle patiently; a refusal is worded here, since it leaves nothing in doubt.

    Raises:
        PipelineError: Kaggle refuses, or the tries are used up. The caller redacts it.
    """
    try:
        return patiently(call, what=what, policy=policy, say=say)
    except PipelineError:
        raise
    except Exception as error:
        raise explain(error, what) from None


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


def save_kernel(session: KaggleSession, folder: str, on_request: Callable[[], None]) -> Any:
    """Let the client check a kernel's folder and send it; `on_request` is called in between."""
    api, build = session.api, session.api.build_kaggle_client

    def told() -> Any:
        client = build()
        kernels = client.kernels.kernels_api_client
        save = kernels.save_kernel

        def save_and_tell(request: Any) -> Any:
            on_request()
            return save(request)

        kernels.save_kernel = save_and_tell
        return client

    api.build_kaggle_client = told
    try:
        return api.kernels_push(folder)
    finally:
        del api.build_kaggle_client


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


def _refused_by(error: BaseException, statuses: Sequence[int]) -> bool:
    """Tell whether Kaggle has refused with one of these statuses."""
    answer = refusal(error)
    return answer is not None and answer[0] in statuses
