"""Logging in by each of the client's ways, no credential ever shows, and nothing is sent twice."""

import base64
import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.credentials import known_secrets
from common.errors import PipelineError
from common.http import RetryPolicy
from common.kaggle import LOOK_AFTER_S, POLICY, ask, kaggle_session
from kernels.build import METADATA_FILE, KernelMetadata, build
from kernels.datasets import push_dataset
from kernels.remote import push, status
from submissions.upload import list_submissions, submit
from tests.kernels.test_datasets import ID, write_dataset
from tests.support.fake_kaggle import (
    DROPPED,
    KEY,
    LATE,
    LOST,
    TOKEN,
    USERNAME,
    Answer,
    Dataset,
    FakeKaggle,
    clear_credentials,
    failure_of,
    point_client_at,
    refusal,
)

SLUG = "fast-or-slow-cpu"
WITH_FILES = pytest.mark.parametrize("sending", ["submission", "dataset version"], indirect=True)
BUSY = refusal(429, Retry_After="7")


def write_key_file(home: Path, content: bytes, name: str = "kaggle.json") -> Path:
    file = home / ".kaggle" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def use_token(monkeypatch: pytest.MonkeyPatch, token: str = TOKEN) -> None:
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.delenv("KAGGLE_KEY")
    monkeypatch.setenv("KAGGLE_API_TOKEN", token)


@pytest.fixture
def login_by_token(fake_kaggle: FakeKaggle, monkeypatch: pytest.MonkeyPatch) -> None:
    use_token(monkeypatch)


def n_listed(policy: RetryPolicy = POLICY) -> int:
    """Log in, and return the number of submissions to a competition."""
    with kaggle_session("test", policy) as session:
        request = {"competitionName": "x", "pageSize": 20}
        answer = ask(session, lambda: session.call("competitions", "list_submissions", request))
        return len(answer.submissions)


NEW_TOKEN = f"KGAT_{TOKEN}"
BY_KEY = {"username": f"{USERNAME}\r\n", "key": f"{KEY} "}
BY_NEW_TOKEN = {"username": USERNAME, "key": f"{NEW_TOKEN}\r\n"}
BY_CLIENT = {"refresh_token": "refresh", "access_token": TOKEN, "username": USERNAME}
BY_CLIENT["access_token_expiration"] = "2999-01-01T00:00:00+00:00"
# Variables, key files, and the secret that is sent.
Login = tuple[dict[str, str], dict[str, bytes], str]
LOGINS: list[Login] = [
    ({"KAGGLE_USERNAME": f"{USERNAME} ", "KAGGLE_KEY": f"{KEY}\r\n"}, {}, KEY),
    ({}, {"kaggle.json": json.dumps(BY_KEY).encode("utf-8-sig")}, KEY),
    ({"KAGGLE_API_TOKEN": f"{NEW_TOKEN}\r\n"}, {}, NEW_TOKEN),
    ({"KAGGLE_USERNAME": USERNAME, "KAGGLE_KEY": f"{NEW_TOKEN}\r\n"}, {}, NEW_TOKEN),
    ({}, {"kaggle.json": json.dumps(BY_NEW_TOKEN).encode()}, NEW_TOKEN),
    ({}, {"access_token": f"{NEW_TOKEN}\r\n".encode()}, NEW_TOKEN),
    # As written by `kaggle auth login`.
    ({}, {"credentials.json": json.dumps(BY_CLIENT).encode()}, TOKEN),
]


@pytest.mark.parametrize("login", LOGINS, ids=lambda login: "".join([*login[0], *login[1]]))
def test_login_finds_the_credentials_wherever_they_are(
    fake_kaggle: FakeKaggle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, login: Login
) -> None:
    variables, files, secret = login
    clear_credentials(monkeypatch, tmp_path / "home")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name, content in files.items():
        write_key_file(tmp_path / "home", content, name)
    assert n_listed() == 0
    header = fake_kaggle.received[-1].headers["Authorization"]
    assert header == f"Bearer {secret}" or _decoded(header) == f"{USERNAME}:{secret}"
    assert secret in known_secrets()


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"username": "a"}'])
def test_login_without_credentials_names_the_ways_to_give_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    clear_credentials(monkeypatch, tmp_path / "home")
    found = "none found or accepted; set KAGGLE_API_TOKEN"
    if text:
        found = f"{write_key_file(tmp_path / 'home', text.encode())} does not contain them"
    assert found in failure_of(n_listed)


NO_ANSWERS = [
    (DROPPED, "dropped"),
    (Answer(503, "<html>busy"), "HTTP 503"),
    (Answer(body="<html>"), "Kaggle's answer is no JSON object: it is cut short, or a proxy's"),
    (Answer(body={"code": 500, "message": "later"}), "HTTP 500"),
    (Answer(429, {"error": {"code": 429, "message": "Too\nmany"}}), "Kaggle says: Too many"),
    (Answer(429, {"error": "Too many"}), "Kaggle says: Too many"),
    (Answer(429, {"code": 429, "message": "Too many"}), "Kaggle says: Too many"),
]


