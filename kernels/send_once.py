"""Send a request that must not be sent twice: a lost answer is resolved by asking, or told."""

from collections.abc import Callable
from typing import TypeVar

from data.fetch.retry import Patience
from data.network import UNREACHED, retry_after_s
from kernels.client_errors import passing_fault

T = TypeVar("T")

ASKS = 3  # after a lost answer, which Kaggle may still be working on
LONGEST_WAIT_S = 120.0  # that a server may ask for before the user is told instead
PUSH_PATIENCE = Patience(attempts=4, first_wait_s=2.0)


def send_once(
    send: Callable[[], T],
    arrived: Callable[[], T | None],
    *,
    what: str,
    patience: Patience,
    say: Callable[[str], None],
) -> T:
    """Send a request; send it again only where the one before is known not to have been acted on.

    A refusal for now (HTTP 429) and a server that was not reached are certain. After a server's
    fault (HTTP 5xx) Kaggle is asked, and the request is sent again if it says that nothing came. A
    dropped connection is never answered by sending again: the request may still be on its way.

    Args:
        send: makes the request.
        arrived: asks Kaggle what the request has made; None if nothing.
        what: start of every line said.
        patience: how often, and with which waits.
        say: told about each failure.

    Raises:
        Exception: as `send` raised last; the caller words it, and the doubt that it leaves.
    """
    failures = 0
    while True:
        try:
            return send()
        except Exception as error:
            fault = passing_fault(error)
            if fault is None:
                raise
            reason, header = fault
            certain = reason == "HTTP 429" or reason.startswith(UNREACHED)
            if not certain:
                try:
                    found = _ask(arrived, patience, asks=1 if reason.startswith("HTTP") else ASKS)
                except Exception:  # Kaggle does not answer that either: the doubt stays
                    raise error from None
                if found is not None:
                    say(f"{what}: {reason}, but Kaggle has received it")
                    return found
            failures += 1
            asked_s = retry_after_s(header)
            too_long = asked_s is not None and asked_s > LONGEST_WAIT_S
            may_repeat = certain or reason.startswith("HTTP")
            if not may_repeat or too_long or failures >= patience.attempts:
                raise
            wait_s = patience.wait_s(failures, asked_s)
            say(f"{what}: {reason}; next try in {wait_s:.0f} s")
            patience.sleep(wait_s)


def _ask(arrived: Callable[[], T | None], patience: Patience, *, asks: int) -> T | None:
    """Ask a few times whether a request has been acted on; None if not."""
    for number in range(1, asks + 1):
        patience.sleep(patience.wait_s(number, None))
        found = arrived()
        if found is not None:
            return found
    return None
