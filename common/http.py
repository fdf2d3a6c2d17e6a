"""Answers of HTTP servers, bounded in size and in time: no server decides when a command ends."""

import time
from collections.abc import Iterator
from typing import Any

from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError, Timeout
from urllib3.exceptions import HTTPError as TransportError

from common.errors import PipelineError

ANSWER_WITHIN_S = 120.0
MAX_ANSWER_BYTES = 2**27
# A slower server counts as one that does not answer, once it has sent for so long.
MIN_BYTES_PER_S = 1024
SLOW_AFTER_S = 60.0
_PIECE_BYTES = 2**16


def read_pieces(answer: Response, max_bytes: int) -> Iterator[bytes]:
    """Yield the body of an answer, each piece as soon as it is there.

    Args:
        answer: An answer whose body nobody has read.
        max_bytes: The largest body that is accepted.

    Raises:
        PipelineError: The body is larger than `max_bytes`.
        RequestException: The connection breaks, or the server is too slow.
    """
    start_s, n_bytes = time.monotonic(), 0
    try:
        while piece := answer.raw.read1(_PIECE_BYTES, decode_content=True):
            n_bytes += len(piece)
            if n_bytes > max_bytes:
                raise PipelineError(
                    f"a server's answer has over {max_bytes} bytes, more than any that is "
                    "expected; nothing of it was used; check the address and the proxy"
                )
            yield piece
            if time.monotonic() - start_s > SLOW_AFTER_S + n_bytes / MIN_BYTES_PER_S:
                raise Timeout
    except TransportError as error:
        raise ChunkedEncodingError(error) from None


class LimitedAdapter(HTTPAdapter):
    """Gives each request a time, and reads whatever the caller does not stream within limits."""

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        options["timeout"] = options.get("timeout") or ANSWER_WITHIN_S
        answer = super().send(request, *args, **options)
        if answer.is_redirect or not options.get("stream"):
            # `requests` has no public way to give an answer its body.
            answer._content = b"".join(read_pieces(answer, MAX_ANSWER_BYTES))
        return answer


def limited_session() -> Session:
    """Return a session whose answers are bounded, see `LimitedAdapter`."""
    session = Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, LimitedAdapter())
    return session