@pytest.mark.parametrize("method", ["IntrospectToken", "ListSubmissions"])
@pytest.mark.parametrize("case", NO_ANSWERS)
@pytest.mark.usefixtures("login_by_token")
def test_logins_and_lists_are_repeated_after_an_unusable_answer(
    fake_kaggle: FakeKaggle,
    policy: RetryPolicy,
    waits: list[float],
    method: str,
    case: tuple[Answer, str],
) -> None:
    answer, message = case
    fake_kaggle.submit("mine")
    fake_kaggle.will_answer(method, answer, answer)
    assert n_listed(policy) == 1
    assert waits == [2.0, 4.0]
    fake_kaggle.will_answer(method, *[answer] * 4)
    line = failure_of(lambda: n_listed(policy))
    assert message in line and "; gave up after 4 tries" in line


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("IntrospectToken", Answer(body={"active": False}), "none found or accepted; set KAGGLE"),
        ("IntrospectToken", refusal(401), "HTTP 401: Kaggle does not accept these credentials"),
        ("ListSubmissions", Answer(body={"code": 403, "message": "no"}), "HTTP 403: the account"),
        ("ListSubmissions", Answer(403, "<html>"), "HTTP 403: the account"),
        # A newer Kaggle may have other states and types.
        ("ListSubmissions", Answer(body={"submissions": [{"status": "PAUSED"}]}), "'PAUSED'"),
        ("ListSubmissions", Answer(body={"submissions": 5}), "does not understand the answer"),
    ],
)
@pytest.mark.usefixtures("login_by_token")
def test_refusal_or_unknown_answer_is_final_and_one_line(
    fake_kaggle: FakeKaggle, method: str, answer: Answer, message: str
) -> None:
    fake_kaggle.will_answer(method, answer)
    assert message in failure_of(n_listed)
    assert len(fake_kaggle.calls(method)) == 1


