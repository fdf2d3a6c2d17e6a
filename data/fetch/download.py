"""One file over HTTPS, resumed where it broke off, and never mixed from two versions."""

import ipaddress
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.network import PASSING_STATUS, certificate_refused, network_fault, retry_after_s
from common.retry import RetryableError, RetryPolicy, retry

if TYPE_CHECKING:
    from requests import Response, Session

_TIMEOUT_S = (15, 60)  # to connect; between two pieces of the answer
_CHUNK = 64 * 1024  # what a dropped connection may cost
_PLAIN = {"Accept-Encoding": "identity"}  # sizes and ranges are those of the file itself
_WHOLE, _PARTIAL, _NO_SUCH_RANGE = 200, 206, 416


@dataclass(frozen=True)
class Held:
    """What an unfinished download holds: bytes, of which version, of how many."""

    size: int = 0
    validator: str = ""
    total: int | None = None

    @property
    def whole(self) -> bool:
        """Tell whether nothing is missing."""
        return self.size == self.total


class PartFile:
    """An unfinished download beside its target, with a note of the version it is of."""

    def __init__(self, target: Path, url: str) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")
        self._url = url

    def size(self) -> int:
        """Return the bytes held."""
        return self.path.stat().st_size if self.path.exists() else 0

    def held(self) -> Held:
        """Return what can be gone on with: nothing unless the note says which version it is of."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            held = Held(self.size(), note["validator"], note["total"])
        except (OSError, ValueError, KeyError, TypeError):
            return Held()
        too_long = held.total is not None and held.size > held.total
        return held if note.get("url") == self._url and held.validator and not too_long else Held()

    def begin(self, response: "Response") -> None:
        """Start anew with the version that `response` is of."""
        self.discard()
        note = {
            "url": self._url,
            "validator": _validator(response),
            "total": _length(response),
        }
        write_text(self._note, json.dumps(note))

    def discard(self) -> None:
        """Forget all that is held."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def become(self, target: Path) -> None:
        """Turn into the finished file."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
        self.path.replace(target)
        self._note.unlink(missing_ok=True)


def download(
    session: "Session",
    url: str,
    target: Path,
    *,
    policy: RetryPolicy,
    progress: Callable[[str, int, int], None],
    say: Callable[[str], None],
) -> None:
    """Fetch `url` into `target`, which appears when it is whole; one that exists is kept.

    Raises:
        PipelineError: the server refuses it, the disk is full, or the tries are used up.
    """
    if target.exists():
        return
    part = PartFile(target, url)
    target.parent.mkdir(parents=True, exist_ok=True)
    retry(
        lambda: _attempt(session, url, part, progress),
        what=url,
        policy=policy,
        say=say,
        gained=part.size,
    )
    part.become(target)


def remote_size(
    session: "Session", url: str, *, policy: RetryPolicy, say: Callable[[str], None]
) -> int:
    """Ask how many bytes `url` has; 0 if the server does not tell.

    Raises:
        PipelineError: the server refuses the file, or the tries are used up.
    """

    def ask() -> int:
        from requests.exceptions import RequestException

        try:
            with session.head(
                url, headers=_PLAIN, timeout=_TIMEOUT_S, allow_redirects=True
            ) as response:
                _check_answer(response, url)
                return (_length(response) or 0) if response.status_code == _WHOLE else 0
        except RequestException as error:
            raise _fault(error, url) from None

    return retry(ask, what=url, policy=policy, say=say)


def check_address(url: str) -> None:
    """Allow HTTPS anywhere and plain HTTP on this machine alone.

    Raises:
        UsageError: another scheme or host, or an address with credentials or a query in it.
    """
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("address of the files: expected https://HOST/PATH and nothing else in it")
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme != "http" or not _is_loopback(parts.hostname or ""):
        raise UsageError(f"{url}: expected an address that starts with https://")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _attempt(
    session: "Session", url: str, part: PartFile, progress: Callable[[str, int, int], None]
) -> None:
    """Make one request for what is still missing and store what comes."""
    from requests.exceptions import RequestException

    held = part.held()
    if held.whole:
        return
    headers = dict(_PLAIN)
    if held.size:
        headers |= {"Range": f"bytes={held.size}-", "If-Range": held.validator}
    try:
        with session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
            if held.size and response.status_code == _NO_SUCH_RANGE:
                part.discard()
                raise RetryableError("the file has become shorter on the server; starting anew")
            _check_answer(response, url)
            if response.status_code != _PARTIAL:
                part.begin(response)
            elif not _continues(response, held):
                part.discard()
                raise RetryableError("the file has changed on the server; starting anew")
            _store(response, part, progress)
    except RequestException as error:  # an OSError too, so it goes first
        raise _fault(error, url) from None
    except OSError as error:
        raise PipelineError(f"{part.path}: cannot be written: {error.strerror or error}") from error


def _store(response: "Response", part: PartFile, progress: Callable[[str, int, int], None]) -> None:
    """Append the answer's body and check the length that is reached."""
    sent = _length(response)
    with part.path.open("ab") as file:
        start = done = file.tell()
        end = None if sent is None else start + sent
        for chunk in response.iter_content(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress(f"download {part.path.stem}", done, end or done + 1)
    if end is not None and done != end:
        if done > end:
            part.discard()
        raise RetryableError(f"the body ended after {done} of {end} bytes")
    if part.held().total not in (None, done):  # the server chose to send a shorter range
        raise RetryableError(f"the server sent only as far as byte {done}")


def _check_answer(response: "Response", url: str) -> None:
    """Let pass what brings the file; raise what another try mends, and what none does."""
    for step in (*response.history, response):
        check_address(step.url.split("?")[0])
    status = response.status_code
    if status in (_WHOLE, _PARTIAL):
        return
    if status in PASSING_STATUS:
        asked_s = retry_after_s(response.headers.get("Retry-After", ""))
        raise RetryableError(f"HTTP {status}", retry_after_s=asked_s)
    if response.request.method == "HEAD" and status in (405, 501):
        return  # some servers only know GET
    advice = {
        403: "the server does not give it out; try again later, or --source kaggle",
        404: "there is no such file; check the address, or try --source kaggle",
    }.get(status, "the server refuses it")
    raise PipelineError(f"{url}: HTTP {status}: {advice}")


def _continues(response: "Response", held: Held) -> bool:
    """Tell whether a partial answer begins where `held` ends, and is of the same version."""
    expected_end = f"/{held.total}" if held.total is not None else ""
    content_range = response.headers.get("Content-Range", "")
    same_place = content_range.startswith(f"bytes {held.size}-")
    same_size = content_range.endswith((expected_end, "/*"))
    return same_place and same_size and _validator(response) in ("", held.validator)


def _validator(response: "Response") -> str:
    """Return what names the file's version; a weak ETag does not vouch for its bytes."""
    etag = response.headers.get("ETag", "")
    weak = not etag or etag.startswith("W/")
    return response.headers.get("Last-Modified", "") if weak else etag


def _length(response: "Response") -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _fault(error: Exception, url: str) -> Exception:
    """Return `RetryableError` for a fault of the network, one line for any other."""
    host = urlsplit(url).hostname or url
    reason = network_fault(error, host)
    if not reason or certificate_refused(error):
        return PipelineError(f"{url}: {reason or type(error).__name__}; check address and proxy")
    return RetryableError(reason)
