"""Several graphs as one graph without edges between them, to compute a training step in one pass.

On small graphs, a GPU waits for the processor, which launches the kernels of each graph. Joined
graphs share most launches. The scores and gradients equal the results of one pass per graph.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.layout.inputs import LayoutInputs, NodeInputs, OneGraph, SparseAggregation

Samples = NDArray[np.int64] | Tensor


@dataclass(frozen=True, kw_only=True)
class JoinedGraphs(NodeInputs):
    """Graphs whose nodes follow each other.

    Config j of the joined graph is config j of a sample of each graph, so the samples have the same
    size c. Samples are (g, c) positions among the distinct configs of each graph.

    Attributes:
        vectors: (v, 18) int64 layout vectors of all graphs, as embedding rows.
    """

    graphs: tuple[LayoutInputs, ...]
    vectors: Tensor

    def choices(self, distinct: Samples) -> Tensor:
        """Return the layout vector of each configurable node, (c, k) int64 rows of `vectors`.

        Args:
            distinct: (g, c) sample of each graph.
        """
        starts = _starts(graph.vectors for graph in self.graphs)
        parts = zip(self.graphs, distinct, starts, strict=True)
        return torch.cat([graph.choices(rows) + start for graph, rows, start in parts], dim=1)

    @property
    def sizes(self) -> list[int]:
        """Return the number of nodes of each graph."""
        return [len(graph.opcode) for graph in self.graphs]

    def by_graph(self, x: Tensor, distinct: Samples, dim: int = 0) -> Iterator[OneGraph]:
        """Yield the inputs, nodes and configs of each graph.

        Args:
            x: Tensor with an axis of all nodes.
            distinct: (g, c) sample of each graph.
            dim: Axis of the nodes.
        """
        return zip(self.graphs, x.split(self.sizes, dim), distinct, strict=True)


GraphInputs = LayoutInputs | JoinedGraphs


def join_graphs(graphs: Sequence[LayoutInputs]) -> JoinedGraphs:
    """Join graphs."""
    names = "node_feat", "opcode", "layout", "vectors"
    joined = {name: torch.cat([getattr(graph, name) for graph in graphs]) for name in names}
    parts = list(zip(graphs, _starts(graph.opcode for graph in graphs), strict=True))
    edges = torch.cat([graph.neighbours.edge_index + start for graph, start in parts])
    ids = torch.cat([graph.config_ids + start for graph, start in parts])
    cpu = SparseAggregation(edges.cpu(), len(joined["opcode"]), varying=ids.cpu())
    neighbours = cpu.to(edges.device)
    return JoinedGraphs(**joined, config_ids=ids, neighbours=neighbours, graphs=tuple(graphs))


def _starts(parts: Iterable[Tensor]) -> list[int]:
    # The first row of each part in the concatenation.
    return list(accumulate((len(part) for part in parts), initial=0))[:-1]
