"""What the Kaggle client raises, as one line for the user, and texts and files without credentials.

It is the only place that knows the client's kinds of error, and where credentials lie.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from common.errors import PipelineError, escaped
from common.network import PASSING_STATUS, UNREACHED, certificate_refused, chain, network_fault

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


def explain(error: BaseException, action: str, *, in_doubt: str = "") -> PipelineError:
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


def passing_fault(error: BaseException) -> tuple[str, str]:
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
    """Refuse to hand out files, by name and content, that hold a credential of this machine.

    Raises:
        PipelineError: names the first such file, never the credential.
    """
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
