"""Retries end, wait longer each time, and report the error."""

import pytest
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import SSLError, Timeout

from common.errors import PipelineError
from common.http import RetryableError, RetryPolicy, network_fault, retry, retry_after_s


def test_retries_without_progress_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    held = iter([0, 10, 5, 10, 10, 10, 10])
    waits: list[float] = []

    def attempt() -> None:
        raise RetryableError("no luck", retry_after_s=1000.0 if waits else None)

    policy = RetryPolicy(attempts=3, sleep=waits.append)
    with pytest.raises(PipelineError, match="x: no luck; gave up after 3 tries"):
        retry(attempt, what="x", policy=policy, gained=lambda: next(held))
    assert waits == [1, 300]  # the first try brought ten bytes, the others no more than that
    assert caplog.messages[0] == "x: no luck; next try in 1 s"


def test_retry_after_is_a_number_of_seconds() -> None:
    assert retry_after_s("7") == 7.0
    assert retry_after_s("soon") is None


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (NoConnection("Failed to resolve 'x'"), "cannot reach x: its name does not resolve"),
        (NoConnection("[Errno 111] Connection refused"), "cannot reach x: connection refused"),
        (NoConnection("read timed out"), "x did not answer in time"),
        (Timeout("/secret?token=1"), "x did not answer in time"),
        (SSLError("CERTIFICATE_VERIFY_FAILED"), "cannot reach x: its certificate was not accepted"),
        (SSLError("EOF"), "the connection to x was dropped"),
        (ConnectionResetError("reset"), "the connection to x was dropped"),
        (ValueError("no such file"), ""),
    ],
)
def test_network_faults_are_recognised_behind_other_errors(fault: Exception, told: str) -> None:
    try:
        try:
            raise fault
        except Exception as cause:
            raise RuntimeError("the client failed") from cause
    except RuntimeError as error:
        assert network_fault(error, "x") == told
