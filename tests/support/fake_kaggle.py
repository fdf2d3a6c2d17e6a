"""A Kaggle server of our own on loopback, with a memory, to which the real client is pointed.

It keeps submissions and scores them, kernels with versions and output, datasets with files. The
client's private names (the table of its endpoints, its key file's path) are used here only.
"""

import io
import json
import os
import re
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from common.errors import PipelineError
from tests.support.file_server import QuietHandler, serving

USERNAME = "planted-user"
KEY = "planted-key-93af17c2"
TOKEN = "planted-token-5be0d841"
FIRST_REF = 4711
SIGNATURE = "planted-signature-1234"
PAGE = 3  # entries of a list at a time, whatever is asked for


@dataclass(frozen=True)
class Answer:
    """An answer of the server.

    Attributes:
        drop: True if the server closes the connection instead of an answer.
        acts: True if the server performs the request before the answer.
        hold_s: The delay of the answer in seconds.
    """

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    acts: bool = False
    hold_s: float = 0.0


DROPPED = Answer(drop=True)
LOST = Answer(drop=True, acts=True)
LATE = Answer(acts=True, hold_s=1.0)  # but right
NOT_FOUND = Answer(404, {"code": 404, "message": "Not found"})


def refusal(status: int, message: str = "no", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, {"code": status, "message": message}, named)


