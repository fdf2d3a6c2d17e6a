"""An authenticated Kaggle client, with nothing secret in any message that leaves it.

The client finds its credentials itself: KAGGLE_API_TOKEN, KAGGLE_USERNAME with KAGGLE_KEY, or a
key file. It prints and exits where it should raise, and does so on import already, so both happen
only inside `kaggle_session`. No other module knows the client's kinds of error, and where
credentials lie.

Submissions, kernels and datasets are sent one way: the caller looks with `ask` what Kaggle has; the
files go ahead with `upload_file`; the one request that makes something of them is left to
`send_once`, which looks again where the answer is lost.
"""

import io
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from common.errors import PipelineError, escaped
from common.progress import log, out_of_time, progress, seconds_left
from common.retry import (
    PASSING_STATUS,
    UNREACHED,
    RetryableError,
    RetryPolicy,
    certificate_refused,
    chain,
    network_fault,
    retry,
    retry_after_s,
)

T = TypeVar("T")

POLICY = RetryPolicy(attempts=4, first_wait_s=2.0)
ANSWER_WITHIN_S = 120.0

_APIS = {
    "blobs": "blob_api",
    "competitions": "competition_api",
    "datasets": "dataset_api",
    "kernels": "kernels_api",
}
_HOW_TO_LOG_IN = (
    "set KAGGLE_API_TOKEN, or KAGGLE_USERNAME and KAGGLE_KEY, or put access_token with the first, "
    "or kaggle.json with the others into ~/.kaggle (made in the account's settings on kaggle.com)"
)
# Kaggle may still be at work: seconds before each look for what a lost answer was about.
LOOK_AFTER_S = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # a little more than a minute in all
_FIRST_PAUSE_S, _PAUSE_GROWTH, _LONGEST_PAUSE_S = 3.0, 1.5, 60.0
_STORAGE_TIMEOUT_S = (15, 120)  # to connect; between two pieces

# What a status means and what to do about it; "{wait}" is filled from the Retry-After header.
_ADVICE = {
    400: "Kaggle refused the request; expected valid names and, for an upload, a submission left "
    "for today",
    401: "Kaggle does not accept these credentials; make a new token in the account's settings "
    "and set it again",
    403: "the account may not do this; accept the competition's rules on its page, and check "
    "that the token allows it",
    404: "Kaggle knows no such thing; check the competition's or kernel's name, and that it is "
    "still open",
    429: "too many requests; run the command again later (Retry-After: {wait})",
}
_SERVER_FAULT = "Kaggle's server failed; try again in a few minutes"
_OTHER = "Kaggle refused the request"
_LONGEST_QUOTE = 200  # characters of a server's message; longer ones are web pages
_SECRET_VARIABLES = ("KAGGLE_API_TOKEN", "KAGGLE_KEY", "KAGGLE_TOKEN")
_SECRET_FILES = ("kaggle.json", "access_token", "access_token.txt", "credentials.json")
_SECRET_KEYS = ("key", "token", "access_token", "refresh_token")
_SHORTEST_SECRET = 8  # characters; a shorter value would blank out ordinary words


@dataclass(frozen=True)
class KaggleSession:
    """An authenticated client, its user's name, and what is done with it."""

    api: Any  # KaggleApi, whose import is heavy and untyped
    username: str
    action: str  # the start of every line that is logged or raised ("upload a.csv to …")
    policy: RetryPolicy  # of requests that do no harm; a server's longer waits are not waited for

    def own(self, name: str) -> str:
        """Return "owner/slug" of a kernel or dataset; a slug alone is one's own."""
        return name if "/" in name else f"{self.username}/{name}"

    def call(self, service: str, method: str, facts: Mapping[str, Any]) -> Any:
        """Call a method of a service, such as "kernels" and "get_kernel", with its JSON's keys."""
        api = _APIS[service]
        types = import_module(f"kagglesdk.{service}.types.{api}_service")
        request = getattr(types, f"Api{method.title().replace('_', '')}Request").from_dict(facts)
        with self.api.build_kaggle_client() as client:
            return getattr(getattr(getattr(client, service), f"{api}_client"), method)(request)


