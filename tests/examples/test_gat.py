"""Custom models named by import path: training, loading, checks and errors."""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError, UsageError
from common.jobs.local_executors import Processes
from common.jobs.run_jobs import Job, run_jobs
from common.settings import ROOT
from data.graph_store.stored_graph import read_graph
from data.tree import collection_named, find_graphs
from models.config.recipe import Recipe, _with_named_models, load_recipe
from models.registry import TrainJob, load_model
from models.train import train_model
from tests.common.jobs.work import handed_back
from tests.support.command_line import call

GAT = 'layout.models=["layout_linear", "examples.gat:Gat"]'
MYGAT = ["mygat:Gat"]
COLLECTION, TILES = collection_named("layout:xla:random"), collection_named("tile:xla")


def test_a_custom_tile_network_is_trained_and_ranks(tiny_tree: Path, importable: Path) -> None:
    page = (ROOT / "docs" / "guides" / "add_a_model.md").read_text(encoding="utf-8")
    (network,) = re.findall(r"^ *```python\n((?:(?!```).)*class Sums.*?)^ *```", page, re.M | re.S)
    (importable / "sums.py").write_text(textwrap.dedent(network))
    recipe = load_recipe("smoke", ['tile.models=["sums:Sums"]', "sums.training.steps=2"])
    files = find_graphs(tiny_tree, collections=(TILES,), splits=("train",))
    train_model(TrainJob("sums", recipe, files, 0, importable / "model"), TILES, resume=False)
    scores = load_model(importable / "model", ["sums:Sums"]).score(read_graph(files[0]))
    assert np.isfinite(scores).all() and scores.std() > 0
    sys.modules.pop("sums")


def train_copy(tree: Path, folder: Path, steps: int, *changes: tuple[str, str]) -> Path:
    """Train a changed copy of the example, `mygat.py` in `folder`, and return the model folder."""
    text = (ROOT / "examples" / "gat.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "mygat.py").write_text(text, encoding="utf-8")
    keys = ['layout.models=["mygat:Gat"]', "mygat.hidden=8", f"mygat.training.steps={steps}"]
    files = find_graphs(tree, collections=(COLLECTION,), splits=("train",))
    job = TrainJob("mygat", load_recipe("smoke", keys), files, 0, folder / "model")
    train_model(job, COLLECTION, resume=True)
    return job.run_dir


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    _with_named_models.cache_clear()
    yield tmp_path
    sys.modules.pop("mygat", None)


def test_a_class_that_changed_since_training_is_refused(tiny_tree: Path, importable: Path) -> None:
    folder = train_copy(tiny_tree, importable, 1)
    load_model(folder, MYGAT)
    with pytest.raises(UsageError, match=r"model: was begun with source\.mygat\.py = '.*', now '"):
        train_copy(tiny_tree, importable, 1, ("F.gelu(layer", "F.relu(layer"))
    with pytest.raises(PipelineError, match=r"model 'mygat:Gat': mygat\.py has changed since; "):
        load_model(folder, MYGAT)


LOSS = (
    "class GatConfig(LayoutGnnConfig):",
    "from typing import Literal\n"
    "from models.training.losses import LOSSES\n\n\n"
    "def mine(scores, runtime):\n"
    "    return scores.square().mean(dim=-1) + 0 * runtime.isfinite().sum(dim=-1)\n\n\n"
    "class GatConfig(LayoutGnnConfig):\n"
    "    loss: Literal['mine', 'list_mle', 'theirs'] = 'mine'\n",
)
LOSSES = ("    Config = GatConfig", "    Config, losses = GatConfig, {**LOSSES, 'mine': mine}")


def test_it_may_have_a_loss_of_its_own(tiny_tree: Path, importable: Path) -> None:
    folder = train_copy(tiny_tree, importable, 100, LOSS, LOSSES)
    file, *_ = find_graphs(tiny_tree, collections=(COLLECTION,))
    scores = load_model(folder, MYGAT).score(read_graph(file))
    assert np.abs(scores).max() < 0.1  # the loss is their square


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (".squeeze(-1)", "", r"forward returned \((\d+), 1\), expected a tensor \(\1,\)"),
        ("x = x.view(", "x = x.T.view(", r"in forward, line \d+ of mygat.py: RuntimeError: "),
        (".squeeze(-1)", ".squeeze(-1).detach().numpy()", "forward returned a ndarray, expected a"),
        (".squeeze(-1)", ".squeeze(-1).detach()", r"forward returned \(\d+,\) without a gradient"),
        ("config.layers)", "config.depth)", r"in __init__, line \d+ of mygat.py: AttributeError: "),
        (".mean(dim=-1) +", " +", r"loss 'mine' returned \(\d+,\), expected a tensor \(\) "),
        ("return scores.square", "return 1.0\n    scores.square", "loss 'mine' returned a float, "),
        (
            "scores.square",
            "scores.detach().square",
            r"loss 'mine' returned \(\) without a gradient",
        ),
        ("scores.square", "scores.cube", r"in mine, line \d+ of mygat.py: AttributeError: "),
    ],
)
def test_a_fault_in_its_network_or_loss_names_it(
    old: str, new: str, message: str, tiny_tree: Path, importable: Path
) -> None:
    with pytest.raises(PipelineError, match=f"model 'mygat:Gat': {message}") as raised:
        train_copy(tiny_tree, importable, 1, LOSS, LOSSES, (old, new))
    if number := re.search(r"line (\d+)", str(raised.value)):
        source = (importable / "mygat.py").read_text("utf-8").splitlines()
        assert new in source[int(number[1]) - 1]


