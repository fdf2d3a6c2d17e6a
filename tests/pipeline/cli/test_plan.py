"""The command `plan`: what it prints, what it writes, what it refuses."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from data.graphs.graph import LayoutGraph
from data.tree import find_graphs
from models.config.recipe import load_recipe
from pipeline.planning.plan import sizes_of
from tests.command_line import call


def test_the_fitted_recipe_can_be_run_and_fits(tmp_path: Path) -> None:
    out = tmp_path / "fitted.toml"
    whole = json.loads(call("plan", "--recipe", "leaderboard", "--json"))["total"]
    lent = 0.3 * whole["gpu_hours"]  # a week, of two
    options = ("--gpu-hours", lent, "--session-hours", lent / 2, "--weeks", 2, "--memory", 16)
    text = call("plan", "--recipe", "leaderboard", *options, "--out", out, "--json")
    made = json.loads(text)
    recipe = load_recipe(str(out))
    assert made["seeds"] == len(recipe.seeds)
    weeks: dict[int, float] = {}
    for session in made["sessions"]:
        assert session["hours"] <= lent / 2 + 1e-6
        weeks[session["week"]] = weeks.get(session["week"], 0) + session["hours"]
    assert max(weeks.values()) <= lent + 1e-6
    assert max(weeks) <= 2
    assert made["total"]["gpu_hours"] < whole["gpu_hours"]
    assert made["dropped"][0] == "seed 4"


def test_the_table_says_what_was_not_measured() -> None:
    text = call("plan", "--recipe", "cpu")
    assert "layout:nlp:random" in text
    assert "computed, not run" in text
    hint = "GPU not measured: a t4 is taken at shares of its data sheet"
    assert f"{hint} (--calibrate)" in text
    assert "GPU         0 hours" in call("plan", "--recipe", "cpu", "--gpu", "none")
    few = ("--set", "layout.models=[cross_config_sage]", "--set", "cross_config_sage.hidden=8")
    text = call("plan", "--recipe", "smoke", *few, "--calibrate")
    assert "a training step of cross_config_sage took " in text
    assert f"{hint} (there is none here)" in text


def test_cards_lie_side_by_side_and_short_hours_show() -> None:
    few = ("--recipe", "smoke", "--set", "tile.models=[tile_linear]", "--gpu-hours", 1)
    text = call("plan", *few, "--gpus", 2, "--gpu", "T4")
    table = text[text.index("session") :].splitlines()
    assert table[0].split()[3:5] == ["hours", "card"]
    assert [line.split()[4] for line in table[1:]] == ["1", "2"] * (len(table) // 2)
    assert all(float(line.split()[3]) > 0 for line in table[1:])


def test_it_says_which_network_fits_the_card() -> None:
    few = ("--recipe", "reference", "--set", "tile.models=[tile_linear]", "--set")
    lines = call("plan", *few, "tgraph.permutations=1").splitlines()
    [train] = [line for line in lines if line.startswith("tgraph") and " train " in line]
    assert re.search(r"14\.6 +no +halve one of tgraph\.configs_per_step \(now 64\), ", train)
    [rank] = [line for line in lines if line.startswith("tgraph") and " rank " in line]
    assert re.search(r"14\.6 +yes +-$", rank)


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("--gpu-hours", 3, "--gpu", "none"), 2, "no GPU with --gpu none"),
        (("--gpus", 2, "--gpu", "none"), 2, "--gpus 2: there is no GPU with --gpu none"),
        (("--gpu-hours", 3, "--set", "accelerator=cpu"), 2, "the recipe uses no GPU"),
        (("--gpu-hours", 0.2, "--session-hours", 0.1), 1, "budget even with one seed"),
        (("--out", "fitted"), 2, "expected a name that ends in .toml"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[object, ...], code: int, named: str) -> None:
    text = call("plan", *words, expect=code)
    assert named in text
    assert text.count("\n") == 1


def test_the_graphs_of_a_folder_are_counted(tiny_tree: Path, layout_graph: LayoutGraph) -> None:
    sizes = sizes_of(tiny_tree)
    name = layout_graph.file.collection.name
    [part] = [part for part in sizes if (part.collection, part.split) == (name, "train")]
    assert part.most_nodes >= max(part.nodes, layout_graph.n_nodes)
    assert part.most_configs >= layout_graph.n_configs
    assert sum(part.graphs for part in sizes) == len(find_graphs(tiny_tree))
    assert "published" not in call("plan", "--recipe", "smoke", "--data", tiny_tree)
    text = call("plan", "--recipe", "smoke", "--data", tiny_tree, "--json")
    assert [row["collection"] for row in json.loads(text)["collections"]] == list(
        dict.fromkeys(part.collection for part in sizes)
    )


def test_arrays_of_another_shape_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "npz/layout/xla/random/train"
    folder.mkdir(parents=True)
    np.savez(folder / "graph.npz", node_opcode=np.array(3, np.uint8))
    text = call("plan", "--recipe", "cpu", "--data", tmp_path, expect=1)
    assert "graph.npz: key 'node_opcode': " in text
    assert text.count("\n") == 1
