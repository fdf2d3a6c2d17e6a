"""A competition of our own, and time that passes as fast as the tests ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_kaggle import KEY, TOKEN
from tests.submissions.fake_competition import FakeCompetition, running_fake_competition


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
