"""What the configs that a run ranks first decide, graph by graph."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl

from data.graphs.graph import LayoutGraph
from data.read import read_graph
from data.tree import GraphFile
from ensembles.ranking.configs import change_of, layouts_of, tile_of
from ensembles.ranking.explain import default_row
from ensembles.ranking.program import NamedGraph

N_CONFIGS, MOST_NODES = 5, 40  # that are told of a graph

Row = tuple[str, list[str]]  # a name, and a cell per config


def best_configs(file: GraphFile, ranked: pl.DataFrame) -> dict[str, Any]:
    """Tell what the first five configs of a graph decide.

    Args:
        ranked: `config` and `config_hash` of all c, predicted fastest first.

    Returns:
        A row of BEST_SCHEMA: of five distinct configs what differs from the config nearest to the
        compiler's own choice, first the nodes that most of them set alike; of tiles, the bounds.

    Raises:
        PipelineError: the file is damaged.
    """
    distinct = ranked.unique("config_hash", keep="first", maintain_order=True)
    configs: list[int] = distinct["config"].head(N_CONFIGS).to_list()
    named, against = NamedGraph(read_graph(file), file.collection), None
    if isinstance(named.graph, LayoutGraph):
        against = default_row(named.graph)
        rows = _changes(named, against, configs)
    else:
        tiles = [tile_of(named, config) for config in configs]
        rows = [
            (field, [" × ".join(map(str, tile[field])) for tile in tiles]) for field in tiles[0]
        ]
    return {
        **{"collection": file.collection.name, "graph": file.name},
        **{"configs": configs, "against": against},
        "names": [name for name, _ in rows[:MOST_NODES]],
        "cells": [cells for _, cells in rows[:MOST_NODES]],
        "n_more": max(0, len(rows) - MOST_NODES),
    }


def _changes(named: NamedGraph, against: int, configs: Sequence[int]) -> list[Row]:
    default, *chosen = (layouts_of(named, config) for config in (against, *configs))
    rows = []
    for before, *after in zip(default, *chosen, strict=True):
        cells = [change_of(before, own) for own in after]
        if any(cells):
            rows.append((f"{before.opcode} (node {before.node})", cells))

    def n_alike(row: Row) -> int:
        return max(Counter(filter(None, row[1])).values())

    return sorted(rows, key=n_alike, reverse=True)
