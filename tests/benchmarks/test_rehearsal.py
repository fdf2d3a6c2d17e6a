"""The rehearsal of the leaderboard recipe goes through kernels to an accepted submission."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks.rehearsal import COLLECTIONS, divided_steps
from common.settings import ROOT
from models.config.recipe import load_recipe

TINY = [
    *("seeds=[0]", "threads=1", "valid_configs=20", "features.prune=config"),
    *("cross_config_sage.hidden=8", "cross_config_sage.configs_per_step=4"),
    *("tgraph.hidden=8", "tgraph.configs_per_step=4", "tgraph.permutations=1"),
    *("layout_boosting.configs_per_graph=20", "layout_boosting.num_boost_round=5"),
    *("config_columns_boosting.configs_per_graph=20", "config_columns_boosting.num_boost_round=8"),
]


def make(*words: str) -> list[str]:
    return ["make", "--old-file=setup", "rehearsal", *words]


def test_networks_train_a_two_hundredth_of_their_steps_by_collection() -> None:
    recipe = load_recipe("leaderboard", ["tgraph.training.steps=1900"])
    fewer = load_recipe("leaderboard", [*divided_steps(recipe)])
    steps = {
        model: [fewer.of(one).training_of(model).steps for one in COLLECTIONS]
        for model in ("cross_config_sage", "tgraph")
    }
    assert steps == {"cross_config_sage": [115, 260], "tgraph": [10, 10]}
    assert fewer.of(COLLECTIONS[1]).cross_config_sage.training.warmup_steps == 13
    assert fewer.of(COLLECTIONS[1]).tgraph.cross_config is False


def test_overrides_of_the_makefile_are_keys_of_the_recipe() -> None:
    printed = subprocess.run(
        make("-n", "--no-print-directory"), cwd=ROOT, capture_output=True, text=True, check=True
    )
    words = shlex.split(printed.stdout.splitlines()[-1])
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    recipe, own = load_recipe("leaderboard", overrides), load_recipe("leaderboard")
    assert recipe.cross_config_sage.hidden < own.cross_config_sage.hidden
    assert recipe.models_of("layout") == own.models_of("layout")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smallest_share_goes_through_all_stages(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    words = make(f"REHEARSAL={tmp_path}", f"OVERRIDES={' '.join(TINY)}")
    words.append(f"OPTIONS=--share 0 --max-configs 40 --page {page}")
    for _ in range(2):  # the second call finds all stages finished
        subprocess.run(words, cwd=ROOT, check=True)
    assert "accepts 2 rows" in page.read_text()
    assert "| layout:xla:random | test | 1 | " in page.read_text()
    assert json.loads((tmp_path / "sessions/infer/1/kernel.json").read_text())["kind"] == "infer"
