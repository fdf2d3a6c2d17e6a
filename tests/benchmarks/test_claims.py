"""`python -m benchmarks.claims`: claims name what can be trained, and numbers decide verdicts."""

from typing import Any

import pytest

from benchmarks import TEMPLATES, claims, segments
from benchmarks.accuracy.cells import Cell, contenders_of
from benchmarks.accuracy.tasks import Sources
from common.settings import SAMPLE, read_toml

CLAIMS = read_toml(TEMPLATES / "claims.toml")


def cells(taus: list[float], **facts: float) -> list[dict[str, Any]]:
    """Return a cell of each of two seeds, with graphs of distinct families."""
    return [
        {
            "seed": seed,
            "graphs": {
                f"layout:xla:{'random' if number % 2 else 'default'}:{number}": {
                    "kendall_tau": tau + 0.001 * seed,
                    "family": f"{number}",
                }
                for number, tau in enumerate(taus)
            },
            **facts,
        }
        for seed in (0, 1)
    ]


def test_each_comparison_can_be_trained_and_differs() -> None:
    for comparison in CLAIMS["comparison"]:
        sides = [
            Cell(comparison["task"], comparison[name], 0, tuple(comparison.get(keys, ())))
            for name, keys in (("model", "keys"), ("rival", "rival_keys"))
        ]
        assert sides[0] != sides[1] and all(s.name in contenders_of(s.task) for s in sides)
        for side in sides:
            changed, plain = side.recipe(), side._replace(overrides=()).recipe()
            assert (changed != plain) is bool(side.overrides)
    named = {c["source"] for key in ("comparison", "untried") for c in CLAIMS[key]}
    assert named <= CLAIMS["sources"].keys()


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, "reproduced"), (-0.1, "not reproduced")])
def test_an_interval_decides_the_verdict_of_each_part(gain: float, verdict: str) -> None:
    comparison = CLAIMS["comparison"][0] | {"parts": ["layout:xla:default", "layout:xla:random"]}
    taus = [0.5, 0.4, 0.6, 0.55]
    better = cells([tau + gain for tau in taus])
    rows = list(claims.comparison_rows(comparison, better, cells(taus)))
    assert [row.verdict for row in rows] == [verdict] * 2
    assert rows[0].tried == "layout:xla:default (graphs: 2, seeds: 2)"
    undecided = cells([tau + move for tau, move in zip(taus, (0.1, 0.1, -0.1, -0.1), strict=True)])
    (row,) = claims.comparison_rows(CLAIMS["comparison"][0], undecided, cells(taus))
    assert row.verdict == "not reproduced" and " = +0.000 [-0." in row.figure


def test_pruning_must_keep_the_order_and_save_both() -> None:
    taus = [0.5, 0.4, 0.6, 0.55]
    sides = [
        ("none", taus, 10.0),
        ("hops-1", taus, 5.0),
        ("hops-2", taus, 11.0),
        ("hops-3", [0.1] * 4, 5.0),
    ]
    all_cells = [
        {"task": "large", "name": rule, **cell}
        for rule, values, cpu_s in sides
        for cell in cells(values, cpu_s=cpu_s, mib=cpu_s)
    ]
    rows = claims.pruning_rows(all_cells, "large")
    assert [row.verdict for row in rows] == ["reproduced", "not reproduced", "not reproduced"]


def test_rows_of_segments_and_of_go_follow_their_numbers() -> None:
    seconds = {"whole graph": 5.0, "all segments": 4.0, "two live segments": 0.5}
    sizes = {"whole graph": 800.0, "all segments": 260.0, "two live segments": 390.0}
    steps = [
        {"task": segments.STEP, "name": name, "seed": n_nodes, "s": seconds[name], "mib": mib}
        for name in segments.MODES
        for n_nodes, mib in ((5_000, 250.0), (43_615, sizes[name]))
    ]
    verdicts = [row.verdict for row in claims.segment_rows(steps)]
    assert verdicts == ["reproduced", "not reproduced", "not reproduced", "reproduced"]
    names = (
        "tries of GO - tries at random",
        "tries of GO - tries of the ridge",
        claims.go.OVER_MENU,
    )
    means = dict(zip(names, ([-6, -9, -3], [-1, -3, 1], [1.1, 1.05, 1.2]), strict=True))
    study = {"16, unroll by 4": [0.5, 0.4, 0.6], "16, the same again": [1, 0.9, 1.1]}
    rows = list(claims.go_rows({"programs": [[]] * 13, "means": means, "cartpole": study}))
    assert [row.verdict == "reproduced" for row in rows] == [True, False, False, True]


def test_facts_of_the_sample_and_of_the_dataset_have_rows() -> None:
    rows = [*claims.default_rows(Sources(SAMPLE, None)), *claims.size_rows()]
    assert [row.verdict in claims.VERDICTS and row.source for row in rows] == ["TpuGraphs"] * 3
