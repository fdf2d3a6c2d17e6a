"""Orders of compiling are followed as defined, and the page comes from the results alone."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.optimize.__main__ import PROGRAMS, SECONDS, main
from benchmarks.optimize.tiles import best_so_far, judge, needed, needed_at_random, tile_rows
from common.atomic import write_text
from common.errors import PipelineError
from pipeline.optimize.write import BEST


def test_random_orders_need_what_their_mean_says() -> None:
    runtime = np.array([5.0, 1.0, 1.04, 3.0, 9.0])
    counts = [needed(np.array(order), runtime) for order in permutations(range(5))]
    assert np.mean(counts) == pytest.approx(needed_at_random(runtime)) == 2.0


def test_the_best_so_far_ends_at_the_best() -> None:
    runtime = np.array([4.0, 2.0, 1.0])
    curve = best_so_far(np.array([0, 1, 2]), runtime)
    assert curve[:3].tolist() == [4, 2, 1] and curve[-1] == 1


def write_results(out: Path) -> None:
    runtime = np.array([5.0, 1.0, 1.04, 3.0, 9.0])
    for seed in range(2):
        good = judge(runtime.astype(np.float32), runtime, seed)
        found = {"a": {"family": "x", **good}, "b": {"family": "y", **good}}
        write_text(out / f"tiles-{seed}.json", json.dumps(found))
    for number, name in enumerate(PROGRAMS):
        best = {
            "is_faster": number > 0,
            **{"default_ms": 1.0, "ratio": 0.5, "ci95": [0.4, 0.6]},
            **{"aa_ratio": 1.0, "aa_ci95": [0.99, 1.01]},
            "decisions": {"options": {"xla_backend_optimization_level": "1"}},
            "on_all_cores": {"ratio": 0.7, "ci95": [0.6, 0.8]} if number else None,
            "environment": {"cpu": "a CPU", "jaxlib": "0.10"},
        }
        write_text(out / name / BEST, json.dumps(best))
        write_text(out / name / SECONDS, "31\n")


def test_the_page_comes_from_the_results(tmp_path: Path) -> None:
    write_results(tmp_path)
    rows, share, n_kernels = tile_rows(tmp_path)
    assert (rows[0][:2], rows[1][:2]) == (
        ["random", "2.00 [2.00, 2.00]"],
        ["ranker", "1.00 [1.00, 1.00]"],
    )
    assert share.mean == pytest.approx(0.5) and n_kernels == 2
    main(["--out", str(tmp_path), "--report", str(tmp_path)])
    page = (tmp_path / "optimize.md").read_text()
    assert "| transformer | 1.000 | none is faster |" in page
    told = "0.500 [0.400, 0.600] | 1.000 [0.990, 1.010] | 0.700 [0.600, 0.800] |"
    assert f"| n_body | 1.000 | {told}" in page
    assert "needs 0.50 [0.50, 0.50] of the compiles" in page


def test_a_page_of_half_the_results_is_refused(tmp_path: Path) -> None:
    write_results(tmp_path)
    (tmp_path / PROGRAMS[3] / BEST).unlink()
    with pytest.raises(PipelineError, match="not all is there"):
        main(["--out", str(tmp_path), "--report", str(tmp_path)])
