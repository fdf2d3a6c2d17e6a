"""Parts of a config's score: exact where they can be, true to planted causes, told in one line."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import UsageError
from common.reproducibility import generator
from ensembles import explain, load_graph, load_ranker, rank
from ensembles.ranking.explain import default_row, shares
from ensembles.ranking.program import add_query_configs, with_configs
from features.padding import minor_to_major
from tests.ensembles.programs import (
    LAYOUT_MODEL,
    LAYOUTS,
    TILE_MODEL,
    TILES,
    dense_module,
    first_of,
    write,
)
from tests.support.command_line import call

Masks = NDArray[np.bool_]


def exact_shares(value: Any, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average what each change adds over all orders that keep groups together."""
    k, found = len(groups), []
    for order in itertools.permutations(range(k)):
        changes = sum(groups[a] != groups[b] for a, b in itertools.pairwise(order))
        if changes == len(set(groups.tolist())) - 1:
            steps = np.zeros((k + 1, k), np.bool_)
            for step, change in enumerate(order):
                steps[step + 1 :, change] = True
            found.append(np.diff(value(steps), axis=0)[np.argsort(order)])
    return np.mean(found, axis=0)


@pytest.mark.parametrize("groups", [[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 1, 2], [0, 0, 0], [7], [3, 4]])
def test_pairs_and_whatever_comes_first_or_last_are_shared_exactly(groups: list[int]) -> None:
    rng = np.random.default_rng(0)
    k = len(groups)
    own, pairs = rng.normal(size=(k, 2)), rng.normal(size=(k, k))
    first, last = 3.0, -2.0  # such as the statistic all_open, and how often a config occurs

    def value(masks: Masks) -> NDArray[np.float64]:
        made = masks.astype(np.float64)
        common = first * masks.any(axis=1) + last * masks.all(axis=1)
        return made @ own + (common + np.einsum("vi,ij,vj->v", made, pairs, made))[:, None]

    numbers = np.array(groups)
    parts, errors, together, n_variants = shares(value, numbers, rng)
    np.testing.assert_allclose(parts, exact_shares(value, numbers), atol=1e-12)
    if k > 2:
        np.testing.assert_allclose(together, first + last, atol=1e-12)
        np.testing.assert_allclose(errors, 0, atol=1e-7)
    assert n_variants <= 2**k


def test_a_networks_parts_are_those_of_variants_scored_one_by_one(
    rankers: Path, tiny_tree: Path
) -> None:
    graph = load_graph(first_of(tiny_tree, LAYOUTS).path)
    ranker = load_ranker(rankers / LAYOUT_MODEL)
    config, other = 3, default_row(graph.graph)
    found = explain(ranker, graph, config)
    assert found.against == other
    before, after = graph.graph.configs.rows(np.array([other, config]))
    places = np.flatnonzero((before != after).any(axis=1))

    def value(masks: Masks) -> NDArray[np.float64]:
        scores = []
        for made in masks:
            variant = before.copy()
            variant[places[made]] = after[places[made]]
            scores.append(ranker.score(add_query_configs(graph.graph, [variant[None]]))[-1])
        return np.array(scores, np.float64)[:, None]

    groups = graph.graph.configs.codebooks.column_of[places]
    parts = shares(value, groups, generator(0, "explain"))[0][:, 0]
    named = {part.after.node: part.score for part in found.parts}
    nodes = graph.graph.node_config_ids[places].tolist()
    tolerance = 1e-4 * np.abs(parts).max() + 1e-6
    np.testing.assert_allclose([named[node] for node in nodes], parts, atol=tolerance)
    scores = rank(ranker, graph).scores.astype(np.float64)
    assert found.difference == pytest.approx(scores[config] - scores[other], abs=tolerance)
    for part in found.parts:
        tied = [p.score for p in found.parts if p.tied_score == part.tied_score]
        assert part.tied_score == pytest.approx(sum(tied))
        assert part.n_tied == len(tied)


def test_the_default_is_what_leaves_most_to_the_compiler(tiny_tree: Path) -> None:
    named = load_graph(first_of(tiny_tree, LAYOUTS).path)
    rows = named.graph.configs.rows(np.arange(named.graph.n_configs))
    decided = rows[(rows >= 0).any(axis=(1, 2))]
    is_open = np.full_like(rows[:1], -1)
    with_it = with_configs(named, np.concatenate([decided[:5], is_open, decided[5:], is_open]))
    assert default_row(with_it.graph) == 5
    own = minor_to_major(named.graph.node_feat)[named.graph.node_config_ids]
    alike, other = is_open.copy(), is_open.copy()
    alike[0, :, :6] = own  # outweighs what is left open
    place = int(np.flatnonzero(own[:, 1] >= 0)[0])
    other[0, place, :2] = own[place, [1, 0]]
    two = with_configs(named, np.concatenate([other, alike]))
    assert default_row(two.graph) == 1


