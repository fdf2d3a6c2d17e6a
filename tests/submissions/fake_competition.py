"""The fake Kaggle server as a competition: it keeps submissions, lists and scores them."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fake_kaggle import Answer, FakeKaggle, KaggleHandler, Received, logged_in_at

FIRST_REF = 4711


@dataclass(frozen=True)
class CarriedOut(Answer):
    """What the server says, or does not say, after it has done what it was asked for."""

    hold_s: float = 0.0  # before it answers


class FakeCompetition(FakeKaggle):
    """Takes submissions whose file has arrived whole.

    Attributes:
        submissions: as they are listed, oldest first.
        scored_after: how many lists show a submission without its score.
        listed_after: how many lists lack it altogether.
        is_listed: whether lists show submissions yet.
        verdict: what a scored submission is listed with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = _Handler
        self.submissions: list[dict[str, object]] = []
        self.scored_after = 0
        self.listed_after = 0
        self.is_listed: Callable[[], bool] = lambda: True
        self.verdict: dict[str, object] = {
            "status": "COMPLETE",
            "publicScore": "0.7125",
            "privateScore": "0.7031",
        }
        self._announced: list[dict[str, object]] = []
        self._stored: dict[str, int] = {}  # size by token

    def queued(self, method: str) -> Answer | None:
        return self._queued[method].pop(0) if self._queued[method] else None

    def act(self, method: str, path: str, body: bytes) -> object:
        """Do what is asked for and return the answer's body."""
        if method == "PUT":
            self._stored[path.rpartition("/")[2]] = len(body)
            return {}
        asked = json.loads(body)
        if method == "StartSubmissionUpload":
            self._announced.append(asked)
            token = str(len(self._announced) - 1)
            return {"token": token, "createUrl": f"{self.url}/upload/{token}"}
        if method == "CreateSubmission":
            return self._submit(asked)
        assert method == "ListSubmissions", method
        return {"submissions": self._list(int(asked.get("page", 1)), int(asked["pageSize"]))}

    def submit(self, description: str, size_bytes: int, file_name: str = "s.csv") -> int:
        """Keep a submission and return its number."""
        ref = FIRST_REF + len(self.submissions)
        self.submissions.append(
            {
                "ref": ref,
                "date": "2026-02-03T04:05:06.789Z",
                "fileName": file_name,
                "description": description,
                "totalBytes": size_bytes,
            }
        )
        return ref

    def _submit(self, asked: dict[str, object]) -> object:
        token = str(asked["blobFileTokens"])
        announced = self._announced[int(token)]
        assert self._stored[token] == announced["contentLength"]
        text, name = str(asked["submissionDescription"]), str(announced["fileName"])
        return {
            "message": "Successfully submitted",
            "ref": self.submit(text, self._stored[token], name),
        }

    def _list(self, page: int, size: int) -> list[dict[str, object]]:
        if not self.is_listed():
            return []
        if self.listed_after > 0:
            self.listed_after -= 1
            return []
        judged = self.verdict if self.scored_after <= 0 else {"status": "PENDING"}
        self.scored_after -= 1
        rows = [{**submission, **judged} for submission in reversed(self.submissions)]
        return rows[(page - 1) * size : page * size]


class _Handler(KaggleHandler):
    server: FakeCompetition

    def serve(self, method: str) -> None:
        answer = self.server.queued(method)
        length = int(self.headers["Content-Length"])
        acts = answer is None or isinstance(answer, CarriedOut)
        body = self.rfile.read(length if acts or not answer.drop else length // 2)
        self.server.received.append(Received(method, self.path, dict(self.headers), body))
        done = self.server.act(method, self.path, body) if acts else None
        if isinstance(answer, CarriedOut):
            time.sleep(answer.hold_s)
        if answer is not None and answer.drop:
            self.drop()
        else:
            self.send(answer or Answer(body=done))


@contextmanager
def running_fake_competition(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> Iterator[FakeCompetition]:
    """Run the server, point the client at it, and log in with a planted user name and key."""
    server = FakeCompetition()
    with logged_in_at(server, monkeypatch, home):
        yield server
