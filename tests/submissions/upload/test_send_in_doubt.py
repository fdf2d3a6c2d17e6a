"""Answers that are lost: whatever fails, at most one submission is made."""

from pathlib import Path

import pytest

from common.kaggle.send_once import LOOK_AFTER_S
from tests.fake_kaggle import Answer, point_client_at
from tests.submissions.conftest import FakeTime
from tests.submissions.fake_competition import FIRST_REF, CarriedOut, FakeCompetition
from tests.submissions.sending import ACCEPTED_THEN_DROPPED, DROP, Send, answer, failure, only_entry


@pytest.mark.parametrize("listed_after", [0, len(LOOK_AFTER_S) - 1])
def test_an_answer_that_is_lost_is_looked_up(
    competition: FakeCompetition, send: Send, ledger: Path, listed_after: int
) -> None:
    competition.will_answer("CreateSubmission", ACCEPTED_THEN_DROPPED)
    competition.listed_after = listed_after + 1  # the list may lag behind
    assert send().ref == FIRST_REF
    assert only_entry(ledger).status == "complete"
    assert len(competition.calls("CreateSubmission")) == 1


@pytest.mark.parametrize("status", [500, 503])
def test_nothing_is_sent_again_until_the_list_had_a_minute_to_show_it(
    competition: FakeCompetition,
    send: Send,
    ledger: Path,
    fake_time: FakeTime,
    status: int,
) -> None:
    competition.will_answer("CreateSubmission", CarriedOut(status, {}))
    competition.is_listed = lambda: fake_time.now_s >= 60
    assert send().ref == FIRST_REF
    assert only_entry(ledger).ref == FIRST_REF
    assert len(competition.calls("CreateSubmission")) == 1


@pytest.mark.parametrize("body", ["<html>maintenance</html>", [], {"ref": "no number"}])
def test_an_answer_that_cannot_be_read_is_looked_up(
    competition: FakeCompetition, send: Send, body: object
) -> None:
    competition.will_answer("CreateSubmission", CarriedOut(body=body))
    assert send().ref == FIRST_REF
    assert len(competition.calls("CreateSubmission")) == 1


def test_a_client_that_repeats_requests_by_itself_is_kept_from_it(
    competition: FakeCompetition, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kaggle.api.kaggle_api_extended import KaggleApi

    submit = KaggleApi.competition_submit

    def repeating(api: KaggleApi, *arguments: object, **options: object) -> object:
        return api.with_retry(submit)(api, *arguments, **options)

    monkeypatch.setattr(KaggleApi, "competition_submit", repeating)
    competition.will_answer("CreateSubmission", ACCEPTED_THEN_DROPPED)
    assert send().ref == FIRST_REF
    assert len(competition.calls("CreateSubmission")) == 1


def test_an_answer_that_comes_too_late_is_looked_up(
    competition: FakeCompetition, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("submissions.upload.client.ANSWER_WITHIN_S", 0.3)
    competition.will_answer("CreateSubmission", CarriedOut(hold_s=1.0))
    assert send().ref == FIRST_REF
    assert len(competition.calls("CreateSubmission")) == 1


def test_a_request_that_did_not_arrive_stays_in_doubt_until_the_next_call(
    competition: FakeCompetition, send: Send, ledger: Path
) -> None:
    competition.will_answer("CreateSubmission", DROP)
    line = failure(send)
    assert "the same command again looks there" in line
    assert only_entry(ledger).status == "sending"
    assert len(competition.calls("CreateSubmission")) == 1
    assert send().ref == FIRST_REF
    assert only_entry(ledger).status == "pending"


def test_nothing_is_sent_again_while_the_list_cannot_be_read(
    competition: FakeCompetition, send: Send, ledger: Path
) -> None:
    competition.will_answer("CreateSubmission", CarriedOut(500, {}))
    first = Answer(body={"submissions": []})
    competition.will_answer("ListSubmissions", first, *[answer(503)] * 2 * len(LOOK_AFTER_S))
    assert "HTTP 500" in failure(send)
    assert "HTTP 503" in failure(send)  # the next call sends nothing either
    assert only_entry(ledger).status == "sending"
    assert send().ref == FIRST_REF
    assert len(competition.calls("CreateSubmission")) == 1


def test_a_refusal_that_comes_as_a_value_is_an_error(
    competition: FakeCompetition, send: Send
) -> None:
    competition.will_answer("CreateSubmission", Answer(body={"message": "none left today"}))
    assert "Kaggle says: none left today" in failure(send)


def test_a_submission_without_a_number_is_found_by_its_tag(
    competition: FakeCompetition, send: Send, ledger: Path
) -> None:
    competition.will_answer("CreateSubmission", CarriedOut(body={"message": "Success"}))
    assert send().ref is None
    assert "without a number" in failure(send)
    assert only_entry(ledger).status == "pending"


def test_nobody_listening_leaves_no_doubt(
    competition: FakeCompetition, send: Send, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_client_at("http://127.0.0.1:9", monkeypatch)  # the discard port
    line = failure(send)
    assert "connection refused" in line
    assert "gave up after 4 tries; nothing was sent" in line
    assert not ledger.exists()
    assert not competition.received
