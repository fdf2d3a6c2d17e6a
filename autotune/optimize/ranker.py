"""The ranker that proposes layouts: the models of a run."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.program import Description
from autotune.optimize.session import OptimizeRequest, Pick
from common.errors import PipelineError
from data.graphs.graph import LayoutGraph
from data.graphs.packing import pack_values
from data.tree import GraphFile, collection_named
from ensembles.ranking.program import NamedGraph
from ensembles.ranking.rank import rank, ranker_for


def pick_by(run: Path, request: OptimizeRequest) -> Pick:
    """Return a function that ranks layouts by the models of a run.

    The function raises a PipelineError if the run has no models for layouts.
    """
    if not run.is_dir():
        raise PipelineError(f"--run {run}: no such folder; expected one of `run`")

    def pick(description: Description, configs: NDArray[Any]) -> NDArray[np.int64]:
        graph = layout_graph(request.program, description, configs)
        named = NamedGraph(graph, graph.file.collection)
        ranked = rank(ranker_for(run, named), named, top=len(configs))
        return np.asarray(ranked.order, np.int64)

    return pick


def layout_graph(program: str, description: Description, configs: NDArray[Any]) -> LayoutGraph:
    """Return the graph of a program with unmeasured configs.

    Args:
        configs: Config features, (c, k, 18).
    """
    arrays = description.arrays
    return LayoutGraph(
        GraphFile(collection_named("layout:xla:random"), "test", program, Path(program)),
        arrays["node_feat"],
        arrays["node_opcode"],
        arrays["edge_index"],
        np.zeros(len(configs), np.int64),
        configs=pack_values(configs.astype(np.int8)),
        node_config_ids=arrays["node_config_ids"],
        node_splits=arrays["node_splits"],
    )
