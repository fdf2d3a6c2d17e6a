"""A Kaggle server of our own on loopback, to which the real client is pointed.

The client's private names (the table of its endpoints, its key file's path) are used here only.
"""

import json
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import pytest

USERNAME = "planted-user"
KEY = "planted-key-93af17c2"
TOKEN = "planted-token-5be0d841"
BLOB_TOKEN = "blob-77"


@dataclass(frozen=True)
class Answer:
    """What the server says: a JSON body, a text, or nothing at all (the connection is cut)."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False


@dataclass(frozen=True)
class Received:
    """One request: the name of the method called ("SaveKernel", or "PUT" for a file)."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)


class FakeKaggle(ThreadingHTTPServer):
    """Answers every method happily until told otherwise, and keeps what it received."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.received: list[Received] = []
        self._queued: dict[str, list[Answer]] = defaultdict(list)

    def will_answer(self, method: str, *answers: Answer) -> None:
        """Queue answers for the next calls of `method`; after them it answers happily again."""
        self._queued[method].extend(answers)

    def calls(self, method: str) -> list[Received]:
        return [request for request in self.received if request.method == method]

    def answer_to(self, method: str) -> Answer:
        queued = self._queued[method]
        return queued.pop(0) if queued else Answer(body=self._happy_body(method))

    def _happy_body(self, method: str) -> object:
        upload_url = f"{self.url}/upload/1?signature=planted-signature-1234"
        bodies: dict[str, object] = {
            "IntrospectToken": {"active": True, "username": USERNAME},
            "StartSubmissionUpload": {"token": BLOB_TOKEN, "createUrl": upload_url},
            "PUT": {},
            "CreateSubmission": {"message": "Successfully submitted", "ref": 4711},
            "ListSubmissions": {"submissions": []},
            "SaveKernel": {"versionNumber": 3, "url": "https://www.kaggle.com/code/a/b"},
            "GetKernelSessionStatus": {"status": "RUNNING"},
        }
        return bodies[method]


class KaggleHandler(ABC, BaseHTTPRequestHandler):
    """What every fake of Kaggle's servers does with a request; `serve` is its own."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.serve(self.path.rpartition("/")[2])

    def do_PUT(self) -> None:
        self.serve("PUT")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests read standard error."""

    @abstractmethod
    def serve(self, method: str) -> None:
        """Answer the call of `method`, the last part of the path, or "PUT"."""

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def drop(self) -> None:
        """End the connection without an answer."""
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def send(self, answer: Answer) -> None:
        is_text = isinstance(answer.body, str)
        content = (answer.body if is_text else json.dumps(answer.body)).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/html" if is_text else "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class _Handler(KaggleHandler):
    server: FakeKaggle

    def serve(self, method: str) -> None:
        answer = self.server.answer_to(method)
        if answer.drop:
            self.rfile.read(int(self.headers["Content-Length"]) // 2)
            self.drop()
            return
        body = self.read_body()
        self.server.received.append(Received(method, self.path, dict(self.headers), body))
        self.send(answer)


def clear_credentials(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Leave the client no credentials: an empty home folder, no KAGGLE_ variables."""
    for name in [*os.environ]:
        if name.startswith("KAGGLE_") or name in ("VERBOSE", "VERBOSE_OUTPUT", "XDG_CONFIG_HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with redirect_stdout(StringIO()):  # the client's import prints how to log in
        from kaggle.api.kaggle_api_extended import KaggleApi
    # Read once, at import: without this every test would see the first test's home folder.
    monkeypatch.setattr(KaggleApi, "config", str(home / ".kaggle" / "kaggle.json"))


def point_client_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the client's production requests to `url`, under the paths of the local environment."""
    from kagglesdk import kaggle_env

    endpoints = kaggle_env._env_to_endpoint
    monkeypatch.setitem(endpoints, kaggle_env.KaggleEnv.PROD, f"{url}/api")


def make_client_verbose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what VERBOSE=1 does at the client's import: it prints each request with its headers."""
    from kaggle.api.kaggle_api_extended import KaggleApi

    monkeypatch.setattr(KaggleApi, "args", ["--verbose"])


@contextmanager
def running_fake_kaggle(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[FakeKaggle]:
    """Run a server, point the client at it, and log in with a planted user name and key."""
    server = FakeKaggle()
    with logged_in_at(server, monkeypatch, home):
        yield server


@contextmanager
def logged_in_at(server: FakeKaggle, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
    """Serve, point the client at the server, and log in with a planted user name and key."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        clear_credentials(monkeypatch, home)
        point_client_at(server.url, monkeypatch)
        monkeypatch.setenv("KAGGLE_USERNAME", USERNAME)
        monkeypatch.setenv("KAGGLE_KEY", KEY)
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
