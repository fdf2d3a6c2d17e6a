"""An authenticated session with Kaggle, whose messages contain no secrets.

No other module handles the kinds of errors of Kaggle's client.

Submissions, kernels and datasets are uploaded in three steps. `ask` reads the state of Kaggle,
`upload_file` uploads the files, and `send_once` sends the one request that uses them. If the answer
is lost, `send_once` checks whether the request has arrived.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import HTTPError, RequestException

from common.credentials import find_login, key_file, one_line, redact
from common.errors import PipelineError
from common.http import (
    PASSING_STATUS,
    UNREACHED,
    RetryableError,
    RetryPolicy,
    chain,
    network_fault,
    retry,
    retry_after_s,
)
from common.progress import in_one_step, log

T = TypeVar("T")

POLICY = RetryPolicy(attempts=4, first_wait_s=2.0)
# Limit of a request, and between two pieces of its answer.
ANSWER_WITHIN_S = 120.0

_APIS = {
    "blobs": "blob_api",
    "competitions": "competition_api",
    "datasets": "dataset_api",
    "kernels": "kernels_api",
}
_NO_LOGIN = "none found or accepted"
_HOW_TO_LOG_IN = (
    "set KAGGLE_API_TOKEN, or KAGGLE_USERNAME and KAGGLE_KEY, or put access_token with the first, "
    "or kaggle.json with the others into ~/.kaggle (made in the account's settings on kaggle.com)"
)
# Seconds before each check for the result of a request whose answer was lost. Kaggle may still work
# on it. The sum is a little more than a minute.
LOOK_AFTER_S = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_STORAGE_TIMEOUT_S = (15, 120)  # to connect; between two pieces

# Meaning and remedy of each HTTP status. "{wait}" is filled from the Retry-After header.
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


@dataclass
class KaggleSession:
    """A client of Kaggle, and how its requests are reported and repeated."""

    # The start of every line that is logged or raised, for example "upload a.csv to …".
    action: str
    policy: RetryPolicy
    # A KaggleClient, whose import is slow and untyped. Until the login there is none.
    client: Any = None
    username: str = ""

    def with_owner(self, name: str) -> str:
        """Return "owner/slug" of a kernel or dataset. A slug without owner belongs to the user."""
        return name if "/" in name else f"{self.username}/{name}"

    def call(self, service: str, method: str, facts: Mapping[str, Any]) -> Any:
        """Call a method of a service, with the fields of the request by their JSON keys."""
        api = _APIS[service]
        types = import_module(f"kagglesdk.{service}.types.{api}_service")
        request = getattr(types, f"Api{method.title().replace('_', '')}Request").from_dict(facts)
        return getattr(getattr(getattr(self.client, service), f"{api}_client"), method)(request)

    def log_in(self) -> None:
        """Log in with a token, with a key, or as `kaggle auth login` has done before."""
        login = find_login()
        if login.token:
            self.client = _client(api_token=login.token)
            self.username = _user_of(self.client, login.token)
        elif login.username and login.key:
            self.client = _client(username=login.username, password=login.key)
            self.username = login.username
        elif credentials := _saved_credentials():
            self.client = _client(api_token=credentials.get_access_token())
            self.username = credentials.get_username()
        if not self.username:
            is_in_file = not login.token and key_file().exists()
            fault = f"{key_file()} does not contain them" if is_in_file else _NO_LOGIN
            raise PipelineError(f"{self.action}: no Kaggle credentials: {fault}; {_HOW_TO_LOG_IN}")


@contextmanager
def kaggle_session(action: str, policy: RetryPolicy = POLICY) -> Iterator[KaggleSession]:
    """Yield an authenticated session. An error of the block is one line without secrets."""
    session = KaggleSession(action, policy)
    try:
        ask(session, session.log_in)
        with session.client:
            yield session
    # The cause of an error may contain credentials.
    except PipelineError as error:
        raise type(error)(redact(str(error))) from None
    except Exception as error:
        raise PipelineError(redact(str(_explain(error, action)))) from None


class _TimedAdapter(HTTPAdapter):
    """Limits the time of a request, for which the client has no setting."""

    def send(self, *args: Any, **options: Any) -> requests.Response:
        return super().send(*args, **{**options, "timeout": ANSWER_WITHIN_S})


def _client(**login: str) -> Any:
    from kagglesdk import KaggleClient, KaggleEnv

    client = KaggleClient(KaggleEnv.PROD, **login)
    http = client.http_client().__enter__()
    for scheme in ("http://", "https://"):
        http._session.mount(scheme, _TimedAdapter())
    return client


def _saved_credentials() -> Any:
    """Return the credentials of `kaggle auth login`; None without them."""
    from kagglesdk.kaggle_creds import KaggleCredentials

    try:
        return KaggleCredentials.load(_client())
    # A file of another form has none.
    except (AttributeError, TypeError, ValueError):
        return None


def _user_of(client: Any, token: str) -> str:
    """Return the name of the user of a token; "" if Kaggle does not know the token."""
    from kagglesdk.security.types.oauth_service import IntrospectTokenRequest

    request = IntrospectTokenRequest.from_dict({"token": token})
    try:
        answer = client.security.oauth_client.introspect_token(request)
    except Exception as error:
        if is_refused(error, (400, 403, 404)):
            return ""
        raise
    return str(answer.username or "") if answer.active else ""


class Refusal(NamedTuple):
    """An answer with which Kaggle refused a request, or its server failed."""

    status: int
    retry_after: str  # header
    quote: str  # Kaggle's message as the end of a line


def refusal_of(error: BaseException) -> Refusal | None:
    """Return the refusal behind an error of the client; None if Kaggle did not answer."""
    answers = (link.response for link in chain(error) if isinstance(link, HTTPError))
    answer = next((answer for answer in answers if answer is not None), None)
    if answer is None:
        return None
    try:
        content = answer.json()
    except (ValueError, RecursionError):
        content = None
    table = content if isinstance(content, dict) else {}
    # Some answers have these keys in an object "error", or a text there.
    inner = table.get("error", table)
    table = inner if isinstance(inner, dict) else {"message": inner} | table
    # Some refusals come as a 200 whose body has the status.
    code = table.get("code")
    status = (code if isinstance(code, int) else 500) if answer.ok else answer.status_code
    message = one_line(str(table.get("message") or ""))
    quote = f"; Kaggle says: {message}" if message else ""
    return Refusal(status, answer.headers.get("Retry-After", ""), quote)


def ask(session: KaggleSession, call: Callable[[], T]) -> T:
    """Call the client with a request that may be repeated."""

    def attempt() -> T:
        try:
            return call()
        except (PipelineError, RetryableError):
            raise
        except Exception as error:
            refusal, reason = refusal_of(error), network_fault(error, "Kaggle")
            if refusal:
                reason = f"HTTP {refusal.status}" if refusal.status in PASSING_STATUS else ""
            asked_s = retry_after_s(refusal.retry_after) if refusal else None
            if not reason or (asked_s or 0) > session.policy.max_asked_wait_s:
                raise _explain(error, session.action) from None
            quote = refusal.quote if refusal else ""
            raise RetryableError(reason, retry_after_s=asked_s, quote=quote) from None

    advice = "try again in a few minutes"
    return retry(attempt, what=session.action, policy=session.policy, advice=advice)


def send_once(
    session: KaggleSession,
    send: Callable[[], T],
    find_result: Callable[[], T | None],
    in_doubt: str,
) -> T:
    """Send a request that must not act twice.

    It is repeated only if Kaggle has certainly not acted: it was busy (HTTP 429) or not reached.
    After any other failure, `find_result` asks Kaggle for about a minute. If it returns None, the
    error says so, and nothing is sent again.
    """

    def attempt() -> T:
        try:
            return send()
        # The caller has read a refusal in the answer.
        except PipelineError:
            raise
        except Exception as error:
            if never_acted_on(error):
                raise
            log.info(f"{session.action}: no clear answer; asking Kaggle whether it has arrived")
            result = _look(session, find_result)
            if result is None:
                raise PipelineError(f"{_explain(error, session.action)}; {in_doubt}") from None
            return result

    return ask(session, attempt)


def upload_file(
    session: KaggleSession, path: Path, service: str, method: str, fields: Mapping[str, str]
) -> str:
    """Upload a file to Kaggle's storage, and return the token of the upload."""
    about = path.stat()
    facts = {"contentLength": about.st_size, "lastModifiedEpochSeconds": int(about.st_mtime)}

    def attempt() -> str:
        upload = session.call(service, method, {**fields, **facts})
        step = in_one_step(f"upload {path.name}")
        with step, path.open("rb") as stream:
            answer = requests.put(upload.create_url, data=stream, timeout=_STORAGE_TIMEOUT_S)
        status = answer.status_code
        if status in PASSING_STATUS:
            raise RetryableError(f"Kaggle's storage answers HTTP {status}")
        if status not in (200, 201):
            raise PipelineError(
                f"{session.action}: Kaggle's storage refused {path.name}: HTTP {status}; nothing "
                "was made of it; try again"
            )
        return str(upload.token)

    return ask(session, attempt)


