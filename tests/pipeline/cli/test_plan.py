"""The command `plan`: what it prints, what it refuses."""

import json
import re
from pathlib import Path

import pytest

from common.settings import SAMPLE
from data.graphs.graph import LayoutGraph
from data.sizes import sizes_of
from data.tree import find_graphs
from tests.support.command_line import call, stderr_of


def test_the_table_says_what_was_not_measured() -> None:
    text = call("plan", "--recipe", "cpu")
    assert "layout:nlp:random" in text
    assert "computed, not run" in text
    hint = "GPU not measured: a t4 is taken at shares of its data sheet"
    assert f"{hint} (--calibrate)" in text
    assert "GPU" not in call("plan", "--recipe", "cpu", "--gpu", "none")
    few = ("--set", "layout.models=[cross_config_sage]", "--set", "cross_config_sage.hidden=8")
    text = call("plan", "--recipe", "smoke", *few, "--calibrate")
    assert "a training step of cross_config_sage took " in text
    assert f"{hint} (there is none here)" in text


def test_the_run_has_a_lower_bound_on_all_cards_and_cores() -> None:
    few = ("--recipe", "smoke", "--gpus", 3, "--cores", 5)
    run = r"^run +at least [\d.]+ (s|min|h) on 3 t4 and 5 cores$"
    assert re.search(run, call("plan", *few), re.MULTILINE)
    linear = ("layout.models=[layout_linear]", "tile.models=[tile_linear]")
    no_networks = [word for key in linear for word in ("--set", key)]
    text = call("plan", *few, *no_networks)
    assert re.search(r"^run +at least .* on 5 cores$", text, re.MULTILINE)
    one_core = json.loads(call("plan", "--recipe", "smoke", "--cores", 1, *no_networks, "--json"))
    assert one_core["min_run_hours"] == pytest.approx(one_core["total"]["cpu_hours"])


def test_it_says_which_network_fits_the_card() -> None:
    few = ("--recipe", "reference", "--set", "tile.models=[tile_linear]", "--set")
    text = call("plan", *few, "tgraph.permutations=1")
    assert re.search(
        r"^network.* fits 14\.6 GiB\ntgraph +19 GiB +7\.0 GiB +no$", text, re.MULTILINE
    )
    assert (
        "\ntgraph does not fit to train: halve one of\n  tgraph.configs_per_step (now 64)\n" in text
    )


def test_a_collection_for_which_nothing_is_trained_has_no_peak() -> None:
    text = call("plan", "--recipe", "trees", "--set", "layout.together=true")
    [first, *others] = [line.split() for line in text.splitlines() if line.startswith("layout:")]
    assert first[-1] == "MiB"
    assert {line[-1] for line in others} == {"-"}


@pytest.mark.parametrize("words", [(), ("--data", SAMPLE), ("--recipe", "reference")])
def test_a_line_has_at_most_a_hundred_characters(words: tuple[object, ...]) -> None:
    lines = call("plan", *words).splitlines()
    assert max(map(len, lines)) <= 100
    tables = [line.split()[0] for line in lines if line.startswith(("collection", "tile:", "layo"))]
    assert [name.partition(":")[0] for name in tables] == [
        *("collection", "tile", "collection", *["layout"] * 4),
    ]


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("--gpus", 2, "--gpu", "None"), 2, "--gpus 2: there is no GPU with --gpu none"),
        (("--gpus", 2, "--set", "accelerator=cpu"), 2, "--gpus 2: the recipe uses no GPU"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[object, ...], code: int, named: str) -> None:
    text = call("plan", *words, expect=code)
    assert named in text
    assert text.count("\n") == 1


def test_it_says_where_a_pruning_rule_was_not_counted() -> None:
    told = "what features.prune=hops-9 keeps was not counted: networks are taken to see all nodes"
    for rule in ("none", "config", "hops-1", "hops-9"):
        said = stderr_of("plan", "--recipe", "smoke", "--set", f"features.prune={rule}")
        assert (told in said) == (rule == "hops-9")


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
