"""The evaluator against scipy and slow, obvious references."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from common.errors import PipelineError, UsageError
from submissions.evaluator import Evaluator

LAYOUT = "layout:xla:random"


def slow_opa(scores: np.ndarray, runtime: np.ndarray) -> float:
    right, pairs = 0.0, 0
    for i, j in combinations(range(len(runtime)), 2):
        if runtime[i] != runtime[j]:
            pairs += 1
            agree = (scores[i] - scores[j]) * (runtime[i] - runtime[j])
            right += 1 if agree > 0 else 0.5 if agree == 0 else 0
    return right / pairs


def slow_slowdown(scores: np.ndarray, runtime: np.ndarray, k: int) -> float:
    picks = sorted(range(len(scores)), key=lambda row: scores[row])[:k]
    return min(runtime[row] for row in picks) / min(runtime)


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
    assert report["opa"] == pytest.approx(np.mean([slow_opa(s, r) for s, r in pairs]))
    for k in (1, 5, 10, 100):
        expected = np.mean([slow_slowdown(s, r, k) for s, r in pairs])
        assert report[f"slowdown@{k}"] == pytest.approx(expected)
    assert report["n_graphs"] == 3
    assert [report["per_graph"][name]["kendall_tau"] for name in "abc"] == pytest.approx(taus)
    low, high = report["ci95"]
    assert low <= report["kendall_tau"] <= high


def test_kernels_are_judged_as_the_competition_does(predictions: dict) -> None:
    report = Evaluator("tile:xla").eval(predictions)
    pairs = [(s, predictions["y_true"][name]) for name, s in predictions["y_pred"].items()]
    assert report["tile_score"] == pytest.approx(
        np.mean([2 - slow_slowdown(s, r, 5) for s, r in pairs])
    )
    assert report["top1_error"] == pytest.approx(
        np.mean([slow_slowdown(s, r, 1) - 1 for s, r in pairs])
    )


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
    with pytest.raises(UsageError, match="c: its rows are not known"):
        Evaluator(LAYOUT, rows={name: rows[name] for name in "ab"}).eval(predictions)


def test_graphs_without_an_order_are_left_out(predictions: dict) -> None:
    expected = Evaluator(LAYOUT).eval(predictions)["kendall_tau"]
    predictions["y_pred"] |= {"d": [1, 2], "e": [1, 2]}
    predictions["y_true"] |= {"d": [7, 7], "e": [0, 0]}
    report = Evaluator(LAYOUT).eval(predictions)
    assert report["kendall_tau"] == expected
    assert report["left_out"] == {
        "d": "constant runtimes give no order",
        "e": "runtimes are withheld",
    }
    alone = {key: {"d": values["d"]} for key, values in predictions.items()}
    assert Evaluator(LAYOUT).eval(alone)["kendall_tau"] is None


@pytest.mark.parametrize(
    ("scores", "runtime", "told"),
    [
        ([1, 2], [3], r"x: scores \(2,\), runtimes \(1,\); expected \(c,\) of both"),
        ([1, np.nan], [3, 4], "x: expected finite scores"),
        ([1, 2], [3, 0], "x: expected finite scores, and finite runtimes above 0"),
    ],
)
def test_bad_values_name_the_graph(scores: list, runtime: list, told: str) -> None:
    with pytest.raises(PipelineError, match=told):
        Evaluator(LAYOUT).eval({"y_pred": {"x": scores}, "y_true": {"x": runtime}})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="graph 'x' is not in both"):
        Evaluator(LAYOUT).eval({"y_pred": {"x": [1, 2]}, "y_true": {}})
    with pytest.raises(UsageError, match="expected y_pred and y_true"):
        Evaluator(LAYOUT).eval({"y_pred": {}})
    with pytest.raises(UsageError, match="no such collection"):
        Evaluator("layout:xla")
