"""What Kaggle says of a kernel: its version, how it fares, what it wrote."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.kaggle.errors import one_line, status_of
from common.kaggle.session import KaggleSession

UNKNOWN = (403, 404)  # how Kaggle says that a name of one's own is not in use: it tells no more
_PAGE = 200


@dataclass(frozen=True)
class KernelStatus:
    """How the latest run of a kernel fares."""

    kernel_id: str  # "owner/slug"
    state: str  # "queued", "running", "complete", "error", "cancel_requested", …
    failure_message: str


@dataclass(frozen=True)
class OutputFile:
    """A file that a kernel wrote, and the signed address it can be had from for a while."""

    name: str
    url: str


def kernel_status(session: KaggleSession, kernel_id: str) -> KernelStatus:
    """Return how the latest run of the kernel "owner/slug" fares."""
    answer = session.api.kernels_status(kernel_id)
    return KernelStatus(
        kernel_id, answer.status.name.lower(), one_line(answer.failure_message or "")
    )


def kernel_version(session: KaggleSession, kernel_id: str) -> int:
    """Return the number of a kernel's latest version; 0 where there is no such kernel."""
    from kagglesdk.kernels.types.kernels_api_service import ApiGetKernelRequest

    request = ApiGetKernelRequest()
    request.user_name, _, request.kernel_slug = kernel_id.partition("/")
    try:
        with session.api.build_kaggle_client() as client:
            answer = client.kernels.kernels_api_client.get_kernel(request)
    except Exception as error:
        if status_of(error) in UNKNOWN:
            return 0
        raise
    return int(answer.metadata.current_version_number or 0) if answer.metadata else 0


def kernel_output(session: KaggleSession, kernel_id: str) -> tuple[list[OutputFile], str]:
    """List what a kernel's latest session wrote, and its log."""
    from kagglesdk.kernels.types.kernels_api_service import ApiListKernelSessionOutputRequest

    def page(token: str) -> Any:
        request = ApiListKernelSessionOutputRequest()
        request.user_name, _, request.kernel_slug = kernel_id.partition("/")
        request.page_size, request.page_token = _PAGE, token
        with session.api.build_kaggle_client() as client:
            return client.kernels.kernels_api_client.list_kernel_session_output(request)

    pages = all_pages(page)
    files = [OutputFile(item.file_name, item.url) for one in pages for item in one.files or []]
    return files, next((one.log for one in pages if one.log), "")


def all_pages(page: Callable[[str], Any]) -> list[Any]:
    """Return the pages of a list; `page` is called with the token of each, the first being ""."""
    pages = [page("")]
    seen = {""}
    while (token := pages[-1].next_page_token) and token not in seen:
        seen.add(token)
        pages.append(page(token))
    return pages
