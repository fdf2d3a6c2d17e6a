"""Selection of a blend, against slow references, and the graphs and configs in use."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from common.metrics import family_folds, family_interval, kendall_tau, ranking_score
from common.settings import SAMPLE
from data.graph_store.stored_graph import read_graph
from data.labels import Labels
from data.tree import Collection, GraphFile, collection_named, find_graphs
from ensembles import choice
from ensembles.blend import BlendSpec, choice_file, read_choice, run_blend
from ensembles.choice import (
    GREEDY,
    RECIPE,
    ScoredGraph,
    choose_blend,
    choose_in_run,
    choose_tile_error,
    choosing_together,
    greedy_weights,
    read_judged,
    scored_graphs,
    too_few,
)
from ensembles.picks import TILE_ERROR
from models.config.recipe import BlendConfig
from models.predict import read_ahead, sampled, scores_table
from models.trees.baseline import BASELINES

SEARCHES = tuple(collection_named(f"layout:xla:{search}") for search in ("default", "random"))
FAMILIES = ("depthwise_b1", "dilated_b1", "lstm_b4", "mixer_b1", "plain_b2")
BAG = 8


def train_graphs(collection: Collection) -> list[GraphFile]:
    return find_graphs(SAMPLE, collections=(collection,), splits=("train",))


TILES = collection_named("tile:xla")
KERNELS = train_graphs(TILES)[:90]


@pytest.fixture(autouse=True)
def short_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MAX_SELECTED", BAG)


def noisy(
    noise: Sequence[float], *, n_graphs: int, n_configs: int, seed: int, per_family: int = 1
) -> list[ScoredGraph]:
    """Make members that see the truth through noise of their own; infinite noise sees nothing."""
    rng, graphs = np.random.default_rng(seed), []
    for index in range(n_graphs):
        truth = rng.normal(size=n_configs)
        raw = np.stack(
            [
                rng.normal(size=n_configs) * (1 if np.isinf(level) else level)
                + (0 if np.isinf(level) else truth)
                for level in noise
            ],
            axis=1,
        )
        scores = (raw - raw.min(axis=0)) / np.ptp(raw, axis=0)
        family = f"family{index // per_family}"
        graphs.append(ScoredGraph("layout", family, scores, scores[:, 0], np.exp(truth / 5)))
    return graphs


def mean_tau(graphs: Sequence[ScoredGraph], weights: NDArray[np.float64]) -> float:
    return float(np.mean([kendall_tau(g.scores @ weights, g.runtime) for g in graphs]))


def slow_greedy(graphs: Sequence[ScoredGraph]) -> list[float]:
    m, found = graphs[0].scores.shape[1], list[tuple[float, int, list[int]]]()
    bag: list[int] = []
    while len(bag) < BAG:
        options = [
            (mean_tau(graphs, np.bincount([*bag, j], minlength=m) / (len(bag) + 1)), j in bag, -j)
            for j in range(m)
        ]
        value, _, best = max((round(value, 9), known, j) for value, known, j in options)
        bag = [*bag, -best]
        found.append((value, -len(bag), bag))
    best_bag = max(found)[2]
    return (np.bincount(best_bag, minlength=m) / len(best_bag)).tolist()


@pytest.mark.parametrize(("seed", "n_configs"), [(0, 12), (1, 12), (12, 6), (13, 6), (12, 4)])
def test_greedy_selection_equals_the_slow_reference(seed: int, n_configs: int) -> None:
    graphs = noisy([0.8, 1.0, 1.5, np.inf], n_graphs=4, n_configs=n_configs, seed=seed)
    assert greedy_weights(partial(mean_tau, graphs), 4).tolist() == slow_greedy(graphs)


@pytest.mark.parametrize(
    ("seed", "noise", "expected"),
    [(0, (2.0, 2.0), RECIPE), (3, (2.0, 2.0), RECIPE), (4, (1.5, 0.4, np.inf), GREEDY)],
)
def test_choices_have_the_values_of_held_out_families(
    seed: int, noise: tuple[float, ...], expected: str
) -> None:
    graphs = noisy(noise, n_graphs=12, n_configs=20, seed=seed, per_family=2)
    families = [f"family{number // 2}" for number in range(12)]
    fold_of, held_out = family_folds(families, 5, seed), np.zeros(12)
    for fold in range(5):
        learned = [graphs[place] for place in np.flatnonzero(fold_of != fold)]
        weights = greedy_weights(lambda w, some=learned: mean_tau(some, w), len(noise))
        for place in np.flatnonzero(fold_of == fold):
            held_out[place] = mean_tau([graphs[place]], weights)
    kept = np.array([mean_tau([graph], np.eye(len(noise))[0]) for graph in graphs])
    found = choose_blend(graphs, [f"model{m}" for m in range(len(noise))], seed=seed)
    assert found["chosen"] == expected
    assert found["gain"] == pytest.approx((held_out - kept).mean()) and found["gain"] != 0
    interval = family_interval(held_out - kept, families, seed=seed, confidence=0.99)
    assert found["gain_ci99"] == pytest.approx(interval)
    assert (interval[0] > 0) == (expected == GREEDY)
    best = held_out if expected == GREEDY else kept
    assert found["held_out_value"] == pytest.approx(best.mean())
    assert found["held_out_ci95"] == pytest.approx(family_interval(best, families, seed=seed))
    if expected == GREEDY:
        whole = greedy_weights(lambda w: mean_tau(graphs, w), len(noise))
        assert [*found["weights"].values()] == whole.tolist()
    else:
        assert found["weights"] == {} and found["held_out_value"] == found["recipe_value"]
    alone = [mean_tau(graphs, weights) for weights in np.eye(len(noise))]
    assert [*found["member_values"].values()] == pytest.approx(alone)


def scored(files: list[GraphFile], by: Callable[[NDArray[np.int64]], NDArray[Any]]) -> pl.DataFrame:
    graphs = [read_graph(file) for file in files]
    return pl.concat(scores_table(g, by(g.runtime_ns).astype(np.float32)) for g in graphs)


def test_the_searches_of_a_source_choose_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rng = np.random.default_rng(0)
    files = {
        collection: [file for file in train_graphs(collection) if file.name in FAMILIES]
        for collection in SEARCHES
    }
    tables = {
        collection: {
            "layout_linear-seed0": scored(own, lambda runtime: runtime),
            "layout_boosting-seed0": scored(own, lambda runtime: rng.random(len(runtime))),
        }
        for collection, own in files.items()
    }
    blind = {"layout_linear": 0.0}
    blending = BlendConfig(choose=True, weights=blind)
    choose_in_run(tmp_path, blending, {SEARCHES[0]: files[SEARCHES[0]]}, tables, seed=0)
    assert "5 labelled graphs of 5 families; a choice needs 6" in caplog.messages[-1]
    choose_in_run(tmp_path / "both", blending, files, tables, seed=0)
    assert caplog.messages[-1].startswith("layout:xla:default and layout:xla:random: uses fitted ")
    record, other = (read_choice(choice_file(tmp_path / "both", c)) for c in SEARCHES)
    assert record == other and record is not None and record["chosen"] == GREEDY
    assert (record["n_graphs"], record["n_families"]) == (10, 5)
    assert record["of"] == ["layout:xla:default", "layout:xla:random"]
    spec = run_blend(tmp_path / "both", blending, SEARCHES[0], [*tables[SEARCHES[0]]])
    assert record["weights"]["layout_linear-seed0"] == spec.weights["layout_linear-seed0"] == 1


@pytest.mark.parametrize(
    ("n_graphs", "names", "groups"),
    [
        ((7, 7), ("a", "a"), [[0, 1]]),
        ((11, 11), ("a", "a"), [[0, 1]]),
        ((12, 12), ("a", "a"), [[0], [1]]),
        ((7, 20), ("a", "a"), [[0], [1]]),
        ((7, 7), ("a", "b"), [[0], [1]]),
    ],
)
def test_only_small_collections_of_a_source_choose_together(
    n_graphs: tuple[int, int], names: tuple[str, str], groups: list[list[int]]
) -> None:
    members = {c: [name] for c, name in zip(SEARCHES, names, strict=True)}
    found = choosing_together(members, dict(zip(SEARCHES, n_graphs, strict=True)))
    assert found == [[SEARCHES[place] for place in group] for group in groups]


def test_kernels_of_one_runtime_are_judged_and_such_layouts_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles, layouts = (train_graphs(collection)[:2] for collection in (TILES, SEARCHES[1]))
    monkeypatch.setattr(
        "ensembles.choice.read_labels_of", lambda _: Labels(np.full(9, 7, np.int64))
    )
    assert [*read_judged([*tiles, *layouts])] == tiles


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        # An official xla split has the same number of graphs.
        (("bert", "inception", "resnet50", "resnet_v1", "tf2_bert", "unet_3d", "ssd"), None),
        (("bert", "unet_3d", "inception"), "3 labelled graphs of 3 families; a choice needs 6"),
        ([f"unet_3d.{n}x{n}.fp32" for n in range(2, 12)], "10 labelled graphs of 1 families; a"),
    ],
)
def test_few_graphs_or_families_do_not_suffice(names: Sequence[str], reason: str | None) -> None:
    told = too_few([GraphFile(SEARCHES[0], "valid", name, Path(name)) for name in names])
    assert told is None if reason is None else str(told).startswith(reason)


def test_a_member_that_leaves_graphs_out_is_chosen_for_the_others() -> None:
    files = train_graphs(SEARCHES[0])[:8]
    whole = scored(files, lambda runtime: np.random.default_rng(0).random(len(runtime)))
    tables = {"some": scored(files[:4], lambda runtime: runtime), "whole": whole}
    for weights in ([0.5, 0.5], [1.0, 0.0]):
        spec = BlendSpec("minmax-mean", dict(zip(tables, weights, strict=True)))
        graphs = scored_graphs(read_judged(files), tables, spec)
        is_left_out = [bool(np.isnan(graph.scores[:, 0]).all()) for graph in graphs]
        assert is_left_out == [False] * 4 + [True] * 4
        for graph in graphs:
            blended = graph.blended(np.array(weights))
            np.testing.assert_allclose(blended, graph.recipe_scores, atol=1e-6)


def test_only_configs_with_a_score_count() -> None:
    files = train_graphs(SEARCHES[0])[:8]
    graphs = list(read_ahead(files, sampled(files, 5)))
    scores = (scores_table(graph, BASELINES["layout"].score(graph)) for graph in graphs)
    tables, spec = (
        dict.fromkeys("ab", pl.concat(scores)),
        BlendSpec("minmax-mean", {"a": 1, "b": 1}),
    )
    chosen = choose_blend(scored_graphs(read_judged(files), tables, spec), [*tables])
    score = partial(ranking_score, "layout", as_submitted=True)
    taus = [score(BASELINES["layout"].score(graph), graph.runtime) for graph in graphs]
    assert chosen["n_graphs"] == len(files)
    assert chosen["member_values"]["a"] == pytest.approx(np.mean(taus))


def fourth(runtime: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scores of a good ranker: only three other configs come before the fastest one."""
    scores = np.log(runtime)
    scores[np.argmin(runtime)] = np.sort(scores)[:4][-1] + 1e-4
    return scores


