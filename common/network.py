"""What network clients raise and answer, in words: for downloads and for Kaggle's client."""

from collections.abc import Iterator

UNREACHED = "cannot reach"
# Answers that another try may mend: the server is busy, restarting or out of patience.
PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those it was raised from: clients hide some behind others."""
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def network_fault(error: BaseException, server: str) -> str:
    """Name the kind of network fault behind `error`; "" if it is of another kind.

    Nothing of the error's own text is quoted: it may hold signed addresses.
    """
    from requests.exceptions import ChunkedEncodingError, SSLError, Timeout
    from requests.exceptions import ConnectionError as NoConnection

    for link in chain(error):
        if isinstance(link, SSLError) and certificate_refused(link):
            return f"{UNREACHED} {server}: its certificate was not accepted"
        if isinstance(link, Timeout):
            return f"{server} did not answer in time"
        if isinstance(link, NoConnection | ConnectionError | ChunkedEncodingError):
            text = str(link)
            if "timed out" in text:
                return f"{server} did not answer in time"
            if "refused" in text or "resolve" in text:
                why = "connection refused" if "refused" in text else "its name does not resolve"
                return f"{UNREACHED} {server}: {why}"
            return f"the connection to {server} was dropped"
    return ""


def certificate_refused(error: BaseException) -> bool:
    """Tell whether the server's certificate was not accepted, which no other try will mend."""
    from requests.exceptions import SSLError

    return any(isinstance(link, SSLError) and "CERTIFICATE" in str(link) for link in chain(error))


def retry_after_s(header: str) -> float | None:
    """Read a Retry-After header, a number of seconds or a date; None if it is neither."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return Retry().parse_retry_after(header)
    except (InvalidHeader, ValueError, OverflowError):
        return None
