"""The whole way through Kaggle: the README's commands, and no secret in what is written or sent."""

import base64
import io
import json
import lzma
import re
import tempfile
import zipfile
from pathlib import Path

import pytest

from common.retry import RetryPolicy
from kernels.build import KINDS, build, kind_named
from kernels.datasets import push_dataset, write_weights, write_wheels
from kernels.remote import push
from tests.data.fetch.file_server import FileServer
from tests.kernels.conftest import WHEELS, FakePip
from tests.kernels.test_datasets import write_run
from tests.support.command_line import call
from tests.support.fake_kaggle import KEY, USERNAME, Answer, FakeKaggle

TRAIN = "fast-or-slow-smoke-train-tile-xla"
INFER = "fast-or-slow-smoke-infer"
SECRET = "planted-secret-7f3e91"


def finish(kaggle: FakeKaggle, storage: FileServer, folder: Path) -> None:
    """Let the kernel that runs be complete, with the files of `folder` as its output."""
    kaggle.outputs.clear()
    for path in folder.rglob("*"):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            storage.files[f"/{name}"] = path.read_bytes()
            kaggle.outputs[name] = f"{storage.url}/{name}?signature=1"
    kaggle.will_answer("GetKernelSessionStatus", *[Answer(body={"status": "COMPLETE"})] * 2)


def test_every_command_of_the_way(
    fake_kaggle: FakeKaggle,
    storage: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernels.datasets.run_pip", FakePip(*WHEELS))
    runs = tmp_path / "runs"
    wheels = ["--dataset", f"{USERNAME}/fast-or-slow-wheels"]
    built = ["kernel", "build", "--recipe", "smoke", *wheels]

    call("kernel", "wheels", "--out", runs / "wheels")
    call("dataset", "push", runs / "wheels", "-m", "pinned versions")
    train = ["--kind", "train", "--collection", "tile:xla", "--out", runs / "kernel-tile"]
    call(*built, *train)
    assert f"pushed      {USERNAME}/{TRAIN} version 1" in call(
        "kernel", "push", runs / "kernel-tile"
    )
    assert call("kernel", "status", TRAIN) == f"{USERNAME}/{TRAIN}  running\n"

    write_run(tmp_path / "working" / "models" / "tile-xla" / "a-seed0")
    finish(fake_kaggle, storage, tmp_path / "working")
    assert call("kernel", "status", TRAIN) == f"{USERNAME}/{TRAIN}  complete\n"
    call("kernel", "output", TRAIN, "--out", runs / "trained" / "tile")
    call("kernel", "weights", "--run", runs / "trained", "--out", runs / "weights")
    call("dataset", "push", runs / "weights", "-m", "all collections")
    weights = fake_kaggle.datasets[f"{USERNAME}/fast-or-slow-weights"]
    assert weights.files["models/tile-xla/a-seed0/model.safetensors"] == b"weights"

    infer = ["--kind", "infer", "--dataset", f"{USERNAME}/fast-or-slow-weights"]
    call(*built, *infer, "--out", runs / "kernel-infer")
    call("kernel", "push", runs / "kernel-infer")
    assert fake_kaggle.kernels == {f"{USERNAME}/{TRAIN}": 1, f"{USERNAME}/{INFER}": 1}
    first, second = (request.json for request in fake_kaggle.calls("SaveKernel"))
    assert (first["machineShape"], first["enableInternet"]) == ("NvidiaTeslaT4", False)
    sources = [f"{USERNAME}/fast-or-slow-wheels", f"{USERNAME}/fast-or-slow-weights"]
    assert second["datasetDataSources"] == sources

    (tmp_path / "ranked").mkdir()
    (tmp_path / "ranked" / "submission.csv").write_text("ID,TopConfigs\n")
    finish(fake_kaggle, storage, tmp_path / "ranked")
    got = json.loads(call("kernel", "output", INFER, "--out", runs / "inferred", "--json"))
    assert got["files"] == 1
    assert (runs / "inferred" / "submission.csv").read_text() == "ID,TopConfigs\n"


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
    monkeypatch.setattr("kernels.datasets.run_pip", FakePip(*WHEELS))

    written = tmp_path / "written"
    for name, kind in {**KINDS, "train": kind_named("train", "tile:xla")}.items():
        sources = ["someone/models"]
        made = build("cpu", {}, written / name, kind=kind, root=project, dataset_sources=sources)
        push(made.parent, policy=policy)
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
