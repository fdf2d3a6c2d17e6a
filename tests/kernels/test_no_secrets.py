"""Secrets planted in the tree and in the environment are in nothing that is written or sent."""

import base64
import io
import lzma
import re
import tempfile
import zipfile
from pathlib import Path

import pytest

from common.retry import RetryPolicy
from kernels.building.build import build
from kernels.building.kinds import KINDS, kind_named
from kernels.datasets.folder import write_weights, write_wheels
from kernels.datasets.push import push_dataset
from kernels.push import push
from tests.fake_kaggle import KEY, FakeKaggle
from tests.kernels.conftest import WHEELS, FakePip

SECRET = "planted-secret-7f3e91"


def test_nothing_written_or_sent_holds_a_secret(
    project: Path,
    tmp_path: Path,
    fake_kaggle: FakeKaggle,
    policy: RetryPolicy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "DATABASE_PASSWORD", "KAGGLE_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    hidden = (".env", "configs/kaggle.json", "features/.git/config", "features/.netrc")
    for name in (*hidden, "data/raw/x"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"password = {SECRET} {KEY}")
    run = tmp_path / "run" / "a-seed0"
    run.mkdir(parents=True)
    (run / "config.toml").write_text('model = "a"\nseed = 0\ncollection = "tile:xla"\n')
    (run / "DONE").write_text("done\n")
    for name in (".env", "notes.html", "scores-test.parquet"):
        (run / name).write_text(SECRET)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("kernels.datasets.folder.run_pip", FakePip(*WHEELS))

    written = tmp_path / "written"
    for name, kind in {**KINDS, "train": kind_named("train", "tile:xla")}.items():
        sources = ["someone/models"]
        made = build("cpu", {}, written / name, kind=kind, root=project, dataset_sources=sources)
        push(made.folder, policy=policy)
    write_wheels(written / "wheels")
    write_weights(run, written / "weights", title="Some weights")
    for name in ("wheels", "weights"):
        push_dataset(written / name, "first", policy=policy)

    places = (written, tmp_path / "temporary")
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert len(files) == 6 + 3 + 3
    contents = [path.read_bytes() for path in files]
    contents += [_unpacked(path.read_text()) for path in written.glob("*/fast-or-slow*.py")]
    contents += [request.body for request in fake_kaggle.received]
    for secret in (SECRET, KEY):
        assert not any(secret.encode() in content for content in contents)


def _unpacked(script: str) -> bytes:
    """Return all that is embedded in a kernel: its archive is compressed."""
    found = re.search(r'^ARCHIVE = """\n(.+?)"""', script, re.DOTALL | re.MULTILINE)
    assert found
    with zipfile.ZipFile(io.BytesIO(lzma.decompress(base64.b64decode(found[1])))) as archive:
        assert "pipeline/__main__.py" in archive.namelist()
        return b"".join(archive.read(name) for name in archive.namelist())
