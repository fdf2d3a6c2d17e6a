"""The plain PyG example trains, and ranks as its network does as a model of a recipe."""

import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

from common.settings import ROOT, SAMPLE
from data.graph_store.stored_graph import read_graph
from data.tree import LAYOUTS, find_graphs
from examples import train_with_pyg as plain
from features.pyg import TpuGraphsLayout
from models.config.recipe import load_recipe
from models.registry import TrainJob, load_model
from models.train import train_model
from models.training.device import CPU, torch_prepared

STEPS, SEEDS = 400, 10


def test_it_trains_and_prints_each_collection(
    tiny_tree: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["train_with_pyg", "--data", str(tiny_tree), "--steps", "3"]
    monkeypatch.setattr(sys, "argv", arguments)
    plain.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("step 1: loss ")
    collections = {file.collection.name for file in TpuGraphsLayout(tiny_tree, "valid").files}
    assert {line.split(": ")[0] for line in lines} == collections
    assert all("kendall_tau" in line and "opa" in line for line in lines)


def test_the_page_shows_what_the_sample_holds() -> None:
    page = (ROOT / "docs" / "guides" / "pyg.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(layout:\S+): kendall_tau .*, (\d+) graphs$", page, flags=re.MULTILINE)
    held = Counter(file.collection.name for file in find_graphs(SAMPLE, splits=("valid",)))
    layouts = {name: n for name, n in held.items() if name.startswith("layout:")}
    assert {name: int(n) for name, n in shown} == layouts
    assert f"the valid split's {sum(int(n) for _, n in shown)} graphs" in page


def test_the_snippets_of_the_page_are_a_program(tiny_tree: Path, capsys) -> None:
    page = (ROOT / "docs" / "guides" / "pyg.md").read_text(encoding="utf-8")
    program = "".join(re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL))
    assert program.count('"data/sample"') == 2
    names: dict = {}
    exec(program.replace('"data/sample"', repr(str(tiny_tree))), names)
    assert -1 <= names["report"]["kendall_tau"] <= 1
    assert capsys.readouterr().out.startswith(f"{names['report']['kendall_tau']} ")


def mean_tau(valid: TpuGraphsLayout, score) -> float:
    reports = plain.judge(valid, score).values()
    return float(np.mean([g["kendall_tau"] for r in reports for g in r["per_graph"].values()]))


def taus(seed: int, folder: Path) -> tuple[float, float]:
    """Train the network both ways; return the sample's valid graphs' tau by PyG, by a recipe."""
    train = TpuGraphsLayout(SAMPLE, "train", prune="hops-1", scaling="log1p-standardise")
    valid = TpuGraphsLayout(SAMPLE, "valid", prune="hops-1", scaling=train.scaler)
    files = {file.submission_id: file for file in valid.files}
    sets = ["layout.models=[examples.gat:Gat]", "layout.together=true"]
    recipe = load_recipe("smoke", [*sets, f"gat.training.steps={STEPS}"])
    assert recipe.gat.configs_per_step == 64 and recipe.gat.loss == "pairwise_hinge"
    train_model(TrainJob("gat", recipe, train.files, seed, folder), LAYOUTS, resume=False)
    ranker = load_model(folder, recipe.trust)
    with torch_prepared(threads=1, device=CPU):  # as recipes train
        model = plain.train_model(train, STEPS, seed)
    return mean_tau(valid, partial(plain.predict, model)), mean_tau(
        valid, lambda graph: ranker.score(read_graph(files[f"{graph.collection}:{graph.name}"]))
    )


@pytest.mark.slow
def test_it_ranks_as_the_same_network_in_a_recipe_does(tmp_path: Path) -> None:
    both = np.array([taus(seed, tmp_path / str(seed)) for seed in range(SEEDS)])  # (seeds, 2)
    low, high = ttest_rel(*both.T).confidence_interval()
    means = "by plain PyG {:.4f}, by a recipe {:.4f}".format(*both.mean(axis=0))
    apart = np.subtract(*both.T).mean()
    sys.stdout.write(f"\ntau {means}: {apart:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}\n")
    assert -0.02 < low < high < 0.02
