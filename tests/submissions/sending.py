"""What the tests of sending share: the call, its failure, and answers of the server."""

from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from submissions.upload.ledger import Entry, read_ledger
from tests.fake_kaggle import KEY, Answer
from tests.submissions.fake_competition import CarriedOut

Send = Callable[..., Entry]
DROP = Answer(drop=True)
ACCEPTED_THEN_DROPPED = CarriedOut(drop=True)


def answer(status: int, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"code": status, "message": f"reason {KEY}"}, named)


def failure(send: Send, **options: object) -> str:
    with pytest.raises(PipelineError) as caught:
        send(**options)
    line = str(caught.value)
    assert "\n" not in line
    assert KEY not in line
    return line


def only_entry(ledger: Path) -> Entry:
    (entry,) = read_ledger(ledger)
    return entry
