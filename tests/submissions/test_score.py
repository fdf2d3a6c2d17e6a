"""Scores computed by hand, warnings about scores, labels per split, and noise ceilings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from common.metrics import ranking_from_scores
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import sample_rows
from data.labels import Labels, read_labels_of
from data.tree import COLLECTIONS, find_graphs
from submissions.report.page import write_report_page
from submissions.run_report import RunReport
from submissions.score import (
    DIVERSIFIED,
    FEW_GRAPHS,
    cut_to_samples,
    remarks_on,
    score_submission,
)
from tests.submissions.made_up import ints, write_graph

XLA = "layout:xla:default"
A, B, K = f"{XLA}:a", f"{XLA}:b.1:x", "tile:xla:k"
SHORT, LONG = "tile:xla:short", "tile:xla:long"


def test_a_layout_collection_by_hand() -> None:
    labels = {A: Labels(ints(30, 10, 20)), B: Labels(ints(4, 6, 5, 5))}
    rankings = {A: ints(1, 2, 0), B: ints(2, 3, 1, 0)}
    report = score_submission(rankings, labels)
    part = report.collections[XLA]
    names = ("kendall_tau", "opa", *(f"slowdown@{k}" for k in (1, 5, 10, 100)))
    assert part.per_graph["a"] == dict.fromkeys(names, 1.0) | {"n_configs": 3}
    # b: of 5 pairs of different runtime, 2 (each 5 before the 6) are right.
    other = part.per_graph["b.1:x"]
    assert other["kendall_tau"] == pytest.approx(-1 / np.sqrt(5 * 6))
    assert other["opa"] == pytest.approx(2 / 5)
    assert (other["slowdown@1"], other["slowdown@10"]) == (1.25, 1.0)
    assert part.value == pytest.approx((1 - 1 / np.sqrt(30)) / 2)
    means = [f"slowdown@{k}" for k in (1, 5, 10)]
    assert [part.mean(name) for name in means] == [1.125, 1, 1]
    printed = report.as_json()["collections"][XLA]
    assert set(printed) == {"metric", "value", "ci95", "n_graphs", *means, "per_graph"}
    assert (report.score, report.left_out) == (part.value, [])


def test_a_truncated_tile_row_has_a_score_but_no_tau() -> None:
    runtime = ints(80, 60, 45, 44, 50, 40, 90)
    labels = {K: Labels(runtime, ints(2, 2, 2, 2, 1, 2, 2))}  # config 4 is slow once normalised
    part = score_submission({K: ints(0, 1, 2, 4, 6)}, labels).collections["tile:xla"]
    graph = part.per_graph["k"]
    assert graph["tile_score"] == part.value == pytest.approx(2 - 45 / 40)
    assert graph["slowdown@1"] == 2
    assert graph["slowdown@10"] is graph["slowdown@100"] is None
    assert graph["kendall_tau"] is graph["opa"] is None
    assert part.mean("top1_error") == pytest.approx(1)
    assert part.mean("top5_error") == pytest.approx(45 / 40 - 1)
    assert part.mean("top10_error") is None


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
    tiles, layouts = (report.collections[name] for name in ("tile:xla", XLA))
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


def test_graphs_without_an_order_are_left_out_and_named() -> None:
    labels = {
        A: Labels(ints(5, 5, 5)),
        B: Labels(ints(9)),
        f"{XLA}:c": Labels(ints(1, 2)),
        f"{XLA}:d": Labels(ints(0, 0)),
    }
    rankings = {name: np.arange(len(of_graph.runtime_ns)) for name, of_graph in labels.items()}
    report = score_submission(rankings, labels)
    part = report.collections[XLA]
    assert list(part.per_graph) == ["c"]
    assert (part.value, part.n_graphs, part.ci95) == (1, 1, None)
    assert [entry.model_dump() for entry in report.left_out] == [
        {"graph": A, "reason": "constant runtimes give no order"},
        {"graph": B, "reason": "one config gives no order"},
        {"graph": f"{XLA}:d", "reason": "runtimes are withheld"},
    ]


def test_without_labels_every_value_is_null() -> None:
    report = score_submission({A: ints(0, 1)}, {A: Labels(ints(0, 0))})
    assert report.score is None
    assert list(report.collections) == [collection.name for collection in COLLECTIONS]
    assert all(part.value is part.ci95 is None for part in report.collections.values())


def test_the_score_is_the_mean_over_collections_that_have_a_value() -> None:
    one, two = "layout:nlp:random:1", "layout:nlp:random:2"
    ascending = Labels(ints(1, 2, 3))
    labels = {
        one: ascending,
        two: ascending,
        A: Labels(ints(1, 2)),
        K: Labels(ints(2, 1), ints(1, 1)),
    }
    rankings = {one: ints(0, 1, 2), two: ints(0, 2, 1), A: ints(1, 0)}  # tau 1, 1/3 and -1
    report = score_submission(rankings, labels)
    assert report.score == pytest.approx((2 / 3 - 1) / 2)
    assert report.collections["tile:xla"].value is None
    assert [entry.model_dump() for entry in report.left_out] == [
        {"graph": K, "reason": "the submission has no row of this collection"}
    ]


@pytest.mark.parametrize(
    ("rankings", "message"),
    [
        ({B: ints(0)}, f"{A}: row is missing; expected 3"),
        ({A: ints(0, 1)}, f"{A}: has 2 indices; expected 3"),
        ({A: ints(0, 1, 3)}, r"index 3; expected 0\.\.2"),
        ({A: ints(0, 1, 2), K: ints(0, 1, 2, 3)}, f"{K}: has 4 indices; expected 5"),
        ({A: ints(0, 1, 2), K: ints(0, 1, 2, 3, 4, 4)}, "repeated"),
    ],
)
def test_rankings_that_do_not_fit_are_refused(
    rankings: dict[str, NDArray[np.int64]], message: str
) -> None:
    labels = {A: Labels(ints(1, 2, 3)), K: Labels(ints(1, 2, 3, 4, 5, 6), ints(*[1] * 6))}
    with pytest.raises(PipelineError, match=message):
        score_submission(rankings, labels)


def test_a_ranking_of_the_sample_is_judged_on_it_and_one_of_other_configs_is_refused(
    tmp_path: Path,
) -> None:
    for number, name in enumerate("abcd"):
        write_graph(tmp_path, XLA, "valid", name, seed=number)
    files = find_graphs(tmp_path, splits=("valid",))
    labels = {file.submission_id: read_labels_of(file) for file in files}
    sampled, other, whole, missing = files
    rows = sample_rows(read_graph(sampled), 10)
    order = np.random.default_rng(0).permutation(10)
    strangers = np.setdiff1d(np.arange(60), sample_rows(read_graph(other), 10))[:10]
    rankings = {
        sampled.submission_id: rows[order],
        other.submission_id: strangers,
        whole.submission_id: np.arange(60)[::-1],
    }
    cut_rankings, cut_labels = cut_to_samples(files, rankings, labels)
    assert cut_rankings[sampled.submission_id].tolist() == order.tolist()
    runtime = labels[sampled.submission_id].runtime_ns
    assert cut_labels[sampled.submission_id].runtime_ns.tolist() == runtime[rows].tolist()
    for name in (other.submission_id, whole.submission_id):
        assert cut_rankings[name].tolist() == rankings[name].tolist()
        assert cut_labels[name] is labels[name]
    assert missing.submission_id not in cut_rankings
    with pytest.raises(PipelineError, match=f"{other.submission_id}: has 10 indices; expected 60"):
        score_submission(cut_rankings, cut_labels)


# Remarks


NET, TREES = "net", "trees"


def report_of(*, net: float = 0.6, **changes: Any) -> RunReport:
    part = {"metric": "kendall_tau", "value": 0.656, "ci95": [0.6, 0.7], "baseline": 0.5}
    part["n_graphs"] = FEW_GRAPHS
    models = {XLA: {"members": [NET, TREES], "member_values": {NET: net, TREES: None}}}
    table = {"score": 0.656, "collections": {XLA: part | changes}, "models": models}
    return RunReport.model_validate(table)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"value": None}, None),
        ({"baseline": 0.65601}, None),  # both show as 0.6560
        ({"net": 0.65601}, None),
        ({"slowdown_curve": {"k": [1, 7], "model": [1.00001, 2], "baseline": [1, 1]}}, None),
        ({"slowdown_curve": {"k": [1], "model": [2], "baseline": None}}, None),
        ({"value": 0.55}, "layout:xla:default 0.5500 (net 0.6000)"),
        ({"baseline": 0.7}, "layout:xla:default 0.6560 (the baseline 0.7000)"),
        ({"n_graphs": 2}, "interval too narrow because of few graphs: layout:xla:default (2)"),
        (
            {"slowdown_curve": {"k": [1, 2, 5, 7], "model": [2] * 4, "baseline": [1, 3, 1.9, 1]}},
            "slower than those of the baseline: layout:xla:default (K = 1, 5)",
        ),
    ],
)
def test_scores_that_mislead_have_a_remark(
    tmp_path: Path, changes: dict[str, Any], expected: str | None
) -> None:
    report = report_of(**changes)
    write_report_page(report, tmp_path / "p.html")
    page, remarks = (tmp_path / "p.html").read_text(), remarks_on(report)
    assert len(remarks) == (expected is not None)
    assert all(expected in remark and expected in page for remark in remarks)


def test_the_report_holds_each_graph_s_and_the_median_of_those_known() -> None:
    rng = np.random.default_rng(0)
    names = [f"layout:xla:default:{i}" for i in range(5)] + ["layout:nlp:random:n", "tile:xla:k"]
    labels = {name: Labels(rng.permutation(9) + 1) for name in names}
    labels["layout:xla:default:4"] = Labels(np.full(9, 5))  # no order: not judged
    rankings = {name: ranking_from_scores(rng.random(9)) for name in names}
    taus = (0.9, 0.2, float("nan"), 0.8, 0.1)
    ceilings = dict(zip(names, taus, strict=False)) | {"tile:xla:k": 0.5}
    plain = score_submission(rankings, labels)
    report = score_submission(rankings, labels, ceilings=ceilings)
    part = report.collections["layout:xla:default"]
    assert [g["noise_ceiling"] for g in part.per_graph.values()] == [0.9, 0.2, None, 0.8]
    assert part.noise_ceiling == 0.8
    assert report.collections["layout:nlp:random"].noise_ceiling is None
    assert report.collections["tile:xla"] == plain.collections["tile:xla"]
    assert "noise_ceiling" not in str(plain.as_json())
    assert report.score == plain.score
