"""The real client sends to a server of ours: what is refused, and what is tried again."""

from pathlib import Path

import pytest

from submissions.upload.client import COMPETITION
from submissions.upload.ledger import hash_of
from tests.fake_kaggle import KEY, clear_credentials
from tests.submissions.conftest import FakeTime
from tests.submissions.fake_competition import FIRST_REF, CarriedOut, FakeCompetition
from tests.submissions.sending import DROP, Send, answer, failure, only_entry


def test_a_submission_arrives_with_its_tag_and_is_noted(
    competition: FakeCompetition, send: Send, file: Path, ledger: Path
) -> None:
    entry = send(f"my {KEY} words", recipe="cpu", revision="abc123")

    (made,) = competition.submissions
    tag = f"[sha256:{hash_of(file)[:12]}]"
    assert made["description"] == f"my *** words {tag}"
    assert [request.method for request in competition.received] == [
        "ListSubmissions",
        "StartSubmissionUpload",
        "PUT",
        "CreateSubmission",
    ]
    assert entry == only_entry(ledger)
    assert entry.model_dump(exclude={"time"}) == {
        "sha256": hash_of(file),
        "size_bytes": file.stat().st_size,
        "file": "submission.csv",
        "competition": COMPETITION,
        "recipe": "cpu",
        "revision": "abc123",
        "message": "my *** words",
        "marker": tag,
        "ref": FIRST_REF,
        "status": "pending",
        "public_score": None,
        "private_score": None,
        "error": None,
    }
    assert entry.time.endswith("Z")


def test_the_entry_is_written_before_the_file_is_sent(
    competition: FakeCompetition, send: Send, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    act = competition.act

    def noting(method: str, path: str, body: bytes) -> object:
        if method != "ListSubmissions":
            seen.append(only_entry(ledger).status)
        return act(method, path, body)

    monkeypatch.setattr(competition, "act", noting)
    send()
    assert seen == ["sending"] * 3


@pytest.mark.parametrize("status", [400, 401, 403, 404])
@pytest.mark.parametrize("method", ["StartSubmissionUpload", "CreateSubmission"])
def test_a_refusal_is_final_and_noted(
    competition: FakeCompetition, send: Send, ledger: Path, method: str, status: int
) -> None:
    competition.will_answer(method, answer(status))

    line = failure(send)

    assert f"HTTP {status}" in line
    assert "Kaggle says: reason ***" in line
    entry = only_entry(ledger)
    assert (entry.status, entry.ref, entry.error) == ("failed", None, line)
    assert not competition.submissions
    assert len(competition.calls(method)) == 1
    assert send().ref == FIRST_REF  # the cause is mended: it may be sent
    assert only_entry(ledger).error is None


def test_missing_credentials_leave_no_line_since_nothing_was_tried(
    competition: FakeCompetition,
    send: Send,
    ledger: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clear_credentials(monkeypatch, tmp_path / "home")
    assert "no Kaggle credentials" in failure(send)
    assert not ledger.exists()
    assert not competition.received


@pytest.mark.parametrize("method", ["StartSubmissionUpload", "CreateSubmission"])
def test_too_many_requests_are_waited_for(
    competition: FakeCompetition, send: Send, method: str, fake_time: FakeTime, said: list[str]
) -> None:
    competition.will_answer(method, answer(429, Retry_After="37"), answer(429))
    assert send().ref == FIRST_REF
    assert fake_time.slept == [37.0, 2.0]
    assert said[0].endswith("submission.csv: HTTP 429; next try in 37 s")
    assert KEY not in "".join(said)


def test_a_long_wait_is_left_to_the_user(
    competition: FakeCompetition, send: Send, fake_time: FakeTime
) -> None:
    competition.will_answer("CreateSubmission", answer(429, Retry_After="86400"))
    assert "wait 86400 seconds" in failure(send)
    assert fake_time.slept == []


def test_waiting_has_an_end(competition: FakeCompetition, send: Send, fake_time: FakeTime) -> None:
    competition.will_answer("StartSubmissionUpload", *[answer(429, Retry_After="200")] * 9)
    assert "gave up after 4 tries" in failure(send)
    assert fake_time.slept == [200.0] * 3


@pytest.mark.parametrize("method", ["StartSubmissionUpload", "CreateSubmission", "PUT"])
def test_two_server_faults_are_overcome(
    competition: FakeCompetition, send: Send, method: str
) -> None:
    competition.will_answer(method, answer(500), answer(500))
    assert send().status == "pending"
    assert len(competition.calls(method)) == 3
    assert len(competition.submissions) == 1


def test_a_server_that_stays_at_fault_ends_in_one_line(
    competition: FakeCompetition, send: Send, ledger: Path
) -> None:
    competition.will_answer("PUT", *[answer(500)] * 9)
    line = failure(send)
    assert "storage refused it" in line
    assert "gave up after 4 tries" in line
    assert only_entry(ledger).status == "failed"
    assert not competition.calls("CreateSubmission")


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_fault_after_the_submission_was_made(
    competition: FakeCompetition, send: Send, ledger: Path, status: int
) -> None:
    competition.will_answer("CreateSubmission", CarriedOut(status, {}))
    entry = send()
    assert entry.ref == FIRST_REF
    assert entry == only_entry(ledger)
    assert len(competition.calls("CreateSubmission")) == 1


def test_a_connection_cut_in_the_midst_of_the_file(
    competition: FakeCompetition, send: Send
) -> None:
    competition.will_answer("PUT", DROP)
    assert send().ref == FIRST_REF
    assert len(competition.calls("PUT")) == 2