def _look(session: KaggleSession, find_result: Callable[[], T | None]) -> T | None:
    for pause_s in LOOK_AFTER_S:
        session.policy.sleep(pause_s)
        try:
            result = find_result()
        # This check got no answer either, so the next one decides.
        except Exception as error:
            log.debug(f"Kaggle gives no answer:  {type(error).__name__}")
        else:
            if result is not None:
                return result
    return None


def _explain(error: BaseException, action: str) -> PipelineError:
    refusal, network = refusal_of(error), network_fault(error, "Kaggle")
    if refusal:
        advice = _ADVICE.get(refusal.status, _SERVER_FAULT if refusal.status >= 500 else _OTHER)
        advice = advice.format(wait=one_line(refusal.retry_after) or "a few minutes")
        line = f"HTTP {refusal.status}: {advice}{refusal.quote}"
    elif network:
        line = f"{network}; check the network and proxy settings and try again"
    # For example, the answer contains a state that this version of the client does not know.
    elif isinstance(error, LookupError | TypeError | AttributeError):
        line = f"the Kaggle client does not understand the answer: {one_line(repr(error))}"
        line += "; a newer one may: pip install --upgrade kagglesdk"
    else:
        # Messages of `requests` may quote signed addresses and headers.
        quote = "" if isinstance(error, RequestException) else f": {one_line(str(error))}"
        line = f"the Kaggle client failed: {type(error).__name__}{quote}"
    return PipelineError(f"{action}: {line}")


def is_refused(error: BaseException, statuses: Container[int]) -> bool:
    """Return whether Kaggle refused a request with one of some HTTP statuses."""
    refusal = refusal_of(error)
    return refusal is not None and refusal.status in statuses


def never_acted_on(error: BaseException) -> bool:
    """Return whether Kaggle has certainly not acted on a failed request."""
    if refusal := refusal_of(error):
        return refusal.status < 500
    return network_fault(error, "Kaggle").startswith(UNREACHED)
