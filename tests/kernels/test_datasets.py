"""Datasets of weights and wheels: their files, and uploads to a fake server."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.http import RetryPolicy
from common.settings import ROOT
from kernels.datasets import (
    DATASET_METADATA_FILE,
    SentDataset,
    dataset_metadata,
    push_dataset,
    seal,
    sent_files,
    write_weights,
    write_wheels,
)
from tests.kernels.conftest import WHEELS, FakePip, contents
from tests.support.fake_kaggle import KEY, USERNAME, FakeKaggle, failure_of

TITLE, SLUG = "Some small models", "some-small-models"
ID = f"{USERNAME}/{SLUG}"
FILES = {
    "top.txt": b"at the top",
    "models/tile-xla/a-seed0/DONE": b"done\n",
    "models/tile-xla/a-seed0/model.safetensors": bytes(range(256)) * 40,
    "models/layout-xla-random/b-seed1/config.toml": b"seed = 1\n",
    "other/deep/er.txt": b"x",
}
Push = Callable[[], SentDataset]
NEEDED = {
    "DONE": b"done\n",
    "config.toml": b'model = "a"\nseed = 0\ncollection = "tile:xla"\n',
    "metrics.jsonl": b'{"step": 1}\n',
    "model.safetensors": b"weights",
    "linear.json": b"{}",
    "booster.txt": b"trees",
    "importances.parquet": b"PAR1",
}
NOT_NEEDED = {
    "checkpoint.safetensors": b"state",
    "scores-valid.parquet": b"PAR1",
    "report.json": b"{}",
    ".lock": b"",
}


METADATA_WITH_KEY = json.dumps(
    {"id": SLUG, "title": TITLE, "subtitle": KEY, "licenses": [{"name": "other"}]}
).encode()


def write_run(folder: Path, *, collection: str = "tile:xla", done: bool = True) -> Path:
    folder.mkdir(parents=True)
    for name, content in {**NEEDED, **NOT_NEEDED}.items():
        (folder / name).write_bytes(content.replace(b"tile:xla", collection.encode()))
    if not done:
        (folder / "DONE").unlink()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run" / "models" / "tile-xla" / "a-seed0")
    write_run(tmp_path / "run" / "models" / "xr" / "a-seed0", collection="layout:xla:random")
    (tmp_path / "run" / "config.toml").write_text('data = "0"\n[recipe]\nname = "mine"\n')
    (tmp_path / "run" / "submission.csv").write_text("ID,TopConfigs\n")
    return tmp_path / "run"


def test_weights_are_what_ranking_needs(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write_weights(run, out, title=TITLE) == ["layout-xla-random/a-seed0", "tile-xla/a-seed0"]
    found = contents(out)
    write_weights(run, tmp_path / "again", title=TITLE)
    assert contents(tmp_path / "again") == found
    metadata = json.loads(found.pop("dataset-metadata.json"))
    assert {name: found[f"models/tile-xla/a-seed0/{name}"] for name in NEEDED} == NEEDED
    assert len(found) == 2 * len(NEEDED)
    assert (metadata["id"], metadata["title"]) == (SLUG, TITLE)
    assert (metadata["licenses"], metadata["isPrivate"]) == ([{"name": "CC-BY-4.0"}], True)
    assert len(sent_files(out)) == 2 * len(NEEDED)


def test_unusable_models_leave_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    begun = write_run(tmp_path / "begun", done=False)
    leaky, linked = write_run(tmp_path / "leaky"), write_run(tmp_path / "linked")
    (leaky / "metrics.jsonl").write_text(f'"{KEY}"\n')
    (linked / "more.json").symlink_to(leaky / "linear.json")
    monkeypatch.setenv("KAGGLE_KEY", KEY)
    for source, told in (
        (tmp_path / "empty", "has no run folder of a model"),
        (begun, "is not trained to the end"),
        (leaky, r"metrics\.jsonl: contains a Kaggle credential"),
        (linked, r"more\.json: is hidden or a link"),
    ):
        with pytest.raises(PipelineError, match=told):
            write_weights(source, tmp_path / "out", title=TITLE)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_wheels_are_the_pinned_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = FakePip(*WHEELS)
    monkeypatch.setattr("kernels.datasets.run_pip", pip)
    assert [path.name for path in write_wheels(tmp_path / "one")] == list(WHEELS)
    write_wheels(tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert pip.command[-2:] == ["torch-geometric", "tomli-w"]
    assert pip.command[pip.command.index("-c") + 1] == str(ROOT / "requirements.txt")
    assert pip.command[pip.command.index("--python-version") + 1] == "3.12"
    write_wheels(tmp_path / "newer", ["polars", "polars-runtime-32"])
    assert pip.command[-3:] == ["tomli-w", "polars", "polars-runtime-32"]
    assert {"--no-deps", "--only-binary"} < set(pip.command)
    metadata = json.loads((tmp_path / "one" / DATASET_METADATA_FILE).read_text())
    assert metadata["id"] == "fast-or-slow-wheels"
    assert sent_files(tmp_path / "one") == [*WHEELS]


def test_wheels_that_cannot_be_had_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = FakePip(error="x\nERROR: no index at https://me:pl@nt/ed@host/simple\n")
    monkeypatch.setattr("kernels.datasets.run_pip", pip)
    with pytest.raises(PipelineError, match=r"no index at https://\*\*\*@host/simple; check the"):
        write_wheels(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def write_dataset(out: Path) -> Path:
    for name, content in FILES.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    subtitle = "Made up for the tests alone"
    seal(out, dataset_metadata(TITLE, subtitle=subtitle, licence="CC-BY-4.0"))
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "dataset")


@pytest.fixture
def push(folder: Path, policy: RetryPolicy) -> Push:
    return lambda: push_dataset(folder, "what is new", policy=policy)


def change(folder: Path, name: str = "top.txt", content: bytes = b"changed") -> None:
    (folder / name).write_bytes(content)


def test_new_dataset_is_private_and_has_every_file(
    fake_kaggle: FakeKaggle, push: Push, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / DATASET_METADATA_FILE).read_bytes()
    assert push() == SentDataset(ID, "created")
    made = fake_kaggle.datasets[ID]
    assert {name: made.files[name] for name in FILES} == FILES
    assert set(made.files) == set(FILES)
    assert made.asked["title"] == TITLE
    assert (made.asked["ownerSlug"], made.asked["slug"]) == (USERNAME, SLUG)
    assert made.asked["licenseName"] == "CC-BY-4.0"
    assert made.asked["isPrivate"] is True
    assert (folder / DATASET_METADATA_FILE).read_bytes() == before
    assert capsys.readouterr() == ("", "")
    assert push() == SentDataset(ID, "updated")
    assert fake_kaggle.datasets[ID].version == 2


def test_link_in_a_dataset_is_not_pushed(fake_kaggle: FakeKaggle, push: Push, folder: Path) -> None:
    for name in ("models", "top.txt", DATASET_METADATA_FILE):
        target = (folder / name).rename(folder.parent / "target")
        (folder / name).symlink_to(target)
        assert f"{name}: is hidden or a link" in failure_of(push)
        (folder / name).unlink()
        target.rename(folder / name)
    assert not fake_kaggle.received


@pytest.mark.parametrize(
    "bad",
    [
        (DATASET_METADATA_FILE, b"[" * 100_000, DATASET_METADATA_FILE),
        (DATASET_METADATA_FILE, b'{"title": null}', "key 'id': expected a value"),
        ("models/empty", b"", "is empty"),
        (".hidden", b"x", "is hidden"),
        ("top.txt", b"\0" * 5 + KEY.encode(), "top.txt: contains a Kaggle credential"),
        (DATASET_METADATA_FILE, METADATA_WITH_KEY, f"{DATASET_METADATA_FILE}: contains a Kaggle"),
    ],
)
def test_folder_that_would_not_arrive_whole_is_refused(
    fake_kaggle: FakeKaggle, push: Push, folder: Path, bad: tuple[str, bytes, str]
) -> None:
    name, content, expected = bad
    change(folder, name, content)
    assert expected in failure_of(push)
    assert not fake_kaggle.received