@dataclass(frozen=True)
class Received:
    """One request: the name of the method called ("SaveKernel", or "PUT" for a file)."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass
class Dataset:
    version: int = 1
    files: dict[str, bytes] = field(default_factory=dict)
    # The JSON body of the request that created the dataset.
    asked: dict[str, Any] = field(default_factory=dict)


class FakeKaggle(ThreadingHTTPServer):
    """A fake Kaggle server. It performs and stores requests, or sends queued answers.

    Attributes:
        listed_after: The number of lists that do not include the submissions yet.
        kernels: The latest version by "owner/slug".
        outputs: The addresses of the output files of each kernel, by file name.
        sessions: The output files of each version of some kernels. The version is running for one
            status, then complete. An empty output is a failure.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), KaggleHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.received: list[Received] = []
        self.submissions: list[dict[str, object]] = []
        self.listed_after = 0
        self.verdict = {"status": "COMPLETE", "publicScore": "0.7125", "privateScore": "0.7031"}
        self.kernels: dict[str, int] = {}
        self.outputs: dict[str, str] = {}
        self.sessions: dict[str, list[dict[str, str]]] = {}
        self.n_running: dict[str, int] = {}
        self.most_running = 0
        self.log = ""
        self.archive = ""
        self.datasets: dict[str, Dataset] = {}
        self._blobs: dict[str, tuple[str, bytes]] = {}  # name and content by token
        self.queued: dict[str, list[Answer]] = defaultdict(list)

    def will_answer(self, method: str, *answers: Answer) -> None:
        """Queue answers for the next calls of `method`. Later calls are performed as usual."""
        self.queued[method].extend(answers)

    def calls(self, method: str) -> list[Received]:
        return [request for request in self.received if request.method == method]

    def submit(self, description: str, size_bytes: int = 5, file_name: str = "s.csv") -> int:
        """Keep a submission and return its number."""
        facts = {"fileName": file_name, "description": description, "totalBytes": size_bytes}
        ref = FIRST_REF + len(self.submissions)
        self.submissions.append({"ref": ref, "date": "2026-02-03T04:05:06.789Z", **facts})
        return ref

    def act(self, method: str, path: str, body: bytes) -> Answer:
        if method == "PUT":
            token = path.rpartition("/")[2].partition("?")[0]
            self._blobs[token] = (self._blobs[token][0], body)
            return Answer(body={})
        own = getattr(self, "_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method).lower())
        answered = own(json.loads(body))
        return answered if isinstance(answered, Answer) else Answer(body=answered)

    def _introspect_token(self, asked: dict[str, Any]) -> object:
        return {"active": True, "username": USERNAME}

    def _start_submission_upload(self, asked: dict[str, Any]) -> object:
        return self._start_blob_upload({"name": asked["fileName"]})

    def _start_blob_upload(self, asked: dict[str, Any]) -> object:
        token = str(len(self._blobs) + 1)
        self._blobs[token] = (str(asked["name"]), b"")
        return {"token": token, "createUrl": f"{self.url}/upload/{token}?signature={SIGNATURE}"}

    def _create_submission(self, asked: dict[str, Any]) -> object:
        name, content = self._blobs[asked["blobFileTokens"]]
        ref = self.submit(asked["submissionDescription"], len(content), name)
        return {"message": "Successfully submitted", "ref": ref}

    def _list_submissions(self, asked: dict[str, Any]) -> object:
        self.listed_after -= 1
        if self.listed_after >= 0:
            return {"submissions": []}
        rows = [{**row, **self.verdict} for row in reversed(self.submissions)]
        start, size = (int(asked.get("page", 1)) - 1) * asked["pageSize"], asked["pageSize"]
        return {"submissions": rows[start : start + size]}

    def _download_data_files(self, asked: dict[str, Any]) -> object:
        return Answer(302, {}, {"Location": self.archive})

    def _get_kernel(self, asked: dict[str, Any]) -> object:
        name = f"{asked['userName']}/{asked['kernelSlug']}"
        if name not in self.kernels:
            return NOT_FOUND
        return {"metadata": {"currentVersionNumber": self.kernels[name]}}

    def _save_kernel(self, asked: dict[str, Any]) -> object:
        name = asked["slug"]
        self.kernels[name] = self.kernels.get(name, 0) + 1
        self.n_running[name] = 1
        self.most_running = max(self.most_running, sum(map(bool, self.n_running.values())))
        url = f"https://www.kaggle.com/code/{name}"
        return {"versionNumber": self.kernels[name], "url": url}

    def _get_kernel_session_status(self, asked: dict[str, Any]) -> object:
        name = f"{asked['userName']}/{asked['kernelSlug']}"
        if name not in self.sessions or self.n_running.get(name):
            self.n_running[name] = 0
            return {"status": "RUNNING"}
        return {"status": "COMPLETE" if self._outputs_of(name) else "ERROR"}

    def _outputs_of(self, name: str) -> dict[str, str]:
        return (
            self.sessions[name][self.kernels[name] - 1] if name in self.sessions else self.outputs
        )

    def _list_kernel_session_output(self, asked: dict[str, Any]) -> object:
        outputs = self._outputs_of(f"{asked['userName']}/{asked['kernelSlug']}")
        rows = [{"fileName": name, "url": url} for name, url in outputs.items()]
        start = int(asked.get("pageToken") or 0)
        more = {"nextPageToken": str(start + PAGE)} if start + PAGE < len(rows) else {}
        return {"files": rows[start : start + PAGE], **more, "log": self.log}

    def _get_dataset(self, asked: dict[str, Any]) -> object:
        if _dataset_id(asked) not in self.datasets:
            return Answer(403, {"code": 403, "message": "Permission 'datasets.get' was denied"})
        return {"currentVersionNumber": self.datasets[_dataset_id(asked)].version}

    def _create_dataset(self, asked: dict[str, Any]) -> object:
        return self._keep(f"{asked['ownerSlug']}/{asked['slug']}", asked, asked["files"])

    def _create_dataset_version(self, asked: dict[str, Any]) -> object:
        return self._keep(_dataset_id(asked), asked, asked["body"]["files"])

    def _keep(self, name: str, asked: dict[str, Any], entries: list[dict[str, str]]) -> object:
        files = {}
        for entry in entries:
            blob, content = self._blobs[entry["token"]]
            if not blob.endswith(".zip"):
                files[blob] = content
                continue
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for info in archive.infolist():
                    if not info.is_dir():
                        files[f"{blob.removesuffix('.zip')}/{info.filename}"] = archive.read(info)
        version = 1 + (self.datasets[name].version if name in self.datasets else 0)
        self.datasets[name] = Dataset(version, files, asked)
        return {"ref": name, "url": "https://www.kaggle.com/x", "status": "ok"}


def _dataset_id(asked: dict[str, Any]) -> str:
    return f"{asked['ownerSlug']}/{asked['datasetSlug']}"


class KaggleHandler(QuietHandler):
    """Handle the requests to a FakeKaggle."""

    server: FakeKaggle

    def do_POST(self) -> None:  # noqa: N802 — http.server calls this name
        self.serve(self.path.rpartition("/")[2])

    def do_PUT(self) -> None:  # noqa: N802
        self.serve("PUT")

    def serve(self, method: str) -> None:
        queued = self.server.queued[method]
        answer = queued.pop(0) if queued else None
        if answer and answer.drop and not answer.acts:
            self.rfile.read(int(self.headers["Content-Length"]) // 2)
            self.server.received.append(Received(method, self.path, dict(self.headers), b""))
            self.drop()
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(Received(method, self.path, dict(self.headers), body))
        acts = answer is None or answer.acts
        acted = self.server.act(method, self.path, body) if acts else None
        time.sleep(answer.hold_s if answer else 0)
        if answer and answer.drop:
            self.drop()
        else:
            self.answer(acted if acted and answer in (None, LATE) else answer)

    def answer(self, answer: Answer) -> None:
        is_text = isinstance(answer.body, str)
        content = (answer.body if is_text else json.dumps(answer.body)).encode()
        kind = "text/html" if is_text else "application/json"
        self.send(answer.status, {"Content-Type": kind, **answer.headers}, content)


def failure_of(call: Callable[[], object]) -> str:
    """Return the one line that `call` fails with, in which nothing is secret."""
    with pytest.raises(PipelineError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    assert not any(secret in line for secret in (KEY, TOKEN, SIGNATURE))
    return line


def clear_credentials(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Leave the client no credentials: an empty home folder, no KAGGLE_ variables."""
    for name in [*os.environ]:
        if name.startswith("KAGGLE_") or name in ("VERBOSE", "VERBOSE_OUTPUT", "XDG_CONFIG_HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def point_client_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the client's production requests to `url`, under the paths of the local environment."""
    from kagglesdk import kaggle_env

    endpoints = kaggle_env._env_to_endpoint
    monkeypatch.setitem(endpoints, kaggle_env.KaggleEnv.PROD, f"{url}/api")


@contextmanager
def logged_in_at(server: FakeKaggle, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
    """Serve, point the client at the server, and log in with a planted user name and key."""
    with serving(server):
        clear_credentials(monkeypatch, home)
        point_client_at(server.url, monkeypatch)
        monkeypatch.setenv("KAGGLE_USERNAME", USERNAME)
        monkeypatch.setenv("KAGGLE_KEY", KEY)
        yield
