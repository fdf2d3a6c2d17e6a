"""VERBOSE=1 in the environment, which other programs use too, makes no command print secrets."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.fake_kaggle import KEY, USERNAME, Answer, FakeKaggle, running_fake_kaggle
from tests.submissions.official_file import write_official

CODE = """
import sys
import pytest
from pipeline.__main__ import app
from tests.fake_kaggle import point_client_at
point_client_at(sys.argv[1], pytest.MonkeyPatch())
app(sys.argv[2:])
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeKaggle]:
    with running_fake_kaggle(monkeypatch, tmp_path / "home") as running:
        yield running


def run(server: FakeKaggle, home: Path, variable: str, *arguments: object) -> tuple[int, str]:
    """Run a command in a fresh process, whose import of the client is its first."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "NO_PROXY": "127.0.0.1",
        "KAGGLE_USERNAME": USERNAME,
        "KAGGLE_KEY": KEY,
        variable: "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", CODE, server.url, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("variable", ["VERBOSE", "VERBOSE_OUTPUT"])
def test_no_address_is_printed_and_an_error_is_one_line(
    server: FakeKaggle, tmp_path: Path, variable: str
) -> None:
    file = write_official(tmp_path / "submission.csv")
    ledger = tmp_path / "ledger.jsonl"
    upload = ("submission", "upload", file, "-m", "x", "--no-wait", "--ledger", ledger)
    server.will_answer("CreateSubmission", Answer(400, {"code": 400, "message": "none left"}))

    refused, said = run(server, tmp_path, variable, *upload)
    sent, told = run(server, tmp_path, variable, *upload)

    assert (refused, sent) == (1, 0)
    assert len(server.calls("PUT")) == 2
    for text in (said, told):
        assert len(text.splitlines()) == 1
        assert "planted-signature" not in text
        assert server.url not in text
    assert "none left" in said
