"""The real client sends a submission to a server of ours; every way to fail is one line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from common.errors import PipelineError
from submissions.upload.client import COMPETITION, SubmissionRow, list_submissions, upload
from tests.fake_kaggle import (
    BLOB_TOKEN,
    Answer,
    FakeKaggle,
    clear_credentials,
    point_client_at,
    running_fake_kaggle,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fake_kaggle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeKaggle]:
    with running_fake_kaggle(monkeypatch, tmp_path / "home") as server:
        yield server


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    """About 300 kB, so that the client sends it in several pieces."""
    path = tmp_path / "submission.csv"
    rows = (f"layout:xla:default:graph_{i},{';'.join(map(str, range(1000)))}" for i in range(80))
    path.write_text("ID,TopConfigs\n" + "\n".join(rows) + "\n")
    return path


def failure(path: Path) -> str:
    with pytest.raises(PipelineError) as caught:
        upload(path, "first try")
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_every_byte_arrives_and_the_answer_is_returned(
    fake_kaggle: FakeKaggle, submission: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = upload(submission, "first try")

    assert [request.method for request in fake_kaggle.received] == [
        "StartSubmissionUpload",
        "PUT",
        "CreateSubmission",
    ]
    started, sent, created = fake_kaggle.received
    assert started.path == "/api/v1/competitions.CompetitionApiService/StartSubmissionUpload"
    assert started.json["competitionName"] == COMPETITION
    assert started.json["contentLength"] == submission.stat().st_size
    assert sent.body == submission.read_bytes()
    assert created.json["blobFileTokens"] == BLOB_TOKEN
    assert created.json["submissionDescription"] == "first try"
    assert (result.ref, result.size_bytes) == (4711, submission.stat().st_size)
    assert capsys.readouterr() == ("", "")


def test_progress_is_drawn_on_standard_error_when_asked_for(
    fake_kaggle: FakeKaggle, submission: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upload(submission, "first try", show_progress=True)

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "100%" in printed.err


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "expected valid names"),
        (401, "make a new token"),
        (403, "accept the competition's rules"),
        (404, "check the competition's or kernel's name"),
        (418, "refused the request"),
        (500, "try again in a few minutes"),
        (503, "try again in a few minutes"),
    ],
)
@pytest.mark.parametrize("method", ["StartSubmissionUpload", "CreateSubmission"])
def test_a_refusal_names_its_status_what_to_do_and_what_kaggle_said(
    fake_kaggle: FakeKaggle, submission: Path, method: str, status: int, expected: str
) -> None:
    fake_kaggle.will_answer(method, Answer(status, {"code": status, "message": "a\nreason"}))

    line = failure(submission)

    assert f"HTTP {status}" in line
    assert expected in line
    assert "Kaggle says: a reason" in line
    assert str(submission) in line
    assert COMPETITION in line
    assert ("submission list" in line) == (status >= 500 and method == "CreateSubmission")


def test_a_refusal_in_the_body_of_a_good_status_is_a_refusal(
    fake_kaggle: FakeKaggle, submission: Path
) -> None:
    fake_kaggle.will_answer("StartSubmissionUpload", Answer(200, {"code": 403, "message": "rules"}))
    assert "HTTP 403" in failure(submission)
    assert not fake_kaggle.calls("PUT")


def test_too_many_requests_names_the_waiting_time(
    fake_kaggle: FakeKaggle, submission: Path
) -> None:
    refusal = Answer(429, {"code": 429, "message": "slow down"}, {"Retry-After": "37"})
    fake_kaggle.will_answer("StartSubmissionUpload", refusal, Answer(429, "slow down"))
    assert "wait 37 seconds" in failure(submission)
    assert "wait a few minutes" in failure(submission)


def test_a_file_that_storage_refuses_is_an_error_although_the_client_returns(
    fake_kaggle: FakeKaggle, submission: Path
) -> None:
    fake_kaggle.will_answer("PUT", Answer(500, {}))
    line = failure(submission)
    assert "storage refused it" in line
    assert "nothing was submitted" in line
    assert not fake_kaggle.calls("CreateSubmission")


def test_a_transfer_dropped_once_is_sent_again_whole_and_submitted_once(
    fake_kaggle: FakeKaggle, submission: Path
) -> None:
    fake_kaggle.will_answer("PUT", Answer(drop=True))
    upload(submission, "first try")
    assert [sent.body for sent in fake_kaggle.calls("PUT")] == [submission.read_bytes()]
    assert len(fake_kaggle.calls("CreateSubmission")) == 1


def test_a_dropped_connection_says_that_the_submission_may_have_arrived(
    fake_kaggle: FakeKaggle, submission: Path
) -> None:
    fake_kaggle.will_answer("CreateSubmission", Answer(drop=True))
    line = failure(submission)
    assert "dropped" in line
    assert "submission list" in line
    assert not fake_kaggle.calls("CreateSubmission")  # never sent a second time by itself


def test_a_refused_connection_says_so_and_leaves_no_doubt(
    monkeypatch: pytest.MonkeyPatch, fake_kaggle: FakeKaggle, submission: Path
) -> None:
    point_client_at("http://127.0.0.1:9", monkeypatch)  # the discard port: nobody listens
    line = failure(submission)
    assert "connection refused" in line
    assert "submission list" not in line


@pytest.mark.parametrize("body", ["<html>maintenance</html>", [], {"ref": "no number"}])
def test_an_answer_of_another_shape_is_an_error(
    fake_kaggle: FakeKaggle, submission: Path, body: object
) -> None:
    fake_kaggle.will_answer("CreateSubmission", Answer(body=body))
    assert "submission list" in failure(submission)


def test_an_answer_without_a_number_must_claim_success(
    fake_kaggle: FakeKaggle, submission: Path
) -> None:
    fake_kaggle.will_answer(
        "CreateSubmission",
        Answer(body={"message": "none left"}),
        Answer(body={"message": "Success"}),
    )
    assert "Kaggle says: none left" in failure(submission)
    assert upload(submission, "again").ref == 0


@pytest.mark.parametrize("content", [None, ""])
def test_a_missing_or_empty_file_is_not_sent(
    fake_kaggle: FakeKaggle, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "none.csv"
    if content is not None:
        path.write_text(content)
    assert str(path) in failure(path)
    assert not fake_kaggle.received


def test_missing_credentials_are_one_line_in_a_fresh_process(
    submission: Path, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path; from common.errors import PipelineError\n"
        "from submissions.upload.client import upload\n"
        "try: upload(Path(sys.argv[1]), 'x')\n"
        "except PipelineError as error: sys.stderr.write(str(error))\n"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "nobody")}
    ended = subprocess.run(
        [sys.executable, "-c", code, str(submission)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert "no Kaggle credentials; set KAGGLE_API_TOKEN" in ended.stderr


def test_the_list_has_typed_rows(fake_kaggle: FakeKaggle) -> None:
    scored = {
        "ref": 9,
        "date": "2026-02-03T04:05:06.789Z",
        "fileName": "submission.csv",
        "description": "first try",
        "status": "COMPLETE",
        "publicScore": "0.71",
        "privateScore": "",
        "totalBytes": 12,
    }
    failed = {"ref": 8, "status": "ERROR", "errorDescription": "row 3", "publicScore": "nan"}
    fake_kaggle.will_answer("ListSubmissions", Answer(body={"submissions": [scored, failed]}))

    rows = list_submissions(limit=7)

    assert fake_kaggle.received[0].json["pageSize"] == 7
    assert rows == [
        SubmissionRow(
            ref=9,
            submitted_at=datetime(2026, 2, 3, 4, 5, 6, 789000),
            file_name="submission.csv",
            description="first try",
            status="complete",
            public_score=0.71,
            private_score=None,
            error="",
            size_bytes=12,
        ),
        SubmissionRow(8, None, "", "", "error", None, None, "row 3", 0),
    ]


def test_the_list_of_an_unknown_competition_is_an_error(fake_kaggle: FakeKaggle) -> None:
    fake_kaggle.will_answer("ListSubmissions", Answer(404, {"code": 404, "message": "none"}))
    with pytest.raises(PipelineError, match="list submissions of nowhere: HTTP 404"):
        list_submissions(competition="nowhere")


def test_the_list_without_credentials_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clear_credentials(monkeypatch, tmp_path / "home")
    with pytest.raises(PipelineError, match="no Kaggle credentials"):
        list_submissions()
    assert capsys.readouterr() == ("", "")
