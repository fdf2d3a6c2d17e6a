"""What a recipe's layout network reads, as a graph for PyTorch Geometric."""

import numpy as np
from numpy.typing import NDArray

from features.pyg import TpuGraph
from models.layout.inputs import LayoutInputs


def from_inputs(inputs: LayoutInputs, distinct: NDArray[np.int64]) -> TpuGraph:
    """Return what a recipe's network is given for `distinct` (r,), as `TpuGraphsLayout` would."""
    return TpuGraph(
        x=inputs.node_feat,
        opcode=inputs.opcode,
        node_layout=inputs.layout - 1,
        edge_index=inputs.neighbours.edge_index.T.flip(0),
        config_node_ids=inputs.config_ids,
        config_feat=inputs.symbols(distinct).transpose(0, 1) - 1,
    )
