"""Send a built kernel to Kaggle, where it starts to run, and ask how it fares."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.kaggle.errors import one_line
from common.kaggle.sender import ask, send_once
from common.kaggle.session import POLICY, kaggle_session
from common.retry import RetryPolicy
from kernels.build.metadata import check_kernel_id, check_source, read_metadata
from kernels.kaggle_calls import KernelStatus, kernel_status, kernel_version

_IN_DOUBT = (
    "the kernel may have started: look at `python -m pipeline kernel status` before pushing it "
    "again"
)
# Keys of kernel-metadata.json, and what Kaggle's client calls them.
_FIELDS = {
    "title": "new_title",
    "language": "language",
    "kernel_type": "kernel_type",
    "is_private": "is_private",
    "enable_gpu": "enable_gpu",
    "enable_tpu": "enable_tpu",
    "enable_internet": "enable_internet",
    "dataset_sources": "dataset_data_sources",
    "competition_sources": "competition_data_sources",
    "kernel_sources": "kernel_data_sources",
    "model_sources": "model_data_sources",
    "keywords": "category_ids",
    "docker_image": "docker_image",
    "docker_image_pinning_type": "docker_image_pinning_type",
    "machine_shape": "machine_shape",
}
_SOURCES = ("dataset", "competition", "kernel", "model")


@dataclass(frozen=True)
class KernelVersion:
    """A version of a kernel that Kaggle has accepted and runs."""

    kernel_id: str  # "owner/slug"
    version: int
    url: str


def push(folder: Path, *, policy: RetryPolicy = POLICY) -> KernelVersion:
    """Send the kernel in `folder`, which `kernels.build.build` wrote, as a new version; it starts
    to run.

    It is never sent twice: where the answer is lost, Kaggle is asked for the kernel's version.

    Raises:
        PipelineError: an incomplete folder, missing or refused credentials, a kernel that Kaggle
            refuses, or one whose attached sources it does not know.
    """
    metadata: Mapping[str, Any] = read_metadata(folder)
    for key in ("dataset_sources", "kernel_sources"):
        for source in metadata.get(key) or []:
            check_source(f"{folder}: {key}", str(source))
    with kaggle_session(f"push kernel {folder}", policy) as session:
        kernel_id = session.own(str(metadata["id"]))
        url = f"https://www.kaggle.com/code/{kernel_id}"
        request = _request(folder, metadata, kernel_id)
        last = ask(session, lambda: kernel_version(session, kernel_id))

        def send() -> KernelVersion:
            with session.api.build_kaggle_client() as client:
                answer = client.kernels.kernels_api_client.save_kernel(request)
            return KernelVersion(kernel_id, _accepted(kernel_id, answer), url)

        def arrived() -> KernelVersion | None:
            version = kernel_version(session, kernel_id)
            return KernelVersion(kernel_id, version, url) if version > last else None

        return send_once(session, send, arrived, _IN_DOUBT)


def status(kernel_id: str, *, policy: RetryPolicy = POLICY) -> KernelStatus:
    """Return how the latest run of the kernel "owner/slug" fares; without an owner, one's own.

    Raises:
        UsageError: no name of a kernel.
        PipelineError: missing or refused credentials, no such kernel, no connection.
    """
    check_kernel_id(kernel_id)
    with kaggle_session(f"status of kernel {kernel_id}", policy) as session:
        return ask(session, lambda: kernel_status(session, session.own(kernel_id)))


def _request(folder: Path, metadata: Mapping[str, Any], kernel_id: str) -> Any:
    from kagglesdk.kernels.types.kernels_api_service import ApiSaveKernelRequest

    request = ApiSaveKernelRequest()
    request.slug = kernel_id
    request.text = (folder / str(metadata["code_file"])).read_text(encoding="utf-8")
    for key, field in _FIELDS.items():
        if metadata.get(key) is not None:
            setattr(request, field, metadata[key])
    return request


def _accepted(kernel_id: str, answer: Any) -> int:
    """Return the version that Kaggle has accepted.

    Raises:
        PipelineError: a refusal that came as a value.
    """
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
