"""A trained ranker as a source of candidates: of layouts drawn at random, or of all tiles."""

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
from models.trees.linear import BASELINES


def pick_by(run: Path, request: OptimizeRequest) -> Pick:
    """Return what ranks described configs by the models of a run.

    Raises:
        PipelineError: no such run; when it is called: the run has no models of that kind.
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
    """Rank described tiles without training: fewest steps, and of these the largest blocks."""
    file = GraphFile(collection_named("tile:xla"), "test", request.program, Path(request.program))
    scores = BASELINES["tile"].score(described_graph(file, description, configs))
    return np.argsort(scores, kind="stable")


def described_graph(file: GraphFile, description: Description, configs: NDArray[Any]) -> Graph:
    """Return a described program with configs (c, k, 18) or (c, 24), none of them measured."""
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
