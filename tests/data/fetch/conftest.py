"""A file server, a small dataset to serve, and retries that wait for nothing."""

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from common.http import RetryPolicy
from data.fetch.fetch import FetchJob
from data.official.published import PUBLISHED_GRAPHS, Part
from data.tree import SPLITS, collection_named
from tests.support.file_server import FileServer, running_file_server

XLA = collection_named("layout:xla:default")
TILE = collection_named("tile:xla")
POLICY = RetryPolicy(attempts=4, first_wait_s=0, sleep=lambda seconds: None)
TRAIN, VALID, TEST = (Part(XLA, split) for split in SPLITS)


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


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., FetchJob]:
    """Make a job that expects two graphs per part and waits for nothing."""

    def make(*parts: Part, **changes: object) -> FetchJob:
        values: dict[str, object] = {
            "parts": parts,
            "out": tmp_path / "out",
            "expected": dict.fromkeys(PUBLISHED_GRAPHS, 2),
            "policy": POLICY,
            **changes,
        }
        return FetchJob(**values)  # type: ignore[arg-type]

    return make


def part_files(part: Part, count: int = 2) -> dict[str, bytes]:
    """Return npz files that do not compress, some 100 kB each."""
    contents = {}
    for number in range(count):
        file = io.BytesIO()
        rng = np.random.default_rng([list(PUBLISHED_GRAPHS).index(part), number])
        np.savez(file, values=rng.integers(0, 255, 100_000, dtype=np.uint8))
        contents[f"{part.folder.as_posix()}/g.{number}.npz"] = file.getvalue()
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
