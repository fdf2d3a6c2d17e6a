"""A run's report: learning curves as metrics.jsonl has them, and what the first configs decide."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.errors import PipelineError
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import LayoutGraph, TileGraph, config_hashes
from data.tree import find_graphs
from ensembles.ranking.explain import default_row
from models.run_folder import CONFIG, METRICS
from pipeline.run.report import MAX_POINTS, N_CONFIGS, best_configs, learning_curves
from submissions.report.charts import BEST_SCHEMA
from submissions.run_report import LearningCurve


def put(folder: Path, *lines: dict[str, float]) -> None:
    folder.mkdir(parents=True)
    (folder / CONFIG).touch()
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_curves_come_in_the_order_of_the_competition_where_there_are_any(tmp_path: Path) -> None:
    both = ({"step": 1, "loss": 2.0}, {"step": 1, "held_out": 0.5}, {"step": 2, "loss": 1.0})
    models = tmp_path / "models"
    put(models / "layout-nlp-random" / "net-seed0", *both[:1])
    put(models / "layout" / "net-seed3", *both)
    put(models / "tile-xla" / "net-seed0")
    (models / "tile-xla" / "trees-seed0").mkdir()
    first, second = learning_curves(tmp_path)
    assert (first.group, second.group) == ("layout", "layout:nlp:random")
    values = {"step": [1, 2], "loss": [2.0, 1.0], "held_out_step": [1], "held_out": [0.5]}
    assert first == LearningCurve(group="layout", member="net-seed3", **values)


def test_long_curves_are_averaged(tmp_path: Path) -> None:
    lines = ({"step": step, "loss": float(step)} for step in range(1, 10 * MAX_POINTS + 1))
    put(tmp_path / "models" / "tile-xla" / "net-seed0", *lines)
    [curve] = learning_curves(tmp_path)
    assert (curve.step[:2], curve.loss[:2]) == ([10, 20], [5.5, 15.5])
    assert len(curve.step) == MAX_POINTS


@pytest.mark.parametrize(
    "line",
    [
        *("{", "3", '{"loss": 1}', '{"step": "a", "loss": 1}', "[" * 100_000),
        *('{"step": 2, "loss": [1]}', '{"step": 2, "loss": {}}', '{"step": NaN, "loss": 1}'),
    ],
)
def test_a_damaged_line_of_a_curve_names_its_file(tmp_path: Path, line: str) -> None:
    net = tmp_path / "models" / "tile-xla" / "net-seed0"
    put(net, {"step": 1, "loss": 1.0})
    with (net / METRICS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(PipelineError, match=r"metrics\.jsonl: cannot be used: "):
        learning_curves(tmp_path)


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_the_first_configs_and_what_they_decide(kind: str, tiny_tree: Path) -> None:
    file = next(f for f in find_graphs(tiny_tree, splits=("valid",)) if f.collection.kind == kind)
    graph = read_graph(file)
    configs = np.random.default_rng(0).permutation(graph.n_configs)
    order = np.concatenate([configs[:1], configs])  # the first one comes twice
    hashes = config_hashes(graph)
    columns = {"config": order.astype(np.uint32), "config_hash": hashes[order]}
    found = best_configs(file, pl.DataFrame(columns))
    assert found.keys() == BEST_SCHEMA.keys()
    assert (found["collection"], found["graph"]) == (file.collection.name, file.name)
    distinct = list(dict.fromkeys(hashes[order].tolist()))[:N_CONFIGS]
    assert [hashes[config] for config in found["configs"]] == distinct
    assert found["configs"][0] == configs[0]
    assert found["n_more"] == 0
    if isinstance(graph, LayoutGraph):
        assert found["against"] == default_row(graph)
        values = graph.configs.rows(np.array([found["against"], *found["configs"]]))
        differs = {
            int(node): [bool((own[place] != values[0, place]).any()) for own in values[1:]]
            for place, node in enumerate(graph.node_config_ids)
        }
        told = {
            int(name.split("node ")[1].rstrip(")")): [cell != "" for cell in cells]
            for name, cells in zip(found["names"], found["cells"], strict=True)
        }
        assert told == {node: cells for node, cells in differs.items() if any(cells)}
        alike = [max(Counter(filter(None, cells)).values()) for cells in found["cells"]]
        assert alike == sorted(alike, reverse=True) and len(set(alike)) > 1
    else:
        assert isinstance(graph, TileGraph)
        rows = dict(zip(found["names"], found["cells"], strict=True))
        for place, config in enumerate(found["configs"]):
            output = graph.config_feat[config].reshape(3, 8)[1, :6].astype(int).tolist()
            sizes = [size for size in output if size]
            assert rows["output_bounds"][place] == " × ".join(map(str, sizes))
