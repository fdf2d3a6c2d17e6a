"""Logging in by each of the client's ways, and that no credential ever shows."""

import base64
import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.kaggle import kaggle_session, known_secrets
from kernels.build import build
from kernels.remote import push, status
from submissions.upload import list_submissions, submit
from tests.fake_kaggle import (
    DROPPED,
    KEY,
    TOKEN,
    USERNAME,
    Answer,
    FakeKaggle,
    clear_credentials,
    failure_of,
    make_client_verbose,
    refusal,
)


def write_key_file(home: Path, text: str) -> None:
    (home / ".kaggle").mkdir(parents=True, exist_ok=True)
    (home / ".kaggle" / "kaggle.json").write_text(text)


def use_token(monkeypatch: pytest.MonkeyPatch, token: str = TOKEN) -> None:
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.delenv("KAGGLE_KEY")
    monkeypatch.setenv("KAGGLE_API_TOKEN", token)


def login_failure() -> str:
    return failure_of(lambda: kaggle_session("test").__enter__())


def test_a_key_file_logs_in(
    fake_kaggle: FakeKaggle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.delenv("KAGGLE_KEY")
    write_key_file(tmp_path / "home", json.dumps({"username": "filed", "key": "filed-key-1234"}))

    with kaggle_session("test") as session:
        assert session.username == "filed"
        session.api.competition_submissions("x")

    (call,) = fake_kaggle.received
    scheme, _, credentials = call.headers["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(credentials)) == ("Basic", b"filed:filed-key-1234")
    assert known_secrets() == {"filed-key-1234"}


def test_a_token_logs_in(fake_kaggle: FakeKaggle, monkeypatch: pytest.MonkeyPatch) -> None:
    use_token(monkeypatch)
    with kaggle_session("test") as session:
        assert session.username == USERNAME
        session.api.competition_submissions("x")
    assert fake_kaggle.received[-1].headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"username": "a"}'])
def test_without_credentials_the_line_says_how_to_give_them_or_which_file_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    clear_credentials(monkeypatch, tmp_path / "home")
    if text:
        write_key_file(tmp_path / "home", text)
    file = tmp_path / "home" / ".kaggle" / "kaggle.json"
    told = f"{file} does not hold them" if text else "none found or accepted; set KAGGLE_API_TOKEN"
    assert told in login_failure()


def test_a_refused_token_is_one_line(
    fake_kaggle: FakeKaggle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client's first import logs in as well; here it is imported already.
    use_token(monkeypatch)
    answers = (Answer(body={"active": False}), refusal(401), DROPPED)
    fake_kaggle.will_answer("IntrospectToken", *answers)
    for told in ("none found or accepted; set KAGGLE_API_TOKEN", "HTTP 401", "dropped"):
        assert told in login_failure()


@pytest.fixture(params=["key", "token"])
def secret(
    request: pytest.FixtureRequest, fake_kaggle: FakeKaggle, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Log in by key or by token, with a client told to print its requests; return the secret."""
    make_client_verbose(monkeypatch)
    if request.param == "key":
        return KEY
    use_token(monkeypatch)
    return TOKEN


def test_no_credential_is_written_or_printed_by_any_command(
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
        echoes = f"refused for {secret}"  # a server that repeats what it was given
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