def blind(runtime: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.random.default_rng(len(runtime)).normal(size=len(runtime))


@pytest.mark.parametrize(("by", "error"), [(fourth, 0.0), (blind, TILE_ERROR)])
def test_a_good_ranker_needs_no_diverse_tiles(
    by: Callable[[NDArray[np.int64]], NDArray[np.float64]], error: float
) -> None:
    judged = read_judged(KERNELS)
    found = choose_tile_error(judged, scored([*judged], by))
    values = {float(key): value for key, value in found["values"].items()}
    assert [*values] == [0, 0.5, 1, 2]
    assert found["tile_error"] == error
    assert found["held_out_value"] <= max(values.values()) + 1e-9
    assert (found["gain_ci99"][0] > 0) == (error != TILE_ERROR)


def test_the_chosen_tile_error_is_stored_and_read_again(tmp_path: Path) -> None:
    tables = {name: scored(KERNELS, fourth) for name in ("tile_linear-seed0", "late-seed0")}
    blending, members = BlendConfig(choose=True), [*tables]
    assert run_blend(tmp_path, blending, TILES, members).tile_error == TILE_ERROR
    choose_in_run(tmp_path, blending, {TILES: KERNELS}, {TILES: tables}, seed=0)
    assert run_blend(tmp_path, blending, TILES, members).tile_error == 0
