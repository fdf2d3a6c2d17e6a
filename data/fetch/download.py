"""Download one file over HTTPS. An interrupted download resumes, and never mixes two versions."""

import hashlib
from contextlib import ExitStack
from glob import escape
from pathlib import Path
from urllib.parse import urlsplit

from requests import Response, Session
from requests.exceptions import RequestException

from common.errors import PipelineError, UsageError
from common.files import flush, unwritable
from common.http import (
    PASSING_STATUS,
    RetryableError,
    RetryPolicy,
    network_fault,
    retry,
    retry_after_s,
)
from common.progress import progress

_TIMEOUT_S = (15, 60)  # to connect; between two pieces of the answer
_PIECE_BYTES = 2**16
_MAX_BYTES = 2**36  # several times the whole dataset
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LATER = "run the same command again: it resumes"


def download(session: Session, url: str, target: Path, *, policy: RetryPolicy) -> None:
    """Download a file, which appears under its name when it is whole.

    An existing file is not downloaded again. The query of the address, which may be a signature, is
    neither printed nor stored.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    retry(
        lambda: _attempt(session, url, target),
        what=_address(url),
        policy=policy,
        gained=lambda: bytes_here(target),
    )


def bytes_here(target: Path) -> int:
    """Return the number of bytes of a finished or unfinished download."""
    return sum(path.stat().st_size for path in (target, *_parts(target)) if path.exists())


def remote_size(session: Session, url: str, policy: RetryPolicy) -> int:
    """Return the bytes of a file on a server; 0 if the server does not report them."""

    def attempt() -> int:
        with _ask(session, "HEAD", url) as response:
            return _length(response) or 0

    return retry(attempt, what=_address(url), policy=policy)


def check_address(url: str) -> None:
    """Refuse addresses with credentials, and plain HTTP to other machines."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("address of the files: expected https://HOST/PATH and nothing else in it")
    if not parts.hostname or not (parts.scheme == "https" or parts.hostname in _LOOPBACK):
        raise UsageError(f"{url}: expected an address that starts with https://")


def _attempt(session: Session, url: str, target: Path) -> None:
    with ExitStack() as open_answers:
        answer = open_answers.enter_context(_ask(session, "GET", url))
        total, version = _length(answer), _version(answer)
        version_digest = hashlib.sha256(f"{version} {total}".encode()).hexdigest()[:12]
        part = target.with_name(f"{target.name}.part-{version_digest}")
        for old in _parts(target):
            if old != part or not version:
                old.unlink()
        n_bytes = part.stat().st_size if part.exists() else 0
        if n_bytes and n_bytes != total:
            headers = {"Range": f"bytes={n_bytes}-", "If-Range": version}
            answer = open_answers.enter_context(_ask(session, "GET", url, headers))
            place = f"bytes {n_bytes}-{total - 1 if total else ''}/{total}"
            if answer.status_code != 206 or answer.headers.get("Content-Range") != place:
                part.unlink()
                raise RetryableError("the download cannot be resumed; starting again")
        if n_bytes != total or not n_bytes:
            n_bytes = _store(answer, part, n_bytes, total)
    if total not in (None, n_bytes):
        raise RetryableError(f"the server sent only as far as byte {n_bytes}")
    part.replace(target)


def _store(answer: Response, part: Path, n_bytes: int, total: int | None) -> int:
    try:
        with part.open("ab") as file:
            for piece in answer.iter_content(_PIECE_BYTES):
                n_bytes += file.write(piece)
                if n_bytes > _MAX_BYTES:
                    raise PipelineError(
                        f"{_address(answer.url)}: the file has over {_MAX_BYTES} bytes, more than "
                        "any that is expected; check the address and the proxy"
                    )
                progress(
                    f"download {part.name.partition('.part')[0]}", n_bytes, total or n_bytes + 1
                )
        flush(part)
    # A RequestException is an OSError too, so it is handled first.
    except RequestException as error:
        raise RetryableError(_fault(error, answer.url)) from None
    except OSError as error:
        raise unwritable(part, error) from error
    return n_bytes


def _ask(
    session: Session, method: str, url: str, headers: dict[str, str] | None = None
) -> Response:
    check_address(_address(url))
    # Sizes are those of the uncompressed file.
    headers = {"Accept-Encoding": "identity", **(headers or {})}
    try:
        answer = session.request(method, url, headers=headers, timeout=_TIMEOUT_S, stream=True)
    except RequestException as error:
        raise RetryableError(_fault(error, url)) from None
    for step in (*answer.history, answer):
        check_address(_address(step.url))
    status = answer.status_code
    if status in PASSING_STATUS:
        asked_s = retry_after_s(answer.headers.get("Retry-After", ""))
        raise RetryableError(f"HTTP {status}", retry_after_s=asked_s)
    if not answer.ok:
        raise PipelineError(f"{_address(url)}: HTTP {status}; check the address; {_LATER}")
    return answer


def _parts(target: Path) -> list[Path]:
    return list(target.parent.glob(f"{escape(target.name)}.part-{'[0-9a-f]' * 12}"))


def _version(answer: Response) -> str:
    etag = answer.headers.get("ETag", "")
    weak = not etag or etag.startswith("W/")
    return answer.headers.get("Last-Modified", "") if weak else etag


def _length(answer: Response) -> int | None:
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _fault(error: Exception, url: str) -> str:
    return network_fault(error, urlsplit(url).hostname or _address(url)) or type(error).__name__


def _address(url: str) -> str:
    return url.partition("?")[0]
