"""One file over HTTPS, resumed where it broke off, and never mixed from two versions."""

import hashlib
import os
from contextlib import ExitStack
from glob import escape
from pathlib import Path
from urllib.parse import urlsplit

from requests import Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from urllib3.util import Retry

from common.errors import PipelineError, UsageError
from common.progress import progress
from common.retry import PASSING_STATUS, RetryableError, RetryPolicy, network_fault, retry

_TIMEOUT_S = (15, 60)  # to connect; between two pieces of the answer
_CHUNK = 64 * 1024  # what a dropped connection may cost
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LATER = "run the same command again: it goes on from here"


def http_session(policy: RetryPolicy) -> Session:
    """Return a session that asks again where a server is not reached, busy or failing."""
    retries = Retry(
        policy.attempts - 1,
        backoff_factor=policy.first_wait_s,
        backoff_max=policy.longest_wait_s,
        retry_after_max=int(policy.longest_asked_wait_s),
        status_forcelist=PASSING_STATUS,
        raise_on_status=False,
    )
    session = Session()
    session.headers["Accept-Encoding"] = "identity"  # sizes and ranges are those of the file itself
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retries))
    return session


def download(session: Session, url: str, target: Path, *, policy: RetryPolicy) -> None:
    """Fetch `url` into `target`, which appears when it is whole; one that exists is kept.

    Args:
        url: may be signed: of its query nothing is told or kept.

    Raises:
        PipelineError: the server refuses it, the disk is full, or the tries are used up.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    retry(
        lambda: _attempt(session, url, target),
        what=_shown(url),
        policy=policy,
        gained=lambda: bytes_here(target),
    )


def bytes_here(target: Path) -> int:
    """Return how many bytes are there of a download, unfinished or not."""
    return sum(path.stat().st_size for path in (target, *_parts(target)) if path.exists())


def remote_size(session: Session, url: str) -> int:
    """Ask how many bytes `url` has, 0 if the server does not tell; raises as `download`."""
    with _ask(session, "HEAD", url) as response:
        return _length(response) or 0


def check_address(url: str) -> None:
    """Allow HTTPS anywhere, plain HTTP on this machine alone; UsageError: also for credentials."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("address of the files: expected https://HOST/PATH and nothing else in it")
    if not parts.hostname or not (parts.scheme == "https" or parts.hostname in _LOOPBACK):
        raise UsageError(f"{url}: expected an address that starts with https://")


def _attempt(session: Session, url: str, target: Path) -> None:
    with ExitStack() as open_answers:
        answer = open_answers.enter_context(_ask(session, "GET", url))
        total, version = _length(answer), _version(answer)
        named = hashlib.sha256(f"{version} {total}".encode()).hexdigest()[:12]
        part = target.with_name(f"{target.name}.part-{named}")
        for old in _parts(target):
            if old != part or not version:
                old.unlink()
        held = part.stat().st_size if part.exists() else 0
        if held and held != total:
            headers = {"Range": f"bytes={held}-", "If-Range": version}
            answer = open_answers.enter_context(_ask(session, "GET", url, headers))
            place = f"bytes {held}-{total - 1 if total else ''}/{total}"
            if answer.status_code != 206 or answer.headers.get("Content-Range") != place:
                part.unlink()
                raise RetryableError("the file cannot be gone on with; starting anew")
        if held != total or not held:
            held = _store(answer, part, held, total)
    if total not in (None, held):
        raise RetryableError(f"the server sent only as far as byte {held}")
    part.replace(target)


def _store(answer: Response, part: Path, held: int, total: int | None) -> int:
    try:
        with part.open("ab") as file:
            for chunk in answer.iter_content(_CHUNK):
                held += file.write(chunk)
                progress(f"download {part.name.partition('.part')[0]}", held, total or held + 1)
            file.flush()
            os.fsync(file.fileno())
    except RequestException as error:  # an OSError too, so it goes first
        raise RetryableError(_fault(error, answer.url)) from None
    except OSError as error:
        raise PipelineError(f"{part}: cannot be written: {error.strerror or error}") from error
    return held


def _ask(
    session: Session, method: str, url: str, headers: dict[str, str] | None = None
) -> Response:
    check_address(_shown(url))
    try:
        answer = session.request(method, url, headers=headers, timeout=_TIMEOUT_S, stream=True)
    except RequestException as error:
        reason = f"{_fault(error, url)}; check address, network and proxy; {_LATER}"
        raise PipelineError(f"{_shown(url)}: {reason}") from None
    for step in (*answer.history, answer):
        check_address(_shown(step.url))
    if not answer.ok:
        problem = f"HTTP {answer.status_code}; check the address; {_LATER}"
        raise PipelineError(f"{_shown(url)}: {problem}")
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
    return network_fault(error, urlsplit(url).hostname or _shown(url)) or type(error).__name__


def _shown(url: str) -> str:
    return url.partition("?")[0]
