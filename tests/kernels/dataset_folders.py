"""A small dataset folder to push, and how a push fails."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from kernels.datasets.folder import DATASET_METADATA_FILE, DatasetMetadata, seal
from kernels.datasets.push import DatasetVersion
from tests.fake_kaggle import KEY, USERNAME
from tests.fake_kaggle_datasets import FakeKaggleDatasets

TITLE, SLUG = "Some small models", "some-small-models"
ID = f"{USERNAME}/{SLUG}"
FILES = {
    "top.txt": b"at the top",
    "models/tile-xla/a-seed0/DONE": b"done\n",
    "models/tile-xla/a-seed0/model.safetensors": bytes(range(256)) * 40,
    "models/layout-xla-random/b-seed1/config.toml": b"seed = 1\n",
    "other/deep/er.txt": b"x",
}
Push = Callable[[], DatasetVersion]


def write_dataset(out: Path) -> Path:
    """Write the files and seal them."""
    for name, content in FILES.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    subtitle = "Made up for the tests alone"
    seal(out, DatasetMetadata.of(TITLE, subtitle=subtitle, licence="CC-BY-4.0"))
    return out


def failure(push: Push) -> str:
    with pytest.raises(PipelineError) as caught:
        push()
    line = str(caught.value)
    assert "\n" not in line
    assert KEY not in line
    assert "planted-signature" not in line
    return line


def change_metadata(folder: Path, **fields: object) -> None:
    path = folder / DATASET_METADATA_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def creations(fake_kaggle: FakeKaggleDatasets) -> int:
    methods = ("CreateDataset", "CreateDatasetVersion")
    return sum(len(fake_kaggle.calls(method)) for method in methods)
