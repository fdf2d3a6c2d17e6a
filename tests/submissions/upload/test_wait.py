"""The score is waited for with growing pauses, through the real client."""

from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from submissions.upload.client import COMPETITION, list_submissions
from submissions.upload.ledger import Entry, marker_of, put_entry, read_ledger
from submissions.upload.listed import update_open
from submissions.upload.wait import Pauses, wait_for_score
from tests.fake_kaggle import KEY, Answer
from tests.submissions.conftest import FakeTime
from tests.submissions.fake_competition import FIRST_REF, FakeCompetition

SHA256 = "0123456789abcdef" * 4
MARKER = marker_of(SHA256, 1)
Wait = Callable[..., Entry]


@pytest.fixture
def sent(competition: FakeCompetition, ledger: Path) -> Entry:
    entry = Entry(
        sha256=SHA256,
        size_bytes=5,
        file="submission.csv",
        competition=COMPETITION,
        recipe=None,
        revision=None,
        message="m",
        marker=MARKER,
        ref=competition.submit(f"m {MARKER}", 5),
        time="2026-02-03T04:05:06Z",
        status="pending",
        public_score=None,
        private_score=None,
        error=None,
    )
    put_entry(ledger, entry)
    return entry


@pytest.fixture
def wait(sent: Entry, ledger: Path, fake_time: FakeTime) -> Wait:
    pauses = Pauses(sleep=fake_time.sleep, now=fake_time.now)

    def call(entry: Entry = sent, timeout_s: float = 900, **options: object) -> Entry:
        return wait_for_score(entry, timeout_s=timeout_s, ledger=ledger, pauses=pauses, **options)

    return call


def test_a_score_that_is_there_is_not_waited_for(
    competition: FakeCompetition, wait: Wait, ledger: Path, fake_time: FakeTime
) -> None:
    entry = wait()
    assert (entry.status, entry.public_score, entry.private_score) == ("complete", 0.7125, 0.7031)
    assert read_ledger(ledger) == [entry]
    assert fake_time.slept == []


def test_pauses_grow_up_to_a_bound(
    competition: FakeCompetition, wait: Wait, fake_time: FakeTime
) -> None:
    competition.scored_after = 12
    told: list[tuple[str, int, int]] = []
    entry = wait(progress=lambda *args: told.append(args))
    assert entry.status == "complete"
    assert fake_time.slept[:3] == [3.0, 4.5, 6.75]
    assert fake_time.slept == sorted(fake_time.slept)
    assert fake_time.slept[-1] == 60.0
    assert len(told) == 12
    assert told[2] == ("wait for the score", 7, 901)


def test_time_that_is_over_leaves_the_submission_pending(
    competition: FakeCompetition, wait: Wait, ledger: Path, fake_time: FakeTime
) -> None:
    competition.scored_after = 1000
    assert wait(timeout_s=20).status == "pending"
    assert sum(fake_time.slept) == 20
    assert read_ledger(ledger)[0].status == "pending"


def test_a_submission_that_is_not_listed_yet_is_waited_for(
    competition: FakeCompetition, wait: Wait
) -> None:
    competition.listed_after = 3
    assert wait().public_score == 0.7125


def test_a_submission_in_error_says_why(
    competition: FakeCompetition, wait: Wait, ledger: Path
) -> None:
    competition.verdict = {"status": "ERROR", "errorDescription": f"row 3\nis wrong {KEY}"}
    with pytest.raises(PipelineError) as caught:
        wait()
    assert str(caught.value) == (
        f"submission.csv: submission {FIRST_REF}: Kaggle could not score it: row 3 is wrong ***"
    )
    (entry,) = read_ledger(ledger)
    assert (entry.status, entry.error) == ("error", "row 3 is wrong ***")


def test_a_list_that_fails_meanwhile_is_asked_again(
    competition: FakeCompetition, wait: Wait, fake_time: FakeTime
) -> None:
    busy = Answer(429, {"code": 429, "message": "slow down"}, {"Retry-After": "41"})
    competition.will_answer("ListSubmissions", busy, Answer(500, {}), Answer(drop=True))
    assert wait().status == "complete"
    assert fake_time.slept == [41.0, 4.5, 6.75]


def test_a_list_that_is_refused_says_that_the_file_was_sent(
    competition: FakeCompetition, wait: Wait
) -> None:
    competition.will_answer("ListSubmissions", Answer(403, {"code": 403, "message": "rules"}))
    with pytest.raises(PipelineError, match=f"submission {FIRST_REF} was sent; .*HTTP 403"):
        wait()


def test_a_submission_without_a_number_is_known_by_its_tag(
    competition: FakeCompetition, wait: Wait, sent: Entry
) -> None:
    assert wait(sent.model_copy(update={"ref": None})).ref == FIRST_REF


def test_the_list_completes_open_entries_and_leaves_the_others(
    competition: FakeCompetition, sent: Entry, ledger: Path
) -> None:
    killed = {"marker": "[sha256:bb]", "status": "sending", "ref": None}
    final = {"marker": "[sha256:cc]", "status": "complete", "ref": FIRST_REF, "public_score": 0.5}
    foreign = {"marker": "[sha256:dd]", "competition": "another"}
    others = [sent.model_copy(update=facts) for facts in (killed, final, foreign)]
    for other in others:
        put_entry(ledger, other)
    update_open(ledger, list_submissions(), COMPETITION)
    entries = read_ledger(ledger)
    assert entries[0].public_score == 0.7125
    assert entries[1:] == others


def test_the_list_makes_no_ledger(competition: FakeCompetition, tmp_path: Path) -> None:
    update_open(tmp_path / "none.jsonl", list_submissions(), COMPETITION)
    assert not (tmp_path / "none.jsonl").exists()
