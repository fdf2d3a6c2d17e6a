"""What the first configs decide, against the configs as their file has them."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data.graphs.distinct import config_hashes
from data.graphs.graph import LayoutGraph, TileGraph
from data.read import read_graph
from data.tree import find_graphs
from ensembles.ranking.explain import default_row
from pipeline.run.report import N_CONFIGS, best_configs
from submissions.report.charts import BEST_SCHEMA


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
    else:
        assert isinstance(graph, TileGraph)
        rows = dict(zip(found["names"], found["cells"], strict=True))
        for place, config in enumerate(found["configs"]):
            output = graph.config_feat[config].reshape(3, 8)[1, :6].astype(int).tolist()
            sizes = [size for size in output if size]
            assert rows["output_bounds"][place] == " × ".join(map(str, sizes))
