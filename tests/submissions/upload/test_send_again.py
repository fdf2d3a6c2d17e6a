"""Files that were sent before, by a process that ended well, was killed, or runs beside."""

import threading
from pathlib import Path

import pytest

from common.errors import PipelineError
from submissions.upload.ledger import Entry, put_entry, read_ledger
from submissions.upload.send import Sending, send_once
from tests.submissions.fake_competition import FIRST_REF, FakeCompetition
from tests.submissions.sending import (
    ACCEPTED_THEN_DROPPED,
    DROP,
    Send,
    answer,
    failure,
    only_entry,
)


def test_the_same_content_is_refused_under_any_name(
    competition: FakeCompetition, send: Send, file: Path, ledger: Path
) -> None:
    sent = send()
    copy = file.with_name("copy.csv")
    copy.write_bytes(file.read_bytes())
    before = len(competition.received)

    line = failure(send, path=copy)

    assert f"sent at {sent.time} as submission {FIRST_REF} (pending)" in line
    assert "--force" in line
    assert len(competition.received) == before
    assert only_entry(ledger) == sent


def test_force_sends_again_and_the_two_are_told_apart(
    competition: FakeCompetition, send: Send, ledger: Path, twice_allowed: list[bool]
) -> None:
    twice_allowed.append(True)
    send()
    competition.will_answer("CreateSubmission", ACCEPTED_THEN_DROPPED)
    assert send(force=True).ref == FIRST_REF + 1
    assert [entry.ref for entry in read_ledger(ledger)] == [FIRST_REF, FIRST_REF + 1]
    assert str(competition.submissions[1]["description"]).endswith(" #2]")
    assert f"as submission {FIRST_REF + 1}" in failure(send)


@pytest.mark.parametrize("left", ["nothing", "a failed try"])
def test_what_another_ledger_knows_is_not_sent_again(
    competition: FakeCompetition, send: Send, ledger: Path, left: str
) -> None:
    sent = send("from elsewhere")
    ledger.unlink()
    if left == "a failed try":
        put_entry(ledger, sent.model_copy(update={"status": "failed", "ref": None}))
    line = failure(send)
    assert f"sent at 2026-02-03T04:05:06Z as submission {FIRST_REF} (complete)" in line
    assert len(competition.submissions) == 1
    entry = only_entry(ledger)
    assert (entry.ref, entry.marker, entry.message) == (FIRST_REF, sent.marker, "from elsewhere")
    assert entry.public_score == 0.7125


def test_force_counts_on_from_what_another_ledger_knows(
    competition: FakeCompetition, send: Send, ledger: Path, twice_allowed: list[bool]
) -> None:
    twice_allowed.append(True)
    send()
    ledger.unlink()
    competition.will_answer("CreateSubmission", ACCEPTED_THEN_DROPPED)
    assert send(force=True).ref == FIRST_REF + 1
    assert [entry.ref for entry in read_ledger(ledger)] == [FIRST_REF, FIRST_REF + 1]
    assert str(competition.submissions[1]["description"]).endswith(" #2]")


def test_a_list_that_cannot_be_read_is_waited_for_and_nothing_is_sent_without_it(
    competition: FakeCompetition, send: Send, ledger: Path, said: list[str]
) -> None:
    competition.will_answer("ListSubmissions", *[answer(503)] * 4)
    line = failure(send)
    assert "HTTP 503" in line
    assert line.endswith("gave up after 4 tries; nothing was sent")
    assert not competition.calls("StartSubmissionUpload")
    assert not ledger.exists()
    assert said[0].endswith("submission.csv: HTTP 503; next try in 1 s")
    competition.will_answer("ListSubmissions", answer(500), DROP)
    assert send().ref == FIRST_REF


def test_force_after_a_lost_answer_does_not_take_the_first_for_the_second(
    competition: FakeCompetition, send: Send, ledger: Path
) -> None:
    send()
    competition.will_answer("CreateSubmission", DROP)
    assert "may have arrived" in failure(send, force=True)
    assert [entry.status for entry in read_ledger(ledger)] == ["pending", "sending"]


def test_what_a_killed_process_has_sent_is_found_and_not_sent_again(
    competition: FakeCompetition, send: Send, begun: Entry, ledger: Path
) -> None:
    competition.submit(f"killed {begun.marker}", begun.size_bytes)

    entry = send("another message")

    assert entry == only_entry(ledger)
    assert (entry.ref, entry.status, entry.message) == (FIRST_REF, "complete", "killed")
    assert (entry.public_score, entry.private_score) == (0.7125, 0.7031)
    assert {request.method for request in competition.received} == {"ListSubmissions"}


def test_what_a_killed_process_has_not_sent_is_sent(
    competition: FakeCompetition, send: Send, begun: Entry, ledger: Path
) -> None:
    competition.verdict = {"status": "COMPLETE"}
    assert send("another message").ref == FIRST_REF
    assert only_entry(ledger).message == "another message"
    assert begun.marker in str(competition.submissions[0]["description"])


def test_a_listed_tag_with_another_size_stops_everything(
    competition: FakeCompetition, send: Send, begun: Entry, ledger: Path
) -> None:
    competition.submit(f"killed {begun.marker}", 12)
    assert "with 12 bytes" in failure(send)
    assert only_entry(ledger) == begun


def test_a_submission_far_down_the_list_is_found(
    competition: FakeCompetition, send: Send, begun: Entry, twice_allowed: list[bool]
) -> None:
    twice_allowed.append(True)
    competition.submit(f"killed {begun.marker}", begun.size_bytes)
    for i in range(250):
        competition.submit(f"later {i}", 5)
    assert send().ref == FIRST_REF
    assert not competition.calls("CreateSubmission")


def test_two_at_once_make_one_submission(
    competition: FakeCompetition, send: Send, ledger: Path
) -> None:
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(send().ref)
        except PipelineError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends.count(FIRST_REF) == 1
    assert sum("the same file was sent" in str(end) for end in ends) == 2
    assert len(competition.submissions) == 1
    assert only_entry(ledger).ref == FIRST_REF


def test_a_ledger_that_cannot_be_written_stops_before_anything_is_sent(
    competition: FakeCompetition, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    with pytest.raises(PipelineError, match="cannot be written"):
        send_once(Sending(file, "m", tmp_path / "blocked" / "ledger.jsonl"))
    assert not competition.received


def test_a_damaged_ledger_stops_before_anything_is_sent(
    competition: FakeCompetition, send: Send, ledger: Path
) -> None:
    ledger.parent.mkdir()
    ledger.write_text('{"sha256": "0a", "ref"\n')
    line = failure(send)
    assert f"{ledger}: row 1" in line
    assert not competition.received
    ledger.unlink()
    assert send().ref == FIRST_REF
