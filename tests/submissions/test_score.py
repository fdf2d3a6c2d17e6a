"""The report's scores against hand-made numbers, loops and scipy; what its figures hide is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from data.tree import COLLECTIONS
from submissions.report.page import write_report_page
from submissions.score import FEW_GRAPHS, Labels, remarks_on, score_submission
from tests.submissions.made_up import ints

A, B, K = "layout:xla:default:a", "layout:xla:default:b.1:x", "tile:xla:k"


def test_a_layout_collection_by_hand() -> None:
    labels = {A: Labels(ints(30, 10, 20)), B: Labels(ints(4, 6, 5, 5))}
    rankings = {A: ints(1, 2, 0), B: ints(2, 3, 1, 0)}
    report = score_submission(rankings, labels)
    part = report["collections"]["layout:xla:default"]
    names = ("kendall_tau", "opa", *(f"slowdown@{k}" for k in (1, 5, 10, 100)))
    assert part["per_graph"]["a"] == dict.fromkeys(names, 1.0) | {"n_configs": 3}
    # b: of 5 pairs of different runtime, 2 (each 5 before the 6) are right.
    assert part["per_graph"]["b.1:x"]["kendall_tau"] == pytest.approx(-1 / np.sqrt(5 * 6))
    assert part["per_graph"]["b.1:x"]["opa"] == pytest.approx(2 / 5)
    assert part["per_graph"]["b.1:x"]["slowdown@1"] == 1.25
    assert part["per_graph"]["b.1:x"]["slowdown@10"] == 1.0
    assert part["value"] == pytest.approx((1 - 1 / np.sqrt(30)) / 2)
    means = [f"slowdown@{k}" for k in (1, 5, 10)]
    assert [part[name] for name in means] == [1.125, 1, 1]
    assert list(part) == ["metric", "value", "ci95", "n_graphs", *means, "per_graph"]
    assert report["score"] == part["value"]
    assert report["left_out"] == []


def test_a_truncated_tile_row_has_a_score_but_no_tau() -> None:
    runtime = ints(80, 60, 45, 44, 50, 40, 90)
    labels = {K: Labels(runtime, ints(2, 2, 2, 2, 1, 2, 2))}  # config 4 is slow once normalised
    part = score_submission({K: ints(0, 1, 2, 4, 6)}, labels)["collections"]["tile:xla"]
    graph = part["per_graph"]["k"]
    assert graph["tile_score"] == part["value"] == pytest.approx(2 - 45 / 40)
    assert graph["slowdown@1"] == 2
    assert graph["slowdown@10"] is graph["slowdown@100"] is None
    assert graph["kendall_tau"] is graph["opa"] is None
    assert part["top1_error"] == pytest.approx(1)
    assert part["top5_error"] == pytest.approx(45 / 40 - 1)
    assert part["top10_error"] is None
    # A small kernel beside it has a top-10 error of its own, but a mean over it alone misleads.
    labels["tile:xla:small"] = Labels(ints(1, 2), ints(1, 1))
    rankings = {K: ints(0, 1, 2, 4, 6), "tile:xla:small": ints(1, 0)}
    part = score_submission(rankings, labels)["collections"]["tile:xla"]
    assert part["per_graph"]["small"]["top10_error"] == 0
    assert part["top10_error"] is None
    assert part["top1_error"] == pytest.approx((1 + 1) / 2)


def test_graphs_without_an_order_are_left_out_and_named() -> None:
    labels = {
        A: Labels(ints(5, 5, 5)),
        B: Labels(ints(9)),
        "layout:xla:default:c": Labels(ints(1, 2)),
        "layout:xla:default:d": Labels(ints(0, 0)),
    }
    rankings = {name: np.arange(len(given.runtime_ns)) for name, given in labels.items()}
    report = score_submission(rankings, labels)
    part = report["collections"]["layout:xla:default"]
    assert list(part["per_graph"]) == ["c"]
    assert (part["value"], part["n_graphs"], part["ci95"]) == (1, 1, None)
    assert report["left_out"] == [
        {"graph": A, "reason": "constant runtimes give no order"},
        {"graph": B, "reason": "one config gives no order"},
        {"graph": "layout:xla:default:d", "reason": "runtimes are withheld"},
    ]


@pytest.mark.parametrize("labels", [{}, {A: Labels(ints(0, 0))}], ids=["none", "withheld"])
def test_without_labels_every_value_is_null(labels: dict[str, Labels]) -> None:
    report = score_submission({A: ints(0, 1)}, labels)
    assert report["score"] is None
    assert list(report["collections"]) == [collection.name for collection in COLLECTIONS]
    for part in report["collections"].values():
        assert (part["value"], part["ci95"], part["n_graphs"]) == (None, None, 0)
        assert part["per_graph"] == {}
    assert report["collections"]["tile:xla"]["top1_error"] is None


def test_the_score_is_the_mean_over_collections_that_have_a_value() -> None:
    one, two = "layout:nlp:random:1", "layout:nlp:random:2"
    known = Labels(ints(1, 2, 3))
    labels = {one: known, two: known, A: Labels(ints(1, 2)), K: Labels(ints(2, 1), ints(1, 1))}
    rankings = {one: ints(0, 1, 2), two: ints(0, 2, 1), A: ints(1, 0)}  # tau 1, 1/3 and -1
    report = score_submission(rankings, labels)
    assert report["score"] == pytest.approx((2 / 3 - 1) / 2)
    assert report["collections"]["tile:xla"]["value"] is None
    assert report["left_out"] == [
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


# Remarks

XLA = "layout:xla:default"


def told_report(**changes: Any) -> dict[str, Any]:
    part = {
        "metric": "kendall_tau",
        "value": 0.656,
        "ci95": [0.6, 0.7],
        "n_graphs": FEW_GRAPHS,
        "per_graph": {},
        "floor": 0.5,
        "slowdown_curve": {"k": [1, 5, 7], "model": [1.2, 1.1, 1.1], "floor": [1.3, 1.1, 1.0]},
    }
    models = {XLA: {"members": ["net", "trees"], "member_values": {"net": 0.6, "trees": None}}}
    return {"score": 0.656, "collections": {XLA: part | changes}, "models": models}


def test_nothing_is_said_where_the_blend_leads() -> None:
    assert remarks_on(told_report()) == []
    assert remarks_on({"collections": {XLA: {"value": None}}}) == remarks_on({}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"value": 0.55}, "net alone has 0.6000, more than the blend with it, 0.5500"),
        ({"floor": 0.7}, "the floor, without training, has 0.7000, more than this run"),
        (
            {"slowdown_curve": {"k": [1, 5], "model": [1.2, 1.1], "floor": [1.1, 1.2]}},
            "the floor is ahead at the first picks: 10.0 % slower than the best after 1, this run "
            "20.0 %",
        ),
        ({"n_graphs": 2}, "few graphs in layout:xla:default (2): these intervals are"),
    ],
)
def test_what_is_behind_is_named_on_the_page_too(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    found = told_report(**changes)
    (line,) = remarks_on(found)
    assert expected in line
    del found["collections"][XLA]["slowdown_curve"]
    write_report_page(found, tmp_path / "p.html")
    shown = (tmp_path / "p.html").read_text()
    assert (expected in shown) == ("slowdown_curve" not in changes)
