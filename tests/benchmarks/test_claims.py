"""`python -m benchmarks.claims`: claims name what can be trained, and numbers decide verdicts."""

from typing import Any

import pytest

from benchmarks import TEMPLATES, claims, segments
from benchmarks.accuracy.cells import contenders_of
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
    for entry in CLAIMS["comparison"]:
        for task in entry["tasks"]:
            sides = [cells[0] for cells in claims.sides_of(entry, task, [0])]
            assert sides[0] != sides[1] and all(s.name in contenders_of(task) for s in sides)
            for side in sides:
                changed, plain = side.recipe(), side._replace(overrides=()).recipe()
                assert (changed != plain) is bool(side.overrides)
    named = {c["source"] for key in ("comparison", "untried") for c in CLAIMS[key]}
    assert named <= CLAIMS["sources"].keys()


TAUS = [0.5, 0.4, 0.6, 0.55]
ROW = claims.Row("claim", "GST", "place")


@pytest.mark.parametrize(
    ("gain", "bound", "verdict"),
    [
        (0.1, 0.0, claims.REPRODUCED),
        (-0.1, 0.0, claims.OPPOSITE),
        (-0.01, -0.02, claims.REPRODUCED),
    ],
)
def test_an_interval_decides_the_verdict(gain: float, bound: float, verdict: str) -> None:
    better = cells([tau + gain for tau in TAUS])
    row = claims.compared(ROW, better, cells(TAUS), bound=bound, part="layout:xla:default")
    assert row.verdict == verdict and row.tried == "place (graphs: 2, seeds: 2)"
    assert row.figure.startswith(f"tau {0.5505 + gain:.3f} and 0.550, difference {gain:+.3f} [")


def test_a_claim_is_open_if_its_interval_has_both_sides_or_is_missing() -> None:
    undecided = cells([tau + move for tau, move in zip(TAUS, (0.1, 0.1, -0.1, -0.1), strict=True)])
    row = claims.compared(ROW, undecided, cells(TAUS))
    assert row.verdict == claims.OPEN and "difference +0.000 [-0." in row.figure
    better, worse = cells([0.9]), cells([0.1])
    assert claims.compared(ROW, better[:1], worse[:1]).verdict == claims.OPEN
    # Few families widen the interval.
    assert claims.compared(ROW, cells([0.6, 0.41]), cells([0.5, 0.4])).verdict == claims.OPEN


def test_pruning_must_keep_tau_and_save_both() -> None:
    sides = {"none": (0, 10), "hops-1": (0, 5), "hops-2": (0, 11), "hops-3": (-0.4, 5)}
    all_cells = [
        {"task": "large", "name": rule, **cell}
        for rule, (gain, cpu_s) in sides.items()
        for cell in cells([tau + gain for tau in TAUS], cpu_s=cpu_s, mib=cpu_s)
    ]
    rows = claims.pruning_rows(all_cells, "large")
    assert [row.verdict for row in rows] == [claims.REPRODUCED, claims.OPEN, claims.OPPOSITE]


def test_rows_of_segments_and_of_go_follow_their_numbers() -> None:
    seconds = {"whole graph": 5.0, "all segments": 4.0, "two live segments": 0.5}
    sizes = {"whole graph": 800.0, "all segments": 260.0, "two live segments": 390.0}
    steps = [
        {"task": segments.STEP, "name": name, "seed": n_nodes, "s": seconds[name], "mib": mib}
        for name in segments.MODES
        for n_nodes, mib in ((5_000, 250.0), (43_615, sizes[name]))
    ]
    verdicts = [row.verdict for row in claims.segment_rows(steps)]
    assert verdicts == [claims.OPEN, claims.REPRODUCED]
    tries = ("tries of GO", "tries at random", "tries of the ridge")
    means = {name: [9, 8, 10] for name in tries}
    means |= {f"{tries[0]} - {tries[1]}": [-6, -9, -3], f"{tries[0]} - {tries[2]}": [-1, -3, 1]}
    study = {"16, unroll by 4": [0.5, 0.4, 0.6], "16, the same again": [1, 0.9, 1.1]}
    programs = [["a", "9", "0.9"], ["b", "9", "1.0"]]
    rows = list(claims.go_rows({"programs": programs, "means": means, "cartpole": study}))
    assert [row.verdict == claims.REPRODUCED for row in rows] == [True, False, True]
    assert rows[0].tried == "programs: 1"


def test_facts_of_the_sample_and_of_the_dataset_have_rows() -> None:
    rows = [*claims.default_rows(Sources(SAMPLE, None)), *claims.size_rows()]
    assert [row.source for row in rows] == ["TpuGraphs"] * 3 and rows[0].tried.startswith("sample")