@contextmanager
def kaggle_session(action: str, policy: RetryPolicy = POLICY) -> Iterator[KaggleSession]:
    """Yield an authenticated client; whatever goes wrong in the block becomes one line.

    What the client prints on standard output is caught, and shown nowhere: it may hold signed
    addresses and, where VERBOSE=1 is set, authorization headers.

    Raises:
        PipelineError: no or refused credentials, a refused request, no connection, or a fault of
            the client. Its cause is cut off, because the client's errors hold the credentials.
    """
    try:
        with redirect_stdout(io.StringIO()):
            yield _log_in(action, policy)
    except PipelineError as error:
        raise type(error)(redact(str(error))) from None
    except SystemExit as error:
        raise PipelineError(f"{action}: the Kaggle client gave up (exit {error.code})") from None
    except Exception as error:
        raise PipelineError(redact(str(_explain(error, action)))) from None


def _log_in(action: str, policy: RetryPolicy) -> KaggleSession:
    # Its import calls `basicConfig` where VERBOSE=1 is set, and would log signed addresses; that
    # leaves alone what has a handler.
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)
    try:
        api = _limited_client()
    finally:
        logging.getLogger().removeHandler(silent)
    key_file = Path(api.config)
    try:
        api.authenticate()
    except (SystemExit, TypeError):  # the latter where a key file is a list
        found = f"{key_file} does not hold them" if key_file.exists() else "none found or accepted"
        raise PipelineError(f"{action}: no Kaggle credentials: {found}; {_HOW_TO_LOG_IN}") from None
    user = api.config_values.get(api.CONFIG_NAME_USER, "")
    return KaggleSession(api, user, action, policy)


def _limited_client() -> Any:
    from kaggle.api.kaggle_api_extended import KaggleApi
    from requests.adapters import HTTPAdapter

    class LimitedAdapter(HTTPAdapter):
        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            options["timeout"] = options.get("timeout") or ANSWER_WITHIN_S
            return super().send(request, *args, **options)

    class LimitedApi(KaggleApi):
        def build_kaggle_client(self) -> Any:
            client = super().build_kaggle_client()
            http = client.http_client().__enter__()
            for scheme in ("http://", "https://"):
                http._session.mount(scheme, LimitedAdapter())  # there is no setting for it
            return client

    return LimitedApi()


def ask(session: KaggleSession, call: Callable[[], T]) -> T:
    """Call the client where a repetition does no harm; PipelineError: refused, or no tries left."""

    def attempt() -> T:
        try:
            return call()
        except (PipelineError, RetryableError):
            raise
        except Exception as error:
            reason, header = _passing_fault(error)
            asked_s = retry_after_s(header)
            is_long = asked_s is not None and asked_s > session.policy.longest_asked_wait_s
            if not reason or is_long:
                raise _explain(error, session.action) from None
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
                raise _explain(error, session.action, in_doubt=in_doubt) from None
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


def _explain(error: BaseException, action: str, *, in_doubt: str = "") -> PipelineError:
    """Return the one-line error for what the client raised while doing `action`.

    `in_doubt` is added where the request may have been acted on.
    """
    from requests.exceptions import RequestException

    answer, network = _http_answer(error), network_fault(error, "Kaggle")
    if answer is not None:
        status, retry_after, said = answer
        advice = _ADVICE.get(status, _SERVER_FAULT if status >= 500 else _OTHER)
        advice = advice.format(wait=one_line(retry_after) or "a few minutes")
        line = f"HTTP {status}: {advice}"
        line += f"; Kaggle says: {said}" if said else ""
    elif network:
        line = f"{network}; check the network and proxy settings and try again"
    else:
        # What `requests` says may quote signed addresses and headers.
        said = "" if isinstance(error, RequestException) else f": {one_line(str(error))}"
        line = f"the Kaggle client failed: {type(error).__name__}{said}"
    doubt = f"; {in_doubt}" if in_doubt and not never_acted_on(error) else ""
    return PipelineError(f"{action}: {line}{doubt}")


