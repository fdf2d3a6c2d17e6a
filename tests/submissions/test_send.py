"""Whatever fails between the real client and a server of ours: at most one submission is made."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from data.errors import PipelineError
from data.fetch.retry import Patience
from submissions.ledger import Entry, hash_of, marker_of, put_entry, read_ledger
from submissions.send import LOOK_AFTER_S, Sending, send_once
from submissions.upload import COMPETITION
from tests.fake_kaggle import KEY, Answer, clear_credentials, point_client_at
from tests.submissions.conftest import FakeTime
from tests.submissions.fake_competition import FIRST_REF, CarriedOut, FakeCompetition

Send = Callable[..., Entry]
DROP = Answer(drop=True)
ACCEPTED_THEN_DROPPED = CarriedOut(drop=True)


def answer(status: int, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"code": status, "message": f"reason {KEY}"}, named)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "submission.csv"
    path.write_text("ID,TopConfigs\ntile:xla:a,0;1;2;3;4\n" * 4000)
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "submissions.jsonl"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def send(file: Path, ledger: Path, fake_time: FakeTime, said: list[str]) -> Send:
    def call(message: str = "first try", *, path: Path = file, **options: object) -> Entry:
        patience = Patience(attempts=4, sleep=fake_time.sleep)
        return send_once(
            Sending(path, message, ledger, patience=patience, say=said.append, **options)
        )

    return call


@pytest.fixture
def begun(file: Path, ledger: Path) -> Entry:
    """What a process leaves that was killed while it sent the file."""
    sha256 = hash_of(file)
    entry = Entry(
        sha256=sha256,
        size_bytes=file.stat().st_size,
        file=file.name,
        competition=COMPETITION,
        recipe="cpu",
        revision=None,
        message="killed",
        marker=marker_of(sha256, 1),
        ref=None,
        time="2026-02-03T04:05:06Z",
        status="sending",
        public_score=None,
        private_score=None,
        error=None,
    )
    put_entry(ledger, entry)
    return entry


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


def test_a_submission_arrives_with_its_tag_and_is_noted(
    competition: FakeCompetition, send: Send, file: Path, ledger: Path
) -> None:
    entry = send(f"my {KEY} words", recipe="cpu", revision="abc123")

    (made,) = competition.submissions
    tag = f"[sha256:{hash_of(file)[:12]}]"
    assert made["description"] == f"my *** words {tag}"
    assert [request.method for request in competition.received] == [
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


def test_missing_credentials_are_noted_and_may_be_mended(
    competition: FakeCompetition,
    send: Send,
    ledger: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clear_credentials(monkeypatch, tmp_path / "home")
    assert "no Kaggle credentials" in failure(send)
    assert only_entry(ledger).status == "failed"
    assert not competition.received


@pytest.mark.parametrize("method", ["StartSubmissionUpload", "CreateSubmission"])
def test_too_many_requests_are_waited_for(
    competition: FakeCompetition, send: Send, method: str, fake_time: FakeTime, said: list[str]
) -> None:
    competition.will_answer(method, answer(429, Retry_After="37"), answer(429))
    assert send().ref == FIRST_REF
    assert fake_time.slept == [37.0, 2.0]
    assert "next try in 37 s" in said[0]
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


@pytest.mark.parametrize("listed_after", [0, len(LOOK_AFTER_S) - 1])
def test_an_answer_that_is_lost_is_looked_up(
    competition: FakeCompetition, send: Send, ledger: Path, listed_after: int
) -> None:
    competition.will_answer("CreateSubmission", ACCEPTED_THEN_DROPPED)
    competition.listed_after = listed_after  # the list may lag behind
    assert send().ref == FIRST_REF
    assert only_entry(ledger).status == "complete"
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
    competition.will_answer("CreateSubmission", CarriedOut(503, {}))
    assert send().ref == FIRST_REF
    assert len(competition.calls("CreateSubmission")) == 1


def test_an_answer_that_comes_too_late_is_looked_up(
    competition: FakeCompetition, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("submissions.upload.ANSWER_WITHIN_S", 0.3)
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
    competition.will_answer("ListSubmissions", *[answer(503)] * 2 * len(LOOK_AFTER_S))
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
    assert "connection refused" in failure(send)
    assert only_entry(ledger).status == "failed"
    assert not competition.received


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
