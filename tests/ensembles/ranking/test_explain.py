"""Explanations of scores: exact values, known causes and one-line errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import UsageError
from common.reproducibility import generator
from ensembles import explain, load_graph, load_ranker, rank
from ensembles.ranking.configs import add_query_configs, default_row, with_configs
from ensembles.ranking.explain import shares
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


@pytest.mark.parametrize("k", [1, 2, 6])
def test_pairs_are_shared_exactly(k: int) -> None:
    """The Shapley value of a sum over changes and pairs: each pair is halved."""
    rng = np.random.default_rng(0)
    own, pairs = rng.normal(size=(k, 2)), rng.normal(size=(k, k))

    def value(masks: Masks) -> NDArray[np.float64]:
        made = masks.astype(np.float64)
        return made @ own + np.einsum("vi,ij,vj->v", made, pairs, made)[:, None]

    parts, n_variants = shares(value, k, rng)
    halves = (pairs + pairs.T).sum(axis=1) / 2
    np.testing.assert_allclose(parts, own + halves[:, None], atol=1e-12)
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

    parts = shares(value, len(places), generator(0, "explain"))[0][:, 0]
    named = {part.after.node: part.score for part in found.parts}
    nodes = graph.graph.node_config_ids[places].tolist()
    tolerance = 1e-4 * np.abs(parts).max() + 1e-6
    np.testing.assert_allclose([named[node] for node in nodes], parts, atol=tolerance)
    scores = rank(ranker, graph).scores.astype(np.float64)
    assert found.difference == pytest.approx(scores[config] - scores[other], abs=tolerance)


def test_the_default_leaves_most_to_the_compiler(tiny_tree: Path) -> None:
    named = load_graph(first_of(tiny_tree, LAYOUTS).path)
    rows = named.graph.configs.rows(np.arange(named.graph.n_configs))
    decided = rows[(rows >= 0).any(axis=(1, 2))]
    is_open = np.full_like(rows[:1], -1)
    with_it = with_configs(named, np.concatenate([decided[:5], is_open, decided[5:], is_open]))
    assert default_row(with_it.graph) == 5
    own = minor_to_major(named.graph.node_feat)[named.graph.node_config_ids]
    # A config with the stored layouts is the default, even if another config leaves more open.
    stored, other = is_open.copy(), is_open.copy()
    stored[0, :, :6] = own
    place = int(np.flatnonzero(own[:, 1] >= 0)[0])
    other[0, place, :2] = own[place, [1, 0]]
    two = with_configs(named, np.concatenate([other, stored]))
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


def test_invalid_explanations_are_one_line_errors(
    rankers: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    layouts, tiles = first_of(tiny_tree, LAYOUTS).path, first_of(tiny_tree, TILES).path
    alone = write(tmp_path / "dense.pb", dense_module())
    model, of_tiles = rankers / LAYOUT_MODEL, rankers / TILE_MODEL
    listed = json.loads(call("rank", alone, "--run", model, "--candidates", 5, "--json"))
    (rank_of_default,) = (own["rank"] for own in listed["configs"] if own["config"] == 0)
    drawn = (alone, "--run", model, "--candidates")
    own = "config 0 is the compiler's choice itself; expected another rank"
    for words, expected in (
        ((layouts, "--run", model, "--explain", 1000), "--explain 1000: expected a rank, 1.."),
        ((*drawn, 1, "--explain", 1), "has one config; expected"),
        ((tiles, "--run", of_tiles, "--explain", 1), "a tile is one choice for all nodes"),
        ((*drawn, 5, "--explain", rank_of_default), own),
    ):
        line = call("rank", *words, expect=2).splitlines()[-1]
        assert line.startswith("error: ") and expected in line, line
    ranker, graph = load_ranker(model), load_graph(layouts)
    with pytest.raises(UsageError, match="no config -1"):
        explain(ranker, graph, -1)
