"""Send something to Kaggle once: look what it has, send, where the answer is lost look again, tell.

Submissions, kernels and datasets all go this way. The caller looks first, with `ask`; the files
go ahead with `upload_file`; the one request that makes something of them is left to `send_once`.
"""

import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from common.errors import PipelineError
from common.kaggle.errors import explain, never_acted_on, passing_fault
from common.kaggle.session import KaggleSession
from common.network import PASSING_STATUS, retry_after_s
from common.progress import log, out_of_time, progress, seconds_left
from common.retry import RetryableError, retry

T = TypeVar("T")

# Kaggle may still be at work: seconds before each look for what a lost answer was about.
LOOK_AFTER_S = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # a little more than a minute in all
_FIRST_PAUSE_S, _PAUSE_GROWTH, _LONGEST_PAUSE_S = 3.0, 1.5, 60.0
_STORAGE_TIMEOUT_S = (15, 120)  # to connect; between two pieces


def ask(session: KaggleSession, call: Callable[[], T]) -> T:
    """Call the client where a repetition does no harm, until it succeeds or the tries are used up.

    Raises:
        PipelineError: Kaggle refuses, or the tries are used up.
    """

    def attempt() -> T:
        try:
            return call()
        except (PipelineError, RetryableError):
            raise
        except Exception as error:
            reason, header = passing_fault(error)
            asked_s = retry_after_s(header)
            is_long = asked_s is not None and asked_s > session.policy.longest_asked_wait_s
            if not reason or is_long:
                raise explain(error, session.action) from None
            raise RetryableError(reason, retry_after_s=asked_s) from None

    advice = "try again in a few minutes"
    return retry(attempt, what=session.action, policy=session.policy, advice=advice)


def send_once(
    session: KaggleSession, send: Callable[[], T], arrived: Callable[[], T | None], in_doubt: str
) -> T:
    """Make a request that must not be acted on twice.

    It is repeated only where Kaggle has certainly not acted: it was busy (HTTP 429) or not reached.
    After any other failure Kaggle is asked for about a minute whether it has what was sent; if not,
    that is told, and nothing is sent again.

    Args:
        arrived: asks Kaggle what the request has made; None if nothing.
        in_doubt: what to do where it is unknown whether Kaggle has acted.

    Raises:
        PipelineError: Kaggle refuses, may or may not have acted, or the tries are used up.
    """

    def attempt() -> T:
        try:
            return send()
        except PipelineError:  # a refusal that came as a value
            raise
        except Exception as error:
            if never_acted_on(error):
                raise
            log.info(f"{session.action}: no clear answer; asking Kaggle whether it has arrived")
            found = _look(session, arrived)
            if found is None:
                raise explain(error, session.action, in_doubt=in_doubt) from None
            return found

    return ask(session, attempt)


def upload_file(
    session: KaggleSession, path: Path, service: str, method: str, named: Mapping[str, str]
) -> str:
    """Upload a file to Kaggle's storage, and return the token that a service's method has for it.

    Args:
        named: what the method is told of the file besides its size and time.

    Raises:
        PipelineError: Kaggle or its storage refuses it, or the tries are used up.
    """
    import requests

    about = path.stat()
    facts = {"contentLength": about.st_size, "lastModifiedEpochSeconds": int(about.st_mtime)}

    def attempt() -> str:
        begun = session.call(service, method, {**named, **facts})
        with _Watched(path) as stream:
            answer = requests.put(begun.create_url, data=stream, timeout=_STORAGE_TIMEOUT_S)
        status = answer.status_code
        if status in PASSING_STATUS:
            raise RetryableError(f"Kaggle's storage answers HTTP {status}")
        if status not in (200, 201):
            raise PipelineError(
                f"{session.action}: Kaggle's storage refused {path.name}: HTTP {status}; nothing "
                "was made of it; try again"
            )
        return str(begun.token)

    return ask(session, attempt)


def wait_for(session: KaggleSession, answer: Callable[[], T | None], what: str) -> T | None:
    """Ask, with growing pauses, until there is an answer or `time_limit` is over; then None."""
    limit_s, pause_s = seconds_left(), _FIRST_PAUSE_S
    while True:
        found = ask(session, answer)
        if found is not None or out_of_time():
            return found
        if math.isfinite(limit_s):
            progress(f"wait for {what}", int(limit_s - seconds_left()), int(limit_s) + 1)
        session.policy.sleep(min(pause_s, seconds_left()))
        pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)


class _Watched(io.FileIO):
    """A file that tells how far it has been read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._what, self._size = f"upload {path.name}", path.stat().st_size

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        progress(self._what, self.tell(), self._size)
        return piece or b""


def _look(session: KaggleSession, arrived: Callable[[], T | None]) -> T | None:
    for pause_s in LOOK_AFTER_S:
        session.policy.sleep(pause_s)
        try:
            found = arrived()
        except Exception as error:  # no answer to that either: the doubt stays
            log.debug(f"Kaggle does not tell: {type(error).__name__}")
        else:
            if found is not None:
                return found
    return None
