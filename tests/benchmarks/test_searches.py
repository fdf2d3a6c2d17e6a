"""The pages on `optimize` and `suggest` come from the results of each search."""

import json
from pathlib import Path

from autotune.optimize.write import BEST
from benchmarks.autotune.__main__ import PROGRAMS, SECONDS, main
from benchmarks.suggest import TRAINED, UNTRAINED, Table, table_rows
from common.files import write_text
from data.graphs.graph import LayoutGraph, TileGraph
from data.hlo.programs import read_programs
from models.trees.baseline import BASELINES


def test_page_comes_from_the_results(tmp_path: Path) -> None:
    for number, name in enumerate(PROGRAMS):
        options = {"xla_backend_optimization_level": "1"}
        best = {
            **{"is_faster": number > 0, "default_ms": 1.0, "ratio": 0.5, "ci95": [0.4, 0.6]},
            **{"aa_ratio": 1.0, "aa_ci95": [0.99, 1.01], "candidates": {"tried": 77}},
            "decisions": {"options": options, "kept_apart": ["dot.1", "dot.2"]},
            "on_all_cores": {"ratio": 0.7, "ci95": [0.6, 0.8]} if number else None,
            "environment": {"cpu": "a CPU", "jaxlib": "0.10"},
        }
        write_text(tmp_path / name / BEST, json.dumps(best))
        write_text(tmp_path / name / SECONDS, "31\n")
    main(["--out", str(tmp_path), "--report", str(tmp_path)])
    page = (tmp_path / "optimize.md").read_text()
    assert "| transformer | 1.000 | none is faster | 1.000 [0.990, 1.010] |  |  | 77 | 31 |" in page
    ratios = "0.500 [0.400, 0.600] | 1.000 [0.990, 1.010] | 0.700 [0.600, 0.800]"
    decisions = "`xla_backend_optimization_level=1`; barriers after: dot.1, dot.2"
    assert f"| n_body | 1.000 | {ratios} | {decisions} | 77 | 31 |" in page
    files = [Path(path) for path in PROGRAMS.values() if ":" not in path]
    assert len(PROGRAMS) == 10 and len(files) == 3
    assert all(len(read_programs(path)) == 1 for path in files)


def test_each_search_has_a_row(layout_graph: LayoutGraph, tile_graph: TileGraph) -> None:
    table = Table()
    for graph in (layout_graph, tile_graph):
        scores = BASELINES[graph.file.collection.kind].score(graph)
        both = {"rule": scores, "ranker": scores}
        table.replay(graph, graph.runtime_ns, graph.file.name, both)
    rows = table_rows(table)
    assert [row[0] for row in rows] == [*UNTRAINED, *TRAINED]
    # The first row is that of random search, whose ratio to itself is 1.
    assert rows[0][2] == rows[1][3] == "1.00 [1.00, 1.00]"
