"""A time limit on the answers to Kaggle's client, which by itself waits for ever."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ANSWER_WITHIN_S = 120.0


@contextmanager
def answers_within(seconds: float) -> Iterator[None]:
    """Make every request of the block fail that brings nothing for so many seconds.

    The client has no setting for it and makes its sessions by itself, so the one place they all
    pass through, the `requests` adapter, is changed while the block runs. A request with a limit
    of its own keeps it.
    """
    from requests.adapters import HTTPAdapter

    original = HTTPAdapter.send

    def send(adapter: HTTPAdapter, request: Any, *args: Any, **options: Any) -> Any:
        if not args and options.get("timeout") is None:
            options["timeout"] = seconds
        return original(adapter, request, *args, **options)

    HTTPAdapter.send = send  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        HTTPAdapter.send = original  # type: ignore[method-assign]
