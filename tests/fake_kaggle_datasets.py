"""The fake Kaggle server with a memory: kernels with versions and output, datasets with files.

It acts on what it is sent, unpacks zip archives as Kaggle does, and loses answers when told to.
"""

import io
import json
import re
import zipfile
from collections import defaultdict
from dataclasses import dataclass, field

from tests.fake_kaggle import Answer, FakeKaggle, KaggleHandler, Received

NOT_FOUND = Answer(404, {"code": 404, "message": "Not found"})
DROPPED = Answer(drop=True)
PAGE = 3  # entries of a list at a time, whatever is asked for


@dataclass
class Dataset:
    """What the server keeps of a dataset."""

    version: int = 1
    files: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, object] = field(default_factory=dict)  # of the request that made it


class FakeKaggleDatasets(FakeKaggle):
    """Remembers what it was sent. `will_answer` refuses before acting, `will_lose` after it."""

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = _Handler
        self.datasets: dict[str, Dataset] = {}
        self.kernels: dict[str, int] = {}  # latest version by "owner/slug"
        self.outputs: dict[str, str] = {}  # of any kernel: address by file name
        self.log = ""
        self.statuses: list[str] = []  # of any dataset, before it is ready
        self.blobs: dict[str, tuple[str, bytes]] = {}
        self._lost: dict[str, list[Answer]] = defaultdict(list)

    def will_lose(self, method: str, *answers: Answer) -> None:
        """Act on the next calls of `method`, and answer otherwise."""
        self._lost[method].extend(answers)

    def respond(self, method: str, path: str, body: bytes) -> Answer:
        if self._queued[method]:
            return self._queued[method].pop(0)
        acted = self._act(method, path, body)
        return self._lost[method].pop(0) if self._lost[method] else acted

    def _act(self, method: str, path: str, body: bytes) -> Answer:
        if method == "PUT":
            token = path.rpartition("/")[2].partition("?")[0]
            self.blobs[token] = (self.blobs.get(token, ("", b""))[0], body)
            return Answer(body={})
        own = getattr(self, "_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method).lower(), None)
        return own(json.loads(body)) if own else Answer(body=self._happy_body(method))

    def _start_blob_upload(self, asked: dict[str, object]) -> Answer:
        token = str(len(self.blobs) + 1)
        self.blobs[token] = (str(asked["name"]), b"")
        url = f"{self.url}/upload/{token}?signature=planted-signature-1234"
        return Answer(body={"token": token, "createUrl": url})

    def _get_dataset_status(self, asked: dict[str, object]) -> Answer:
        if _dataset_id(asked) not in self.datasets:
            return Answer(403, {"code": 403, "message": "Permission 'datasets.get' was denied"})
        return Answer(body={"status": self.statuses.pop(0) if self.statuses else "READY"})

    def _get_dataset(self, asked: dict[str, object]) -> Answer:
        dataset = self.datasets[_dataset_id(asked)]
        return Answer(body={"currentVersionNumber": dataset.version})

    def _create_dataset(self, asked: dict[str, object]) -> Answer:
        name = f"{asked['ownerSlug']}/{asked['slug']}"
        self.datasets[name] = Dataset(1, self._files(asked), asked)
        return Answer(body={"ref": name, "url": "https://www.kaggle.com/x", "status": "ok"})

    def _create_dataset_version(self, asked: dict[str, object]) -> Answer:
        name = _dataset_id(asked)
        body = asked["body"]
        assert isinstance(body, dict)
        self.datasets[name] = Dataset(self.datasets[name].version + 1, self._files(body), asked)
        return Answer(body={"ref": name, "url": "https://www.kaggle.com/x", "status": "ok"})

    def _files(self, asked: dict[str, object]) -> dict[str, bytes]:
        entries = asked["files"]
        assert isinstance(entries, list)
        files = {}
        for entry in entries:
            name, content = self.blobs[entry["token"]]
            if not name.endswith(".zip"):
                files[name] = content
                continue
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for member in archive.namelist():
                    files[f"{name.removesuffix('.zip')}/{member}"] = archive.read(member)
        return files

    def _list_dataset_files(self, asked: dict[str, object]) -> Answer:
        names = sorted(self.datasets[_dataset_id(asked)].files)
        rows = [{"name": name} for name in names]
        return _page("datasetFiles", rows, asked)

    def _get_kernel(self, asked: dict[str, object]) -> Answer:
        name = f"{asked['userName']}/{asked['kernelSlug']}"
        if name not in self.kernels:
            return NOT_FOUND
        return Answer(body={"metadata": {"currentVersionNumber": self.kernels[name]}})

    def _save_kernel(self, asked: dict[str, object]) -> Answer:
        name = str(asked["slug"])
        self.kernels[name] = self.kernels.get(name, 0) + 1
        url = f"https://www.kaggle.com/code/{name}"
        return Answer(body={"versionNumber": self.kernels[name], "url": url})

    def _list_kernel_session_output(self, asked: dict[str, object]) -> Answer:
        rows = [{"fileName": name, "url": url} for name, url in self.outputs.items()]
        answer = _page("files", rows, asked)
        assert isinstance(answer.body, dict)
        return Answer(body={**answer.body, "log": self.log})


def _dataset_id(asked: dict[str, object]) -> str:
    return f"{asked['ownerSlug']}/{asked['datasetSlug']}"


def _page(key: str, rows: list[dict[str, str]], asked: dict[str, object]) -> Answer:
    start = int(str(asked.get("pageToken") or 0))
    more = {"nextPageToken": str(start + PAGE)} if start + PAGE < len(rows) else {}
    return Answer(body={key: rows[start : start + PAGE], **more})


class _Handler(KaggleHandler):
    server: FakeKaggleDatasets

    def serve(self, method: str) -> None:
        body = self.read_body()
        self.server.received.append(Received(method, self.path, dict(self.headers), body))
        answer = self.server.respond(method, self.path, body)
        if answer.drop:
            self.drop()
        else:
            self.send(answer)
