"""A request to Kaggle that failed: may it have been carried out, and is another try any use?"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from common.errors import PipelineError
from common.kaggle.errors import method_of, refusal
from common.network import PASSING_STATUS, UNREACHED, certificate_refused, network_fault
from common.network import retry_after_s as seconds_of

# Statuses of a server that has ended with the request; a gateway's (502, 504) say nothing of the
# server behind it, which may still be at work.
_ENDED = frozenset({500, 503})


class Outcome(NamedTuple):
    """What a failed request leaves behind.

    Attributes:
        may_have_arrived: Kaggle may have made the submission although it did not say so.
        try_again: another try may succeed, if nothing has arrived.
        retry_after_s: seconds that Kaggle asks to wait, or None.
        reason: what went wrong, in a few words; "" where nobody tries again.
    """

    may_have_arrived: bool
    try_again: bool
    retry_after_s: float | None = None
    reason: str = ""


REFUSED = Outcome(may_have_arrived=False, try_again=False)
NOT_SENT = Outcome(may_have_arrived=False, try_again=True, reason="the file did not arrive whole")
UNKNOWN = Outcome(may_have_arrived=True, try_again=False)


class ClientError(PipelineError):
    """One request to Kaggle failed; `outcome` says what that means."""

    def __init__(self, line: str, outcome: Outcome = REFUSED) -> None:
        super().__init__(line)
        self.outcome = outcome


@dataclass
class Watch:
    """What is known so far about the request under way."""

    outcome: Outcome = REFUSED  # before the request, nothing but the login can fail


@contextmanager
def client_faults() -> Iterator[Watch]:
    """Yield a watch; a PipelineError of the block becomes a ClientError with the watch's outcome.

    Raises:
        ClientError: with the same line, and the outcome.
    """
    watch = Watch()
    try:
        yield watch
    except PipelineError as error:
        raise ClientError(str(error), watch.outcome) from None


@contextmanager
def watched(watch: Watch, *, creates: bool) -> Iterator[None]:
    """Keep the outcome of a call of the client, which is the block.

    Args:
        watch: where to.
        creates: whether the call may end in a submission.
    """
    watch.outcome = UNKNOWN if creates else NOT_SENT
    try:
        yield
    except Exception as error:
        watch.outcome = _outcome(error, creates=creates and was_creating(error))
        raise


def _outcome(error: BaseException, *, creates: bool) -> Outcome:
    """Judge what the client raised; `creates`: the request would have made a submission."""
    answer = refusal(error)
    if answer is not None:
        status, header = answer
        if creates and status >= 500:
            return Outcome(True, status in _ENDED, seconds_of(header), f"HTTP {status}")
        return Outcome(False, status in PASSING_STATUS, seconds_of(header), f"HTTP {status}")
    fault = network_fault(error, "Kaggle")
    if fault.startswith(UNREACHED) or not creates:
        return Outcome(False, bool(fault) and not certificate_refused(error), reason=fault)
    return UNKNOWN


def was_creating(error: BaseException) -> bool:
    """Tell from the failed request's address whether it was the last of a submission's requests.

    The client sends three: for an address to upload to, the file, and the submission itself.
    Where the error holds no request it is taken for the last.
    """
    return method_of(error) in ("CreateSubmission", "")
