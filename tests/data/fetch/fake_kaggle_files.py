"""The fake Kaggle server that sends to a file server for the competition's archive.

Kaggle, too, answers a download with a redirect to a signed address on another host.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.data.fetch.file_server import FileServer
from tests.fake_kaggle import Answer, FakeKaggle, KaggleHandler, Received, logged_in_at

SIGNATURE = "planted-signature-1234"
ARCHIVE = "/storage/archive.zip"


class FakeKaggleFiles(FakeKaggle):
    """Sends whoever asks for the competition's files to `storage`."""

    def __init__(self, storage: FileServer) -> None:
        super().__init__()
        self.RequestHandlerClass = _Handler
        self.storage = storage

    def answer(self, method: str, asked: dict[str, object]) -> Answer:
        if self._queued[method]:
            return self._queued[method].pop(0)
        address = f"{self.storage.url}{ARCHIVE}?signature={SIGNATURE}"
        return Answer(302, {}, {"Location": address})


class _Handler(KaggleHandler):
    server: FakeKaggleFiles

    def serve(self, method: str) -> None:
        body = self.read_body()
        self.server.received.append(Received(method, self.path, dict(self.headers), body))
        answer = self.server.answer(method, json.loads(body))
        if answer.drop:
            self.close_connection = True
        else:
            self.send(answer)


@contextmanager
def running_fake_kaggle_files(
    storage: FileServer, monkeypatch: pytest.MonkeyPatch, home: Path
) -> Iterator[FakeKaggleFiles]:
    """Run the server, point the client at it, and log in with a planted user name and key."""
    server = FakeKaggleFiles(storage)
    with logged_in_at(server, monkeypatch, home):
        yield server
