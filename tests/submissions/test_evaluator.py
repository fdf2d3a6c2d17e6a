"""The evaluator against scipy, and against the metrics graph by graph."""

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from common.errors import PipelineError, UsageError
from common.metrics import ordered_pair_accuracy
from submissions.evaluator import Evaluator

LAYOUT = "layout:xla:random"


@pytest.fixture
def predictions() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    sizes = {"a": 12, "b": 40, "c": 130}
    return {
        "y_pred": {name: rng.integers(20, size=n) / 7 for name, n in sizes.items()},  # with ties
        "y_true": {name: rng.integers(100, 150, size=n) for name, n in sizes.items()},
    }


def test_layouts_agree_with_scipy_and_slow_references(predictions: dict) -> None:
    report = Evaluator(LAYOUT).eval(predictions)
    pairs = [(s, predictions["y_true"][name]) for name, s in predictions["y_pred"].items()]
    taus = [kendalltau(s, r).statistic for s, r in pairs]
    assert report["kendall_tau"] == pytest.approx(np.mean(taus), abs=1e-12)
    opa = np.mean([ordered_pair_accuracy(s, r) for s, r in pairs])
    assert report["opa"] == pytest.approx(opa)
    tiles = Evaluator("tile:xla").eval(predictions)
    for k in (1, 5, 10, 100):
        best = [r[np.argsort(s, kind="stable")[:k]].min() / r.min() for s, r in pairs]
        assert report[f"slowdown@{k}"] == tiles[f"slowdown@{k}"] == pytest.approx(np.mean(best))
    assert tiles["tile_score"] == pytest.approx(2 - tiles["slowdown@5"])
    assert tiles["top1_error"] == pytest.approx(tiles["slowdown@1"] - 1)
    assert report["n_graphs"] == 3
    assert [report["per_graph"][name]["kendall_tau"] for name in "abc"] == pytest.approx(taus)
    low, high = report["ci95"]
    assert low <= report["kendall_tau"] <= high
    turned = {key: dict(reversed(values.items())) for key, values in predictions.items()}
    assert Evaluator(LAYOUT).eval(turned) == report


def test_tensors_and_lists_do_as_well(predictions: dict) -> None:
    expected = Evaluator(LAYOUT).eval(predictions)
    tensors = {
        "y_pred": {n: torch.tensor(v).requires_grad_() for n, v in predictions["y_pred"].items()},
        "y_true": {n: v.tolist() for n, v in predictions["y_true"].items()},
    }
    assert Evaluator(LAYOUT).eval(tensors) == expected


def test_given_rows_alone_are_judged(predictions: dict) -> None:
    rows = {name: np.arange(3, len(v)) for name, v in predictions["y_pred"].items()}
    cut = {key: {n: v[3:] for n, v in values.items()} for key, values in predictions.items()}
    assert Evaluator(LAYOUT, rows=rows).eval(predictions) == Evaluator(LAYOUT).eval(cut)
    for wrong in ([0, -1], [0, 0], [0, 12], []):
        with pytest.raises(
            UsageError, match=r"a: its rows .*; expected distinct integers from 0 to 11, "
        ):
            Evaluator(LAYOUT, rows=rows | {"a": wrong}).eval(predictions)


def test_graphs_without_an_order_are_left_out(predictions: dict) -> None:
    expected = Evaluator(LAYOUT).eval(predictions)["kendall_tau"]
    predictions["y_pred"] |= {"d": [1, 2], "e": [1, 2]}
    predictions["y_true"] |= {"d": [7, 7], "e": [0, 0]}
    report = Evaluator(LAYOUT).eval(predictions)
    assert report["kendall_tau"] == expected and [*report["left_out"]] == ["d", "e"]
    alone = {key: {"d": values["d"]} for key, values in predictions.items()}
    assert Evaluator(LAYOUT).eval(alone)["kendall_tau"] is None


@pytest.mark.parametrize(
    ("predicted", "measured", "message"),
    [
        ({"x": [1, 2]}, {"x": [3]}, r"x: scores \(2,\), runtimes \(1,\); expected \(c,\) of both"),
        ({"x": [1, np.nan]}, {"x": [3, 4]}, "x: score of config 1: expected a finite number$"),
        ({"x": [1, 2]}, {"x": [3, 0]}, "x: runtime of config 1: expected a finite number above 0"),
        ({"x": [1, 2]}, {}, "graph 'x' is only in one of y_pred and y_true"),
        ({"x": ["1", "2"]}, {"x": [1, 2]}, "x: its scores are no real numbers"),
    ],
)
def test_wrong_values_are_named(predicted: dict, measured: dict, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Evaluator(LAYOUT).eval({"y_pred": predicted, "y_true": measured})


def test_wrong_usage_is_refused() -> None:
    with pytest.raises(UsageError, match="expected y_pred and y_true"):
        Evaluator(LAYOUT).eval({"y_pred": {}})
    with pytest.raises(UsageError, match="no such collection"):
        Evaluator("layout:xla")