def never_acted_on(error: BaseException) -> bool:
    """Tell whether Kaggle has certainly not done what the failed request asked for."""
    status = status_of(error)
    if status is not None:
        return status < 500
    return network_fault(error, "Kaggle").startswith(UNREACHED)


def _passing_fault(error: BaseException) -> tuple[str, str]:
    """Return what went wrong, "" unless another try may mend it, and the Retry-After header."""
    if answer := _http_answer(error):
        status, retry_after, _ = answer
        return f"HTTP {status}" if status in PASSING_STATUS else "", retry_after
    return "" if certificate_refused(error) else network_fault(error, "Kaggle"), ""


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status with which Kaggle refused, if it answered at all."""
    answer = _http_answer(error)
    return answer and answer[0]


def one_line(text: str, longest: int = _LONGEST_QUOTE) -> str:
    """Return others' text on one line, visible, without credentials, cut to a quotable length."""
    flat = escaped(" ".join(redact(text).split()))
    return flat if len(flat) <= longest else f"{flat[:longest]}…"


def _http_answer(error: BaseException) -> tuple[int, str, str] | None:
    """Return the status, the Retry-After header and what Kaggle said, if it answered at all."""
    from requests.exceptions import HTTPError

    for link in chain(error):
        # A refused Response is falsy, so it is compared with None.
        if isinstance(link, HTTPError) and link.response is not None:
            status: int = link.response.status_code
            try:
                body = json.loads(link.response.text)
                code, said = body.get("code"), body.get("message")
            except (ValueError, RecursionError, AttributeError):  # no JSON, or no object
                code = said = None
            if status < 400 and isinstance(code, int):
                status = code  # some refusals come as a 200 whose body holds the status
            quoted = one_line(said) if isinstance(said, str) else ""
            return status, link.response.headers.get("Retry-After", ""), quoted
    return None


def known_secrets() -> frozenset[str]:
    """Return the credentials that lie in the environment and in Kaggle's key files."""
    secrets = {os.environ.get(name, "") for name in _SECRET_VARIABLES}
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    folders = (home / ".kaggle", config / "kaggle", Path(os.environ.get("KAGGLE_CONFIG_DIR", "")))
    files = [folder / name for folder in folders for name in _SECRET_FILES]
    for file in (*files, *map(Path, secrets)):  # a variable may name a token's file
        secrets |= _secrets_of(file)
    return frozenset(value.strip() for value in secrets if len(value.strip()) >= _SHORTEST_SECRET)


def redact(text: str) -> str:
    """Return `text` with every known credential blanked out."""
    for secret in sorted(known_secrets(), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def refuse_secrets(files: Iterable[tuple[object, bytes]]) -> None:
    """Raise a PipelineError that names the first of files (name, content) with a credential."""
    secrets = [secret.encode() for secret in known_secrets()]
    for name, content in files:
        if any(secret in content for secret in secrets):
            raise PipelineError(f"{name}: holds a Kaggle credential of this machine; take it out")


def _secrets_of(file: Path) -> set[str]:
    """Return the secrets in one key file: the values of a JSON object, or the whole text."""
    try:
        text = file.read_text(encoding="utf-8")
        table = json.loads(text) if file.suffix == ".json" else {"key": text}
    except (OSError, ValueError):  # absent, unreadable, not text, or no file name at all
        return set()
    values = [table.get(key) for key in _SECRET_KEYS] if isinstance(table, dict) else []
    return {value for value in values if isinstance(value, str)}
