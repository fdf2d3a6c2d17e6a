"""What the Kaggle client raises, as one line for the user: the only place that knows its kinds."""

import json
from collections.abc import Callable, Collection, Container

from common.errors import PipelineError
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
    429: "too many requests; wait {wait} and run the command again",
}
_SERVER_FAULT = "Kaggle's server failed; try again in a few minutes"
_OTHER = "Kaggle refused the request"
_LONGEST_QUOTE = 200  # characters of a server's message; longer ones are web pages


def explain(error: BaseException, action: str, *, in_doubt: str = "") -> PipelineError:
    """Return the one-line error for what the client raised while doing `action`.

    `in_doubt` is added where it is unknown whether Kaggle acted on the request: a dropped
    connection, a server fault, an answer that cannot be read. The line may still quote a secret
    that the server or the client echoed: the caller redacts it.
    """
    doubt = f"; {in_doubt}" if in_doubt else ""
    answer = _http_answer(error)
    if answer is not None:
        status, retry_after, said = answer
        advice = _ADVICE.get(status, _SERVER_FAULT if status >= 500 else _OTHER)
        advice = advice.format(wait=_waiting_time(retry_after))
        quoted = f"; Kaggle says: {said}" if said else ""
        unknown = doubt if status >= 500 else ""
        return PipelineError(f"{action}: HTTP {status}: {advice}{quoted}{unknown}")
    network = network_fault(error, "Kaggle")
    if network:
        unknown = "" if network.startswith(UNREACHED) else doubt
        return PipelineError(
            f"{action}: {network}; check the network and proxy settings and try again{unknown}"
        )
    name = type(error).__name__
    return PipelineError(
        f"{action}: the Kaggle client failed: {name}: {one_line(str(error))}{doubt}"
    )


def passing_fault(error: BaseException) -> tuple[str, str] | None:
    """Return what went wrong and the Retry-After header, if another try may mend it; else None."""
    answer = _http_answer(error)
    if answer is not None:
        status, retry_after, _ = answer
        return (f"HTTP {status}", retry_after) if status in PASSING_STATUS else None
    fault = network_fault(error, "Kaggle")
    return (fault, "") if fault and not certificate_refused(error) else None


def refusal(error: BaseException) -> tuple[int, str] | None:
    """Return the HTTP status and the Retry-After header ("" = none), if Kaggle answered at all."""
    answer = _http_answer(error)
    return answer and answer[:2]


def method_of(error: BaseException) -> str:
    """Return the method that the failed request behind `error` called, such as "SaveKernel".

    It is "" where the error holds no request.
    """
    for link in chain(error):
        address = getattr(getattr(link, "request", None), "url", None)
        if address:
            return str(address).partition("?")[0].rpartition("/")[2]
    return ""


def acted(methods: Container[str], begun: Collection[str]) -> Callable[[BaseException], bool]:
    """Return what tells whether a failed request may have been acted on, as far as is known.

    Args:
        methods: that change something, such as "SaveKernel".
        begun: of those, the ones called so far; an error that holds no request is one of them.
    """

    def may_have_acted(error: BaseException) -> bool:
        method = method_of(error)
        return method in methods or (method == "" and bool(begun))

    return may_have_acted


def one_line(text: str) -> str:
    """Return `text` on one line, cut to a quotable length."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST_QUOTE else f"{flat[:_LONGEST_QUOTE]}…"


def _waiting_time(retry_after: str) -> str:
    """Word a Retry-After header: a number of seconds, or a date."""
    if not retry_after:
        return "a few minutes"
    return f"{retry_after} seconds" if retry_after.isdigit() else f"until {one_line(retry_after)}"


def _http_answer(error: BaseException) -> tuple[int, str, str] | None:
    """Return status, Retry-After and message of the refusal behind `error`, if there is one."""
    from requests.exceptions import HTTPError

    for link in chain(error):
        # A refused Response is falsy, so it is compared with None.
        if isinstance(link, HTTPError) and link.response is not None:
            response = link.response
            body = _json_object(response.text)
            status: int = response.status_code
            code, said = body.get("code"), body.get("message")
            if status < 400 and isinstance(code, int):
                status = code  # some refusals come as a 200 whose body holds the status
            quoted = one_line(said) if isinstance(said, str) else ""
            return status, response.headers.get("Retry-After", ""), quoted
    return None


def _json_object(text: str) -> dict[str, object]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
