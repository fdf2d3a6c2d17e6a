"""The command `plan`: what it prints, what it writes, what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from data.tree import find_graphs
from models.config.recipe import load_recipe
from pipeline.planning.plan import sizes_of
from tests.command_line import call


def test_the_fitted_recipe_can_be_run_and_fits(tmp_path: Path) -> None:
    out = tmp_path / "fitted.toml"
    options = ("--gpu-hours", 30, "--session-hours", 12, "--weeks", 2, "--memory", 16)
    text = call("plan", "--recipe", "leaderboard", *options, "--out", out, "--json")
    made = json.loads(text)
    recipe = load_recipe(str(out))
    assert made["seeds"] == len(recipe.seeds)
    weeks: dict[int, float] = {}
    for session in made["sessions"]:
        assert session["hours"] <= 12 + 1e-6
        weeks[session["week"]] = weeks.get(session["week"], 0) + session["hours"]
    assert max(weeks.values()) <= 30 + 1e-6
    assert max(weeks) <= 2
    whole = json.loads(call("plan", "--recipe", "leaderboard", "--json"))
    assert made["total"]["gpu_hours"] < whole["total"]["gpu_hours"]
    assert made["dropped"][0] == "seed 4"


def test_the_table_says_what_was_not_measured() -> None:
    text = call("plan", "--recipe", "cpu")
    assert "layout:nlp:random" in text
    assert "computed, not run" in text
    assert "GPU not measured: taken to be 10 times" in text
    assert "GPU         0.0 hours" in call("plan", "--recipe", "cpu", "--gpu-speedup", 0)


def test_a_budget_that_nothing_fits_is_refused_in_one_line() -> None:
    text = call("plan", "--gpu-hours", 0.2, "--session-hours", 0.1, expect=1)
    assert text.count("\n") == 1
    assert "does not fit the budget even with one seed" in text
    assert "no GPU with --gpu-speedup 0" in call(
        "plan", "--gpu-hours", 3, "--gpu-speedup", 0, expect=2
    )


@pytest.mark.parametrize("option", ["--gpu-speedup", "--gpu-hours", "--memory", "--session-hours"])
def test_numbers_that_are_none_are_refused(option: str) -> None:
    assert f"{option} inf: expected a finite number" in call("plan", option, "inf", expect=2)
    assert option in call("plan", option, "nan", expect=2)


def test_what_run_could_not_read_is_not_written(tmp_path: Path) -> None:
    text = call("plan", "--recipe", "cpu", "--out", tmp_path / "fitted", expect=2)
    assert "expected a name that ends in .toml" in text
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_uses_no_gpu_takes_none_of_its_hours() -> None:
    keep = ("--set", "accelerator=cpu")
    assert "GPU         0.0 hours" in call("plan", "--recipe", "cpu", *keep)
    text = call("plan", "--recipe", "cpu", *keep, "--gpu-hours", 30, expect=2)
    assert "the recipe uses no GPU" in text


def test_trainings_shared_among_processes_take_no_gpu() -> None:
    shared = ("cross_config_sage.training.processes=2", "cross_config_sage.graphs_per_step=2")
    overrides = [word for setting in shared for word in ("--set", setting)]
    made = json.loads(call("plan", "--recipe", "cpu", *overrides, "--json"))
    layouts = [row for row in made["collections"] if row["collection"].startswith("layout")]
    assert [row["gpu_hours"]["train"] for row in layouts] == [0.0] * 4
    assert all(row["gpu_hours"]["rank"] > 0 for row in layouts)


def test_weeks_without_end_are_no_work_without_end() -> None:
    made = json.loads(call("plan", "--gpu-hours", 1, "--weeks", 30_000_000, "--json"))
    assert made["dropped"] == []
    assert made["sessions"][-1]["week"] < 1000


def test_the_graphs_of_a_folder_are_counted(tiny_tree: Path) -> None:
    sizes = sizes_of(tiny_tree)
    assert sum(part.graphs for part in sizes) == len(find_graphs(tiny_tree))
    assert "published" not in call("plan", "--recipe", "smoke", "--data", tiny_tree)
    text = call("plan", "--recipe", "smoke", "--data", tiny_tree, "--json")
    assert [row["collection"] for row in json.loads(text)["collections"]] == list(
        dict.fromkeys(part.collection for part in sizes)
    )


def test_sizes_are_those_of_the_graphs(tiny_tree: Path, layout_graph) -> None:
    [part] = [
        part
        for part in sizes_of(tiny_tree)
        if (part.collection, part.split) == (layout_graph.file.collection.name, "train")
    ]
    assert part.most_nodes >= layout_graph.n_nodes
    assert part.nodes <= part.most_nodes
    assert part.most_configs >= layout_graph.n_configs


def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "npz/layout/xla/random/train"
    folder.mkdir(parents=True)
    (folder / "graph.npz").write_bytes(b"nothing")
    text = call("plan", "--recipe", "cpu", "--data", tmp_path, expect=1)
    assert "graph.npz: not a whole npz file" in text


def test_arrays_of_another_shape_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "npz/layout/xla/random/train"
    folder.mkdir(parents=True)
    np.savez(folder / "graph.npz", node_opcode=np.array(3, np.uint8))
    text = call("plan", "--recipe", "cpu", "--data", tmp_path, expect=1)
    assert "graph.npz: key 'node_opcode': " in text
    assert text.count("\n") == 1
