"""Let the Kaggle client upload a dataset's files: all of them or none, and tell which one failed.

The client repeats a dataset's creation when its answer is lost, leaves out files whose upload
failed, and writes signed addresses into the common temporary folder; here it does not.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.kaggle.scratch import scratch_folder
from common.kaggle.session import KaggleSession
from common.network import PASSING_STATUS
from common.retry import RetryableError, RetryPolicy, retry
from kernels.kaggle_calls import Say, patiently

_CREATES = ("create_dataset", "create_dataset_version")  # must not be repeated blindly
_CHANGED = ("upload_files", "with_retry", "_upload_blob", "_is_upload_successful")


@contextmanager
def careful_uploads(
    session: KaggleSession,
    expected: int,
    send: Callable[[Callable[[], Any]], Any],
    *,
    what: str,
    policy: RetryPolicy,
    say: Say,
) -> Iterator[None]:
    """Let the client upload all files or none, and make a dataset by one request only.

    Args:
        expected: how many files and packed folders must arrive before the dataset is made.
        send: called with the request that makes the dataset; sends it.
        what: start of every line said.
        policy: how often an upload is tried again, and with which waits.
        say: told about each failure.
    """
    api, uploads = session.api, session.api.upload_files

    def upload_files(request: Any, *arguments: Any, **options: Any) -> None:
        uploads(request, *arguments, **options)
        if len(request.files) != expected:
            raise PipelineError(
                f"{what}: {len(request.files)} of {expected} files arrived in Kaggle's storage; no "
                "version was made; try again"
            )

    def with_retry(method: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        if method.__name__ in _CREATES:
            return lambda request: send(lambda: method(request))
        return lambda request: patiently(
            lambda: method(request), what=f"{what}: upload", policy=policy, say=say
        )

    before = tempfile.tempdir
    with scratch_folder("uploads") as own:
        try:
            api.upload_files, api.with_retry = upload_files, with_retry
            _name_refusals(api, own, what=what, policy=policy, say=say)
            tempfile.tempdir = str(own)
            yield
        finally:
            tempfile.tempdir = before
            for name in _CHANGED:
                api.__dict__.pop(name, None)


def _name_refusals(api: Any, own: Path, *, what: str, policy: RetryPolicy, say: Say) -> None:
    """Make the client try again where its storage fails for now, and tell a refusal's status."""
    upload_blob, is_successful = api._upload_blob, api._is_upload_successful
    statuses: list[int] = []

    def noted(response: Any) -> Any:
        statuses.append(response.status_code)
        return is_successful(response)

    def upload(path: str, *arguments: Any, **options: Any) -> Any:
        def attempt() -> Any:
            statuses.clear()
            token = upload_blob(path, *arguments, **options)
            if token is not None:
                return token
            # The client's note of the upload would make it go on at an address that has failed.
            for note in (own / ".kaggle" / "uploads").glob("*.json"):
                note.unlink()
            if not statuses:
                raise RetryableError("the connection to Kaggle's storage was lost")
            if statuses[-1] in PASSING_STATUS:
                raise RetryableError(f"Kaggle's storage answers HTTP {statuses[-1]}")
            raise PipelineError(
                f"{what}: {Path(path).name}: Kaggle's storage refused it: HTTP {statuses[-1]}; no "
                "version was made; try again"
            )

        line = f"{what}: {Path(path).name}"
        advice = "no version was made; try again later"
        return retry(attempt, what=line, policy=policy, say=say, advice=advice)

    api._upload_blob, api._is_upload_successful = upload, noted
