"""Orders of compiling are followed as defined, and the page comes from the results alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.optimize.__main__ import SECONDS, main
from benchmarks.optimize.compiles import (
    BUDGETS,
    PROGRAMS,
    USERS,
    WAYS,
    best_so_far,
    followed,
    judge,
)
from common.atomic import write_text
from common.errors import PipelineError
from data.collect.measuring.search import Search
from pipeline.optimize.write import BEST

RUNTIME = np.array([5.0, 1.0, 1.04, 3.0, 9.0])


def judged(seed: int) -> dict[str, Any]:
    """Judge a ranker that knows all."""
    return judge(RUNTIME.astype(np.float32), RUNTIME, np.random.default_rng(seed))


def test_a_search_is_followed_to_all_tiles_and_told_what_each_takes() -> None:
    told = list[list[float]]()

    def search() -> Search:
        told.append((yield np.array([[3], [1]])).tolist())
        told.append((yield np.array([[1], [4]])).tolist())

    order = followed(search(), RUNTIME)
    assert order.tolist() == [3, 1, 4, 0, 2]
    assert told == [[3.0, 1.0], [1.0, 9.0]]
    assert best_so_far(order, RUNTIME).tolist() == [3, *[1] * (len(BUDGETS) - 1)]


def test_a_ranker_that_knows_all_needs_one_compile_and_chance_two() -> None:
    found = [judged(seed) for seed in range(2_000)]
    for order in ("ranker", "guided"):
        assert {one[order]["needed"] for one in found} == {1}
        assert found[0][order]["curve"] == [1.0] * len(BUDGETS)
    for order in ("random", "genetic"):  # (tiles + 1) / (near ones + 1)
        assert np.mean([one[order]["needed"] for one in found]) == pytest.approx(2.0, abs=0.07)


def write_results(out: Path) -> None:
    for seed in range(2):
        found = {"a": {"family": "x", **judged(seed)}, "b": {"family": "y", **judged(seed)}}
        write_text(out / f"tiles-{seed}.json", json.dumps(found))
        curves = {way: [1.0] * len(BUDGETS) for way in WAYS} | {"portfolio": [0.9] * len(BUDGETS)}
        programs = {name: {**curves, "all": 0.9, "same": 1.01} for name in PROGRAMS}
        facts = {"cpu": "a CPU", "jaxlib": "0.10"}
        options = {"revision": "abc", "facts": facts, "programs": programs}
        write_text(out / f"options-{seed}.json", json.dumps(options))
    for number, name in enumerate(USERS):
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
    main(["--out", str(tmp_path), "--report", str(tmp_path)])
    page = (tmp_path / "optimize.md").read_text()
    assert "| transformer | 1.000 | none is faster |" in page
    told = "0.500 [0.400, 0.600] | 1.000 [0.990, 1.010] | 0.700 [0.600, 0.800] |"
    assert f"| n_body | 1.000 | {told}" in page
    assert "| ranker | 1.00 [1.00, 1.00] | 1.000 | 1.000 |" in page and "\n2 kernels" in page
    assert "| portfolio | 0.900 [0.900, 0.900] |" in page
    assert "| portfolio | -0.100 [-0.100, -0.100] |" in page
    assert "Surely faster than the menu at equal compiles: portfolio at 1, " in page
    (tmp_path / USERS[3] / BEST).unlink()
    with pytest.raises(PipelineError, match="not all is there"):
        main(["--out", str(tmp_path), "--report", str(tmp_path)])