MODELS = "layout.models=[layout_linear,layout_boosting]"


def explained(file: Path, run: Path, *words: object) -> Any:
    return json.loads(call("rank", file, "--run", run, "--json", *words))["explained"]


def test_the_command_says_why_by_instruction_name(rankers: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "dense.hlo.pb", dense_module())
    words = ("--candidates", 40, "--top", 3, "--explain", 30)
    found = explained(path, rankers / LAYOUT_MODEL, *words)
    assert found["against"] == 0
    assert found["baseline"] == "the compiler's choice"
    assert sum(part["score"] for part in found["parts"]) == pytest.approx(found["difference"])
    text = call("rank", path, "--run", rankers / LAYOUT_MODEL, *words)
    heading = next(line for line in text.splitlines() if " against config 0" in line)
    side = "lower, predicted faster" if found["difference"] < 0 else "higher, predicted slower"
    assert heading == (
        f"config {found['config']} against config 0, the compiler's choice: "
        f"score {abs(found['difference']):.4f} {side}; nodes that differ: {len(found['parts'])}"
    )
    for part in found["parts"]:
        line = next(line for line in text.splitlines() if f" {part['after']['name']} " in line)
        assert f"{abs(part['score']):.4f} " in line
        assert f" {part['shape']} " in line
    assert "-0%" not in text


def test_a_blends_parts_are_means_of_its_members(tiny_tree: Path, tmp_path: Path) -> None:
    words = ("--recipe", "smoke", "--collections", LAYOUTS, "--set", MODELS)
    call("run", "--data", tiny_tree, *words, "--out", tmp_path / "run")
    file = first_of(tiny_tree, LAYOUTS).path
    ranker, graph = load_ranker(tmp_path / "run", collection=LAYOUTS), load_graph(file)
    ranked = rank(ranker, graph)
    found = explain(ranker, graph, int(ranked.order[-1]), int(ranked.order[0]))
    same = explain(ranker, graph, 1, 1)
    assert same.heading.endswith(": equal scores; nodes that differ: 0")
    spans = {name: float(np.ptp(scores)) for name, scores in ranked.member_scores.items()}
    for part in found.parts:
        scaled = [part.members[name] / span for name, span in spans.items()]
        assert part.score == pytest.approx(np.mean(scaled), abs=1e-5)
    difference = ranked.scores[ranked.order[-1]] - ranked.scores[ranked.order[0]]
    assert found.difference == pytest.approx(difference, abs=1e-5)
    assert ": blended score " in found.heading


def test_what_cannot_be_explained_is_one_line(
    rankers: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    layouts, tiles = first_of(tiny_tree, LAYOUTS).path, first_of(tiny_tree, TILES).path
    alone = write(tmp_path / "dense.pb", dense_module())
    model, of_tiles = rankers / LAYOUT_MODEL, rankers / TILE_MODEL
    listed = json.loads(call("rank", alone, "--run", model, "--candidates", 5, "--json"))
    (rank_of_default,) = (own["rank"] for own in listed["configs"] if own["config"] == 0)
    cases: list[tuple[tuple[object, ...], str]] = [
        ((layouts, "--run", model, "--explain", 1000), "--explain 1000: expected a rank, 1.."),
        (
            (layouts, "--run", model, "--explain", 1, "--against", 99),
            "no config 99; expected 0..39",
        ),
        ((alone, "--run", model, "--candidates", 1, "--explain", 1), "has one config; expected"),
        ((tiles, "--run", of_tiles, "--explain", 1), "a tile is one decision for all nodes"),
        (
            (alone, "--run", model, "--candidates", 5, "--explain", rank_of_default),
            "config 0 is the compiler's choice itself; expected another rank, or another --against",
        ),
        ((layouts, "--run", model, "--against", 1), "of no use without --explain"),
    ]
    for words, expected in cases:
        line = call("rank", *words, expect=2).splitlines()[-1]
        assert line.startswith("error: "), line
        assert expected in line, line
    ranker, graph = load_ranker(model), load_graph(layouts)
    with pytest.raises(UsageError, match="no config -1"):
        explain(ranker, graph, -1)
