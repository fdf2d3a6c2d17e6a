"""The fake Kaggle server with files: it lists them in pages and sends to a file server for them.

Kaggle, too, answers a download with a redirect to a signed address on another host.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.data.fetch.file_server import FileServer
from tests.fake_kaggle import Answer, FakeKaggle, KaggleHandler, Received, logged_in_at

SIGNATURE = "planted-signature-1234"
ARCHIVE = "/storage/archive.zip"


class FakeKaggleFiles(FakeKaggle):
    """Lists what `listed` holds; `storage` holds what is downloaded."""

    def __init__(self, storage: FileServer) -> None:
        super().__init__()
        self.RequestHandlerClass = _Handler
        self.storage = storage
        self.listed: dict[str, int] = {}
        self.page = 3

    def list_and_store(self, files: dict[str, bytes], lead: str = "npz_all/") -> None:
        """Offer files under the names that Kaggle gives them."""
        for name, content in files.items():
            self.listed[f"{lead}{name}"] = len(content)
            self.storage.files[f"/storage/{lead}{name}"] = content

    def answer(self, method: str, asked: dict[str, object]) -> Answer:
        if self._queued[method]:
            return self._queued[method].pop(0)
        if method == "ListDataFiles":
            return Answer(body=self._list(str(asked.get("pageToken") or "0")))
        name = ARCHIVE if method == "DownloadDataFiles" else f"/storage/{asked['fileName']}"
        address = f"{self.storage.url}{quote(name)}?signature={SIGNATURE}"
        return Answer(302, {}, {"Location": address})

    def _list(self, token: str) -> dict[str, object]:
        start = int(token)
        names = list(self.listed)[start : start + self.page]
        more = start + self.page < len(self.listed)
        return {
            "files": [{"name": name, "totalBytes": self.listed[name]} for name in names],
            **({"nextPageToken": str(start + self.page)} if more else {}),
        }


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
