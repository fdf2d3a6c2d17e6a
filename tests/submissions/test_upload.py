"""The real client sends submissions to a server of ours, lists them and waits for their scores."""

import hashlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from common.http import RetryPolicy
from common.progress import watched_by
from submissions.upload import Submission, list_submissions, submit
from tests.support.fake_kaggle import FIRST_REF, KEY, LOST, Answer, FakeKaggle, failure_of

Send = Callable[..., Submission]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "submission.csv"
    path.write_text("ID,TopConfigs\ntile:xla:a,0;1;2;3;4\n" * 4000)
    return path


@pytest.fixture
def send(file: Path, policy: RetryPolicy) -> Send:
    def call(message: str = "first try", *, path: Path = file, **options: object) -> Submission:
        return submit(path, message, policy=policy, **options)

    return call


def test_submission_arrives_whole_with_its_tag(
    fake_kaggle: FakeKaggle, send: Send, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[tuple[str, int, int]] = []
    with watched_by(lambda *step: steps.append(step)):
        sent = send(f"my {KEY}\nwords")

    started, put, created = fake_kaggle.received[-3:]
    methods = ["ListSubmissions", "StartSubmissionUpload", "PUT", "CreateSubmission"]
    assert [request.method for request in fake_kaggle.received] == methods
    assert started.path == "/api/v1/competitions.CompetitionApiService/StartSubmissionUpload"
    assert started.json["competitionName"] == created.json["competitionName"]
    assert started.json["contentLength"] == file.stat().st_size
    assert put.body == file.read_bytes()
    assert "Authorization" not in put.headers
    tag = f"[sha256:{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}]"
    description = f"my *** words {tag}"
    assert created.json["submissionDescription"] == description
    assert (sent.ref, sent.status, sent.description) == (FIRST_REF, "pending", description)
    assert sent.size_bytes == file.stat().st_size
    assert steps[-1] == ("upload submission.csv", 1, 1)
    assert capsys.readouterr() == ("", "")


def test_same_content_is_refused_under_any_name_until_forced(
    fake_kaggle: FakeKaggle, send: Send, file: Path
) -> None:
    send()
    copy = file.with_name("copy.csv")
    copy.write_bytes(file.read_bytes())
    line = failure_of(lambda: send(path=copy))
    assert f"sent at 2026-02-03T04:05:06Z as submission {FIRST_REF} (complete)" in line
    assert "--force" in line
    assert len(fake_kaggle.submissions) == 1

    fake_kaggle.will_answer("CreateSubmission", LOST)
    assert send(force=True).ref == FIRST_REF + 1  # the first is not taken for it
    assert str(fake_kaggle.submissions[1]["description"]).endswith(" #2]")
    assert f"as submission {FIRST_REF + 1}" in failure_of(send)


def test_submission_far_down_a_list_of_long_descriptions_is_found(
    fake_kaggle: FakeKaggle, send: Send
) -> None:
    send("m" * 400)
    for i in range(250):
        fake_kaggle.submit(f"later {i}")
    assert f"as submission {FIRST_REF}" in failure_of(send)


def test_answer_without_a_number_is_looked_up(fake_kaggle: FakeKaggle, send: Send) -> None:
    fake_kaggle.will_answer("CreateSubmission", Answer(body={"message": "Success"}, acts=True))
    fake_kaggle.listed_after = 4  # the list lags behind
    assert send().ref == FIRST_REF
    assert len(fake_kaggle.submissions) == 1


def test_list_has_typed_rows(fake_kaggle: FakeKaggle) -> None:
    scored = {
        "ref": 9,
        "date": "2026-02-03T04:05:06.789Z",
        "description": f"first\x1b[31m try {KEY}",
        "status": "COMPLETE",
        **{"publicScore": "0.71", "privateScore": ""},
    }
    failed = {"ref": 8, "status": "ERROR", "errorDescription": "row\n3"}
    fake_kaggle.will_answer("ListSubmissions", Answer(body={"submissions": [scored, failed]}))

    rows = list_submissions(7)

    assert fake_kaggle.received[0].json["pageSize"] == 7
    time, text = datetime(2026, 2, 3, 4, 5, 6, 789000), "first\\x1b[31m try ***"
    assert rows == [
        Submission(9, "", text, 0, time, "complete", 0.71),
        Submission(8, "", "", 0, None, "error", error="row 3"),
    ]