def test_a_loss_that_no_model_has_is_refused_with_the_recipe(
    tiny_tree: Path, importable: Path
) -> None:
    message = "mygat.loss is 'mine'; expected one of the `losses` of mygat:Gat: pairwise_hinge, "
    with pytest.raises(UsageError, match=message):
        train_copy(tiny_tree, importable, 1, LOSS)


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("smoke", [GAT, "gat.hidden=8", "blend.weights.gat=0.5"])


def test_its_recipe_can_be_written(recipe: Recipe) -> None:
    table = recipe.model_dump(mode="json")
    assert Recipe.from_table(table, source="again", trust=recipe.trust) == recipe


@pytest.mark.slow
def test_its_recipe_can_be_sent_to_a_worker(recipe: Recipe) -> None:
    done = run_jobs([Job("sent", handed_back, (recipe,))], Processes([None]))
    assert done["sent"].value == recipe


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([GAT, "gat.width=8"], "unknown key 'gat.width'; expected one of: configs_per_step, "),
        ([GAT, "gat.hidden=0"], "key 'gat.hidden' is 0"),
        (["gat.hidden=8"], "unknown key 'gat'; "),
        (["nosuch=8"], "unknown key 'nosuch'; .*, tgraph, threads, tile, [a-z_, ]*$"),
        ([GAT, "blend.weights.nosuch=1"], "blend.weights.nosuch: no such model; expected .*gat"),
        (
            ['layout.models=["examples.nosuch:Gat"]'],
            "recipe smoke: model 'examples.nosuch:Gat': cannot be imported",
        ),
        (
            ['layout.models=["examples.gat:Nosuch"]'],
            "module 'examples.gat' has no class 'Nosuch'; it has GatNet, GatConfig, Gat$",
        ),
        (['layout.models=["examples.gat:GatNet"]'], "subclass of models.layout.network"),
        (['tile.models=["examples.gat:Gat"]'], "ranks no tile configs"),
        (['layout.models=["models.layout.network:LayoutNetwork"]'], "has no forward; expected one"),
        (['layout.models=["examples.gat:Gat", "examples.gat:Gat"]'], "each entry once"),
        (['layout.models=["models.config.blend:Gat"]'], "cannot be imported|is taken"),
    ],
)
def test_wrong_recipes_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe("smoke", overrides)


def test_it_ranks_and_predicts_with_consent(tiny_tree: Path, importable: Path) -> None:
    folder = train_copy(tiny_tree, importable, 1)
    file, *_ = find_graphs(tiny_tree, collections=(COLLECTION,), splits=("valid",))
    consent = ("--run", folder, "--trust", "mygat:Gat")
    assert "ranked by   model\n" in call(
        "rank", *consent, file.path, "--collection", COLLECTION.name
    )
    assert "scores " in call("predict", *consent, "--data", tiny_tree, "--split", "valid")
