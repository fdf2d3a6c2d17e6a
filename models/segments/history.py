"""Graph Segment Training's memory: the last known embedding of each segment and config.

Cao et al., "Learning Large Graph Property Prediction via Graph Segment Training", NeurIPS 2023.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def segment_weights(live: int, kept: NDArray[np.bool_], keep_stale: float) -> NDArray[np.float64]:
    """Return the weight of each segment's embedding in the graph's sum; (s,) float64.

    Stale embedding dropout: each of the other segments is kept with probability p = `keep_stale`
    and weight 1, or else dropped. The live one, drawn evenly among s, weighs p + (1 - p) s. Over
    draws each segment then weighs (p + (1 - p) s) / s + (1 - 1 / s) p = 1: the sum is unbiased.

    Args:
        live: the segment that carries gradients.
        kept: (s,) which segments are kept; kept[live] does not count.
        keep_stale: p.
    """
    weights = kept.astype(np.float64)
    weights[live] = keep_stale + (1 - keep_stale) * len(kept)
    return weights


class SegmentHistory(nn.Module):
    """Embeddings as they were when last computed, for a fixed pool of configs of each graph.

    The table is a buffer, so checkpoints hold it. It takes 4 h' bytes, h' the width of an
    embedding, for each pool config of each segment with a configurable node, and as much once for
    each other segment: 768 B at h = 64, so 8.6 MB for 44 segments and 256 configs.

    Args:
        entries: for each graph, how many embeddings each segment has: the pool's size, or 1 where
            configs do not differ.
        width: h'.
    """

    def __init__(self, entries: Sequence[Sequence[int]], width: int) -> None:
        super().__init__()
        ends = np.cumsum([count for graph in entries for count in graph]).tolist()
        starts = iter([0, *ends])
        self.places = [[(next(starts), count) for count in graph] for graph in entries]
        self.values: Tensor
        self.known: Tensor
        self.register_buffer("values", torch.zeros(ends[-1], width))
        self.register_buffer("known", torch.zeros(ends[-1], dtype=torch.bool))

    def rows(self, graph: int, segment: int, pooled: Tensor) -> Tensor:
        """Return where the configs at positions `pooled` (c,) of the pool stand; (c,) or (1,).

        `pooled` is on the CPU, the result where the table is.
        """
        start, count = self.places[graph][segment]
        rows = start + pooled if count > 1 else torch.tensor([start])
        return rows.to(self.values.device)

    def read(self, rows: Tensor) -> Tensor:
        """Return the embeddings at `rows` (r,); (r, h')."""
        return self.values[rows]

    def write(self, rows: Tensor, embeddings: Tensor) -> None:
        """Store the embeddings (r, h') at `rows` (r,)."""
        self.values[rows] = embeddings.detach().to(self.values.dtype)
        self.known[rows] = True

    def forget(self, rows: Tensor) -> None:
        """Let the embeddings at `rows` (r,) be computed anew when they are next needed."""
        self.known[rows] = False