@pytest.fixture(params=["key", "token"])
def secret(
    request: pytest.FixtureRequest, fake_kaggle: FakeKaggle, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Log in by key or by token, and return the secret."""
    if request.param == "key":
        return KEY
    use_token(monkeypatch)
    return TOKEN


def test_no_command_writes_or_prints_a_credential(
    fake_kaggle: FakeKaggle,
    secret: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    root = tmp_path / "written" / "project"
    (root / "pipeline").mkdir(parents=True)
    (root / "pipeline/__main__.py").write_text("")
    submission = tmp_path / "written" / "submission.csv"
    submission.write_text("ID,TopConfigs\n")
    kernel = build("cpu", {}, tmp_path / "written" / "kernel", root=root).parent
    commands: dict[str, Callable[[], object]] = {
        "CreateSubmission": lambda: submit(submission, "first", force=True),
        "ListSubmissions": lambda: list_submissions(1),
        "SaveKernel": lambda: push(kernel),
        "GetKernelSessionStatus": lambda: status("fast-or-slow-cpu"),
    }
    told = []
    for method, command in commands.items():
        told.append(repr(command()))
        # The server repeats the secret in its error message.
        echoes = f"refused for {secret}"
        fake_kaggle.will_answer(method, refusal(401, echoes), refusal(400, echoes))
        for _ in range(2):
            with pytest.raises(PipelineError) as caught:
                command()
            told += traceback.format_exception(caught.value)
            assert "refused for ***" in str(caught.value)

    sent = [call.headers["Authorization"] for call in fake_kaggle.calls("SaveKernel")]
    assert all(secret in header or secret in _decoded(header) for header in sent)  # it was in use
    written = [file.read_text() for file in (tmp_path / "written").rglob("*") if file.is_file()]
    assert len(written) == 4
    printed = capfd.readouterr()
    everything = "\n".join([*told, *written, printed.out, printed.err, caplog.text])
    assert secret not in everything
    assert base64.b64encode(f"{USERNAME}:{secret}".encode()).decode() not in everything


def _decoded(header: str) -> str:
    return base64.b64decode(header.partition(" ")[2]).decode()


@dataclass(frozen=True)
class Sending:
    """One kind of upload, with its method of the API and its message if the outcome is unknown."""

    send: Callable[[], object]
    method: str
    made: Callable[[], int]
    in_doubt: str

    def failure(self) -> str:
        return failure_of(self.send)


@pytest.fixture(params=["submission", "kernel", "new dataset", "dataset version"])
def sending(
    request: pytest.FixtureRequest, fake_kaggle: FakeKaggle, policy: RetryPolicy, tmp_path: Path
) -> Sending:
    if request.param == "submission":
        file = tmp_path / "submission.csv"
        file.write_text("ID,TopConfigs\ntile:xla:a,0;1;2;3;4\n" * 4000)
        return Sending(
            lambda: submit(file, "first", policy=policy),
            "CreateSubmission",
            lambda: len(fake_kaggle.submissions),
            "it may have arrived",
        )
    if request.param == "kernel":
        metadata = KernelMetadata(id=SLUG, title="Fast or slow cpu", code_file=f"{SLUG}.py")
        (tmp_path / METADATA_FILE).write_text(metadata.text)
        (tmp_path / f"{SLUG}.py").write_text("pass\n")
        fake_kaggle.kernels[f"{USERNAME}/{SLUG}"] = 4
        return Sending(
            lambda: push(tmp_path, policy=policy),
            "SaveKernel",
            lambda: fake_kaggle.kernels[f"{USERNAME}/{SLUG}"] - 4,
            "the kernel may have started",
        )
    folder, first = write_dataset(tmp_path / "dataset"), 0
    if request.param == "dataset version":
        fake_kaggle.datasets[ID], first = Dataset(3), 3
    return Sending(
        lambda: push_dataset(folder, "first", policy=policy),
        "CreateDatasetVersion" if first else "CreateDataset",
        lambda: fake_kaggle.datasets[ID].version - first if ID in fake_kaggle.datasets else 0,
        "the version may have been made",
    )


@pytest.mark.parametrize("lost", [LOST, LATE, Answer(503, {}, acts=True)])
def test_lost_answer_is_looked_up_and_nothing_is_sent_again(
    fake_kaggle: FakeKaggle,
    sending: Sending,
    lost: Answer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO")
    if lost is LATE:
        monkeypatch.setattr("common.kaggle.ANSWER_WITHIN_S", 0.3)
    fake_kaggle.will_answer(sending.method, lost)
    sending.send()
    assert sending.made() == 1
    assert len(fake_kaggle.calls(sending.method)) == 1
    assert "no clear answer; asking Kaggle whether it has arrived" in caplog.text


@pytest.mark.parametrize("fault", [DROPPED, Answer(500, {})])
def test_request_that_did_not_arrive_is_reported_as_doubt_and_not_sent_again(
    fake_kaggle: FakeKaggle, sending: Sending, waits: list[float], fault: Answer
) -> None:
    fake_kaggle.will_answer(sending.method, fault)
    assert sending.in_doubt in sending.failure()
    assert sending.made() == 0
    assert len(fake_kaggle.calls(sending.method)) == 1
    assert waits == list(LOOK_AFTER_S)
    assert sum(waits) > 60
    sending.send()  # the next call looks first, and then sends it
    assert sending.made() == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, "expected valid names"), (403, "the token allows it"), (418, "refused the request")],
)
def test_refusal_is_final_and_names_the_remedy(
    fake_kaggle: FakeKaggle, sending: Sending, status: int, expected: str
) -> None:
    fake_kaggle.will_answer(sending.method, refusal(status, f"a\nreason {KEY}"))
    line = sending.failure()
    assert f"HTTP {status}" in line
    assert expected in line
    assert "Kaggle says: a reason ***" in line
    assert sending.in_doubt not in line
    assert len(fake_kaggle.calls(sending.method)) == 1


def test_busy_server_is_waited_for_within_limits(
    fake_kaggle: FakeKaggle, sending: Sending, waits: list[float]
) -> None:
    fake_kaggle.will_answer(sending.method, refusal(429, Retry_After="86400"))
    assert "(Retry-After: 86400)" in sending.failure()
    assert waits == []
    fake_kaggle.will_answer(sending.method, *[BUSY] * 4)
    assert "HTTP 429; gave up after 4 tries" in sending.failure()
    assert waits == [7.0] * 3
    fake_kaggle.will_answer(sending.method, BUSY, refusal(429))
    sending.send()
    assert waits[3:5] == [7.0, 4.0]
    assert sending.made() == 1


def test_refused_connection_leaves_no_doubt(
    fake_kaggle: FakeKaggle, sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_client_at("http://127.0.0.1:9", monkeypatch)  # the discard port
    line = sending.failure()
    assert "connection refused" in line and sending.in_doubt not in line


@WITH_FILES
def test_storage_gets_the_file_again_until_it_accepts_or_refuses(
    fake_kaggle: FakeKaggle, sending: Sending, waits: list[float]
) -> None:
    fake_kaggle.will_answer("PUT", *[Answer(500, {})] * 4)
    assert "storage answers HTTP 500; gave up after 4 tries" in sending.failure()
    fake_kaggle.will_answer("PUT", Answer(403, {}))
    assert "HTTP 403; nothing was made of it" in sending.failure()
    assert not fake_kaggle.calls(sending.method)
    waits.clear()
    fake_kaggle.will_answer("PUT", Answer(500, {}), Answer(429, {}), DROPPED)
    sending.send()
    assert sending.made() == 1
    assert waits == [2.0, 4.0, 8.0]
