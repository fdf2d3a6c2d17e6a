"""Small files under the names of the real ones."""

import shutil
from pathlib import Path

import pytest

from benchmarks.accuracy.tasks import XLA_DEFAULT, Sources
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory, tiny_tree: Path) -> Sources:
    """A small synthetic graph under the name of the real one; the tiny tree as the sample."""
    real = tmp_path_factory.mktemp("real")
    made = write_sized(real, GraphSize(300, 8, 150), collection=XLA_DEFAULT).path
    for split, name in (("train", "unet3d"), ("valid", "unet_3d.4x4.bf16")):
        path = real / "npz" / "layout" / "xla" / "default" / split / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, path)
    return Sources(tiny_tree, real)
