"""The five configs of a tile row, and the figures that they decide."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.graph_store.stored_graph import read_graph
from data.labels import Labels
from data.tree import GraphFile, collection_named, find_graphs
from ensembles.picks import top_k_to_measure
from models.predict import scores_table
from submissions.check import submission_rows
from submissions.score import DIVERSIFIED, score_submission
from tests.submissions.made_up import ints

TILE, A = collection_named("tile:xla"), "layout:xla:default:a"
SHORT, LONG = "tile:xla:short", "tile:xla:long"


@pytest.fixture
def kernels(tiny_tree: Path) -> list[GraphFile]:
    found = find_graphs(tiny_tree, collections=(TILE,), splits=("train",))
    return [file for file in found if read_graph(file).n_configs > 8][:2]


def test_a_row_has_the_diversified_five_and_then_the_others_by_score(
    kernels: list[GraphFile],
) -> None:
    n_unlike = 0
    for seed in range(5):
        graph, rng = read_graph(kernels[0]), np.random.default_rng(seed)
        scores = rng.normal(size=graph.n_configs).astype(np.float32)
        (row,) = submission_rows([(TILE, scores_table(graph, scores))], kernels)
        five = top_k_to_measure(scores, graph, 5).tolist()
        by_score = np.argsort(scores, kind="stable").tolist()
        assert row.ranking.tolist() == [*five, *(c for c in by_score if c not in five)]
        assert (row.id, row.configs) == (kernels[0].submission_id, None)
        n_unlike += five != by_score[:5]
    assert n_unlike


def test_kernels_without_a_file_or_with_other_configs_are_refused(kernels: list[GraphFile]) -> None:
    scored, other = (
        scores_table(graph, np.arange(graph.n_configs, dtype=np.float32))
        for graph in map(read_graph, kernels)
    )
    with pytest.raises(PipelineError, match="no file"):
        list(submission_rows([(TILE, scored)], kernels[1:]))
    renamed = other.with_columns(graph=np.repeat(kernels[0].name, len(other)))
    with pytest.raises(PipelineError, match="has other configs than the scores"):
        list(submission_rows([(TILE, renamed)], kernels))


def test_the_configs_to_measure_decide_the_tile_score_and_the_ranking_all_else() -> None:
    runtime, every = ints(80, 60, 45, 44, 50, 40, 90), ints(*range(7))
    labels = {
        SHORT: Labels(runtime, ints(*[1] * 7)),
        LONG: Labels(runtime[::-1].copy(), ints(*[1] * 7)),
        A: Labels(ints(3, 1, 2, 5, 4, 6, 7)),
    }
    rankings = {SHORT: every[:5], LONG: every, A: every}
    five = {SHORT: ints(0, 1, 2, 4, 6), LONG: ints(0, 3, 4, 5, 6), A: ints(0, 2, 3, 4, 5)}
    report = score_submission(
        rankings,
        labels,
        to_measure=five,
        n_configs={SHORT: 7, LONG: 2000, A: 7},
        programs={SHORT: "resnet", LONG: ""},
    )
    tiles, layouts = (report.collections[name] for name in (TILE.name, "layout:xla:default"))
    best = {SHORT: 45 / 40, LONG: 44 / 40}
    for name, slowdown in best.items():
        graph = tiles.per_graph[name.removeprefix("tile:xla:")]
        assert graph["tile_score"] == pytest.approx(2 - slowdown)
        assert graph[DIVERSIFIED] == pytest.approx(slowdown)
    assert tiles.per_graph["short"]["slowdown@5"] == pytest.approx(44 / 40)
    assert tiles.per_graph["long"]["slowdown@5"] == 1
    assert tiles.value == pytest.approx(2 - np.mean([*best.values()]))
    assert tiles.mean(DIVERSIFIED) == pytest.approx(np.mean([*best.values()]))
    assert layouts.per_graph["a"][DIVERSIFIED] == 2 and layouts.per_graph["a"]["slowdown@5"] == 1
    # The short ranking has no ten configs, so there is no mean.
    assert tiles.per_graph["long"]["top10_error"] == 0
    assert tiles.mean("top10_error") is None and tiles.mean("top5_error") == pytest.approx(0.05)
    assert (tiles.judged_on, layouts.judged_on) == ("14 of 2,007 configs", None)
    assert (tiles.programs, layouts.programs) == ({"short": "resnet"}, {})
