"""What the Kaggle client raises, as one line for the user: the only place that knows its kinds."""

import json

from common.errors import PipelineError, escaped
from common.kaggle.secrets import redact
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
