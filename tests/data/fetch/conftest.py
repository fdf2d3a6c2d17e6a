"""A file server, a small dataset to serve, and retries that wait for nothing."""

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from common.http import RetryPolicy
from data.fetch.fetch import FetchJob
from data.official.published import PUBLISHED_GRAPHS
from tests.support.file_server import FileServer, running_file_server

POLICY = RetryPolicy(attempts=4, first_wait_s=0, sleep=lambda seconds: None)
TRAIN, VALID = "layout:xla:default/train", "layout:xla:default/valid"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def files() -> Iterator[FileServer]:
    with running_file_server() as server:
        yield server


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def make_job(folder: Path, *parts: str, n_graphs: int = 2) -> FetchJob:
    """Make a job that expects some graphs per part and waits for nothing."""
    return FetchJob(parts, folder / "out", dict.fromkeys(PUBLISHED_GRAPHS, n_graphs), POLICY)


def part_files(part: str, count: int = 2) -> dict[str, bytes]:
    """Return npz files that do not compress, some 100 kB each."""
    contents = {}
    for number in range(count):
        file = io.BytesIO()
        rng = np.random.default_rng([list(PUBLISHED_GRAPHS).index(part), number])
        np.savez(file, values=rng.integers(0, 255, 100_000, dtype=np.uint8))
        contents[f"npz/{part.replace(':', '/')}/g.{number}.npz"] = file.getvalue()
    return contents


def tar_bytes(members: Mapping[str, bytes], *extra: tarfile.TarInfo, lead: str = "") -> bytes:
    """Return a tar archive of `members`, then `extra` members without content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{lead}{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info)
    return packed.getvalue()


def tree_of(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in (out / "npz").rglob("*")
        if path.is_file()
    }
