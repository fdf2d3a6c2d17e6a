"""Blending joins scores by config hash, scales within a graph, and rejects missing scores."""

from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from common.errors import PipelineError
from ensembles.blend import SCALES, BlendSpec, apply_blend, member_weights
from models.predict import SCORE_SCHEMA

# The same examples in every run, however slow the machine.
STEADY = settings(deadline=None, derandomize=True)
Rows = list[tuple[str, int, float]]  # graph, config hash, score


def scores(rows: Rows) -> pl.DataFrame:
    table = [
        (graph, [other[0] for other in rows[:place]].count(graph), config_hash, score)
        for place, (graph, config_hash, score) in enumerate(rows)
    ]
    return pl.DataFrame(table, schema=SCORE_SCHEMA, orient="row")


def even(*names: str) -> BlendSpec:
    return BlendSpec("minmax-mean", dict.fromkeys(names, 1.0))


def slow_scale(values: list[float], method: str) -> list[float]:
    if method == "rank-mean":
        return [(rank - 1) / max(len(values) - 1, 1) for rank in rankdata(values)]
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def slow_blend(
    members: dict[str, Rows], method: str, weights: dict[str, float]
) -> dict[tuple[str, int], float]:
    total = sum(weights[name] for name in members)
    result: dict[tuple[str, int], float] = defaultdict(float)
    for name, rows in members.items():
        by_config = defaultdict(list)
        for graph in {row[0] for row in rows}:
            own = [row for row in rows if row[0] == graph]
            scaled = slow_scale([row[2] for row in own], method)
            for row, value in zip(own, scaled, strict=True):
                by_config[graph, row[1]].append(value)
        for key, values in by_config.items():
            result[key] += weights[name] / total * sum(values) / len(values)
    return result


@st.composite
def members_of_one_data_set(draw: st.DrawFn) -> dict[str, Rows]:
    """The same configs for each member, each in its own row order, some of them twice."""
    configs = []
    for graph in ("a", "b.4x4"):
        hashes = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6, unique=True))
        copies = [h for h in hashes if draw(st.booleans())]
        configs += [(graph, h) for h in hashes + copies]
    score = st.floats(-100, 100, width=32).map(lambda value: round(value, 2))
    return {
        name: [(graph, h, np.float32(draw(score)).item()) for graph, h in draw(order)]
        for name in ("one", "two", "three")
        for order in [st.permutations(configs)]
    }


@pytest.mark.parametrize("method", SCALES)
@STEADY
@given(
    members=members_of_one_data_set(),
    weights=st.tuples(st.floats(0.1, 5), st.floats(0, 5), st.floats(0, 5)),
)
def test_blending_equals_the_slow_reference(
    method: str, members: dict[str, Rows], weights: tuple[float, float, float]
) -> None:
    weight_of = dict(zip(members, weights, strict=True))
    tables = {name: scores(rows) for name, rows in members.items()}
    blended = apply_blend(tables, BlendSpec(method, weight_of))
    assert dict(blended.schema) == SCORE_SCHEMA
    first = tables["one"]
    assert blended.drop("score").equals(first.drop("score"))
    want = slow_blend(members, method, weight_of)
    for graph, _, config_hash, score in blended.iter_rows():
        assert score == pytest.approx(want[graph, config_hash], rel=1e-5, abs=1e-6)
    assert blended["score"].min() >= 0
    assert blended["score"].max() <= 1 + 1e-6


GOOD: Rows = [("a", 7, 3.0), ("a", 5, 1.0), ("a", 9, 2.0), ("b", 7, -1.0), ("b", 2, 4.0)]


def test_weights_need_not_sum_to_one_and_zero_takes_a_member_out() -> None:
    one, two = scores(GOOD), scores([(g, h, -s) for g, h, s in GOOD])
    tables = {"x": one, "y": two}
    quarter = apply_blend(tables, BlendSpec("minmax-mean", {"x": 3.0, "y": 1.0}))
    assert quarter["score"].to_list() == [0.75, 0.25, 0.5, 0.25, 0.75]
    same = apply_blend(tables, BlendSpec("minmax-mean", {"x": 0.75, "y": 0.25}))
    assert same.equals(quarter)
    without = apply_blend(tables, BlendSpec("minmax-mean", {"x": 2.0, "y": 0.0}))
    assert without.equals(apply_blend({"x": one}, even("x")))
    for weight, total in ((0.0, "0.0"), (1.7e308, "inf")):
        with pytest.raises(PipelineError, match=f"the weights sum to {total}; expected"):
            apply_blend(tables, BlendSpec("minmax-mean", {"x": weight, "y": weight}))


def test_a_graph_that_a_member_leaves_out_is_averaged_over_the_others() -> None:
    only_a = scores([row for row in GOOD if row[0] == "a"])
    one, two = scores(GOOD), scores([(g, h, -s) for g, h, s in GOOD])
    for none in (only_a[:0], only_a):
        spec = BlendSpec("minmax-mean", {"z": 9.0, "x": 3.0, "y": 1.0})
        blended = apply_blend({"z": none, "x": one, "y": two}, spec)
        assert blended["graph"].to_list() == [row[0] for row in GOOD]
        assert blended["score"].to_list()[3:] == [0.25, 0.75]
        want = [12 / 13, 1 / 13, 0.5] if none.height else [0.75, 0.25, 0.5]
        assert blended["score"].to_list()[:3] == pytest.approx(want)
    # The other members count equally if all the weight is on the one that leaves a graph out.
    alone = BlendSpec("minmax-mean", {"z": 1.0, "x": 0.0, "y": 0.0})
    blended = apply_blend({"z": only_a, "x": one, "y": two}, alone)
    assert blended["score"].to_list() == [1.0, 0.0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("changed", "other", "at_fault"),
    [
        *(("x", [], "x"), ("z", [], "z"), ("z", [("b", 8, 4.0)], "x"), ("z", [("c", 2, 4.0)], "x")),
        *(("y", [("b", 2, score)], "y") for score in (float("nan"), float("inf"), None)),
    ],
)
def test_a_member_that_lacks_a_finite_score_of_a_config_is_named_with_the_graph(
    changed: str, other: Rows, at_fault: str
) -> None:
    tables = {name: scores(GOOD) for name in ("x", "y", "z")}
    tables[changed] = scores([*GOOD[:-1], *other])
    fault = f"^blend: member {at_fault} has no score for some configs of graph .*$"
    with pytest.raises(PipelineError, match=fault):
        apply_blend(tables, even("x", "y", "z"))


def test_seeds_share_the_weight_of_their_model() -> None:
    members = ["sage-seed0", "sage-seed12", "tree-seed0", "baseline-seed0"]
    weights = member_weights(members, {"sage": 0.5, "tree": 0.0, "other": 9.0})
    assert weights == dict(zip(members, (0.25, 0.25, 0.0, 1.0), strict=True))
