"""A competition of our own, and time that passes as fast as the tests ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.retry import RetryPolicy
from submissions.upload.client import COMPETITION
from submissions.upload.ledger import Entry, hash_of, marker_of, put_entry
from submissions.upload.send import Sending, send_once
from tests.fake_kaggle import KEY, TOKEN
from tests.submissions.fake_competition import FakeCompetition, running_fake_competition
from tests.submissions.sending import Send


class FakeTime:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept.append(seconds)

    def now(self) -> float:
        return self.now_s


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def twice_allowed() -> list[bool]:
    """Append to it in the few tests that want more than one submission."""
    return []


@pytest.fixture
def competition(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    twice_allowed: list[bool],
) -> Iterator[FakeCompetition]:
    """The server; afterwards: at most one submission, and no credential in what was written."""
    home = tmp_path / "home"
    with running_fake_competition(monkeypatch, home) as server:
        yield server
    assert len(server.submissions) <= 1 or twice_allowed
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    left = "".join(capsys.readouterr())
    for secret in (KEY, TOKEN):
        assert secret not in left
        assert not any(secret.encode() in content for content in written)


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
        policy = RetryPolicy(attempts=4, sleep=fake_time.sleep)
        return send_once(Sending(path, message, ledger, policy=policy, say=said.append, **options))

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
