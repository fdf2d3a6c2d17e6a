"""The fake competition of tests/submissions serves these tests as well."""

from tests.submissions.conftest import (  # noqa: F401
    begun,
    competition,
    fake_time,
    file,
    ledger,
    said,
    send,
    twice_allowed,
)
