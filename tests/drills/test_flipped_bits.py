"""A bit that flips in a file which a resume reads: it is noticed, or it changes nothing.

A flipped bit in the run's own files or in the store is refused, by the file's name; for the store
see tests/pipeline/test_commands.py and tests/data/graph_store/test_store.py.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.npz.damaged_archives import flipped
from tests.drills.processes import Scene, Watched

FLIPS = 3
TILE = "models/tile-xla"
LAYOUT = "models/layout-xla-random"
KINDS = {
    "weights": f"{LAYOUT}/cross_config_sage-seed0/model.safetensors",
    "tile weights": f"{TILE}/late_fusion_sage-seed0/model.safetensors",
    "booster": f"{LAYOUT}/layout_boosting-seed0/booster.txt",
    "importances": f"{TILE}/tile_boosting-seed0/importances.parquet",
    "metrics": f"{TILE}/late_fusion_sage-seed0/metrics.jsonl",
    "model's config": f"{TILE}/tile_boosting-seed0/config.toml",
    "member's scores": "scores/tile-xla/tile_boosting-seed0/test.parquet",
    "blended scores": "scores/tile-xla/blend/test.parquet",
    "choice": "scores/tile-xla/blend/choice.json",
    "config": "config.toml",
    "model's mark": f"{LAYOUT}/layout_boosting-seed0/DONE",
}


def flip(path: Path, rng: np.random.Generator) -> None:
    content = path.read_bytes()
    place = int(rng.integers(8 * len(content)))
    path.write_bytes(flipped(content, place // 8, 1 << place % 8))


def goes_on_or_is_refused(scene: Scene, calm: Scene, path: Path) -> bool:
    """Resume; it ends with the same bytes, but for the flipped file itself, or names the file."""
    watched = Watched(scene)
    if watched.end() == 0:
        path.write_bytes((calm.out / path.relative_to(scene.out)).read_bytes())
        watched.ends_as(calm)
        return True
    line = watched.is_refused(watched.end())
    assert str(path) in line or str(path.parent) in line, line
    return False


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_a_run_is_noticed(kind: str, calm: Scene, tmp_path: Path) -> None:
    rng = np.random.default_rng(sorted(KINDS).index(kind))
    n_unnoticed = 0
    for number in range(FLIPS):
        scene = replace(calm, out=tmp_path / str(number), log=tmp_path)
        shutil.copytree(calm.out, scene.out)
        path = scene.out / KINDS[kind]
        flip(path, rng)
        n_unnoticed += goes_on_or_is_refused(scene, calm, path)
    assert n_unnoticed < FLIPS, "no flip was noticed"
