"""The page on `optimize` comes from the results alone."""

import json
from pathlib import Path

from autotune.optimize.write import BEST
from benchmarks.autotune.__main__ import PROGRAMS, SEARCHES, SECONDS, main
from common.files import write_text
from data.hlo.programs import read_programs


def test_page_comes_from_the_results(tmp_path: Path) -> None:
    for number, name in enumerate(PROGRAMS):
        for place, search in enumerate(SEARCHES):
            best = {
                "is_faster": number > 0,
                **{"default_ms": 1.0, "ratio": 0.5 + place / 10, "ci95": [0.4, 0.6]},
                **{"aa_ratio": 1.0, "aa_ci95": [0.99, 1.01]},
                "decisions": {"options": {"xla_backend_optimization_level": "1"}},
                "on_all_cores": {"ratio": 0.7, "ci95": [0.6, 0.8]} if number else None,
                "environment": {"cpu": "a CPU", "jaxlib": "0.10"},
            }
            write_text(tmp_path / name / search / BEST, json.dumps(best))
            write_text(tmp_path / name / search / SECONDS, "31\n")
    main(["--out", str(tmp_path), "--report", str(tmp_path)])
    page = (tmp_path / "optimize.md").read_text()
    assert "| transformer | 1.000 | none is faster |" in page
    ratios = "0.500 [0.400, 0.600] | 1.000 [0.990, 1.010] | 0.700 [0.600, 0.800] |"
    assert f"| n_body | 1.000 | {ratios}" in page
    assert "| transformer | 1 | 1 | 1 | 1 |" in page
    assert "| n_body | 0.500 | 0.600 | 0.700 | 0.800 |" in page
    files = [Path(path) for path in PROGRAMS.values() if ":" not in path]
    assert len(PROGRAMS) == 10 and len(files) == 3
    assert all(len(read_programs(path)) == 1 for path in files)
