"""The ranker that proposes layouts: the models of a run."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.program import Description
from autotune.optimize.session import OptimizeRequest
from data.graphs.graph import LayoutGraph
from data.graphs.packing import pack_values
from data.tree import GraphFile, collection_named
from ensembles.ranking.program import NamedGraph
from ensembles.ranking.rank import rank, ranker_for


def rank_layouts(
    request: OptimizeRequest, description: Description, configs: NDArray[Any]
) -> NDArray[np.int64]:
    """Return the positions (c,) of layouts, sorted by the score of the models of a run.

    Args:
        configs: Config features, (c, k, 18).
    """
    assert request.run, "only a run ranks"
    program, arrays = request.program, description.arrays
    graph = LayoutGraph(
        GraphFile(collection_named("layout:xla:random"), "test", program, Path(program)),
        arrays["node_feat"],
        arrays["node_opcode"],
        arrays["edge_index"],
        np.zeros(len(configs), np.int64),
        configs=pack_values(configs.astype(np.int8)),
        node_config_ids=arrays["node_config_ids"],
        node_splits=arrays["node_splits"],
    )
    named = NamedGraph(graph, graph.file.collection)
    ranking = rank(ranker_for(Path(request.run), named), named, top=len(configs))
    return np.asarray(ranking.order, np.int64)
