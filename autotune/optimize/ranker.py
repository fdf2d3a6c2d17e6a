"""Rankers that propose candidates: random layouts, or all tiles."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.worker import Description
from autotune.optimize.session import OptimizeRequest, Pick
from common.errors import PipelineError
from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.graphs.packing import pack_values
from data.tree import GraphFile, collection_named
from ensembles.ranking.program import NamedGraph
from ensembles.ranking.rank import rank, ranker_for
from models.trees.baseline import BASELINES


def pick_by(run: Path, request: OptimizeRequest) -> Pick:
    """Return a function that ranks configs by the models of a run.

    The function raises a PipelineError if the run has no models for layouts or tiles.
    """
    if not run.is_dir():
        raise PipelineError(f"--run {run}: no such folder; expected one of `run`")

    def pick(description: Description, configs: NDArray[Any]) -> NDArray[np.int64]:
        is_layout = "node_config_ids" in description.arrays
        collection = collection_named("layout:xla:random" if is_layout else "tile:xla")
        file = GraphFile(collection, "test", request.program, Path(request.program))
        graph = NamedGraph(described_graph(file, description, configs), collection)
        ranked = rank(ranker_for(run, graph), graph, top=len(configs))
        return np.asarray(ranked.order, np.int64)

    return pick


def pick_tiles(
    request: OptimizeRequest, description: Description, configs: NDArray[Any]
) -> NDArray[np.int64]:
    """Rank tiles without training: fewest steps first, then largest blocks.

    Args:
        request: Request of the call.
        description: The kernel.
        configs: Config features, (c, 24).

    Returns:
        Positions of the configs, the best first, (c,).
    """
    file = GraphFile(collection_named("tile:xla"), "test", request.program, Path(request.program))
    scores = BASELINES["tile"].score(described_graph(file, description, configs))
    return np.argsort(scores, kind="stable")


def described_graph(file: GraphFile, description: Description, configs: NDArray[Any]) -> Graph:
    """Return the graph of a program with unmeasured configs.

    Args:
        file: Name and collection of the graph.
        description: The program.
        configs: Config features, (c, k, 18) of layouts or (c, 24) of tiles.
    """
    arrays = description.arrays
    unknown = np.zeros(len(configs), np.int64)
    nodes = (file, arrays["node_feat"], arrays["node_opcode"], arrays["edge_index"], unknown)
    if file.collection.kind == "tile":
        tiles = configs.astype(np.float32)
        return TileGraph(*nodes, config_feat=tiles, runtime_normalizers=np.ones_like(unknown))
    return LayoutGraph(
        *nodes,
        configs=pack_values(configs.astype(np.int8)),
        node_config_ids=arrays["node_config_ids"],
        node_splits=arrays["node_splits"],
    )
