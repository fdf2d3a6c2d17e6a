"""Find siblings: graphs of the same program in two sizes, for example of two batch sizes."""

import hashlib

import numpy as np

from common.settings import FrozenConfig
from data.graphs.graph import LayoutGraph, program_content
from data.graphs.node_columns import SHAPE_PRODUCT

# Siblings may differ by some edges, for example by a broadcast that a batch of 1 does not need. In
# the published sizes the largest difference is 20 edges of 749.
MAX_EDGES_APART, MAX_SHARE_APART, ALWAYS_SHARE_APART = 20, 0.05, 0.01


class Signature(FrozenConfig):
    """The facts that decide whether two graphs are the same program or siblings.

    Attributes:
        content: Hash of all nodes and edges.
        opcodes: Hash of the opcodes of the configurable nodes, in config order.
        n_edges: Number of edges.
        log_size: Mean of log(1 + elements) over the outputs of the configurable nodes.
        collection: Name of the collection.
    """

    content: str
    opcodes: str
    n_edges: int
    log_size: float
    collection: str

    def is_sibling(self, other: "Signature") -> bool:
        """Return whether two graphs are the same program, in any size.

        Args:
            other: Signature of the other graph.
        """
        return self.opcodes == other.opcodes and are_near(self.n_edges, other.n_edges)

    def distance(self, other: "Signature") -> tuple[bool, bool, float]:
        """Return the key that sorts siblings: same content, same collection, nearest size.

        Args:
            other: Signature of the other graph.
        """
        return (
            self.content != other.content,
            self.collection != other.collection,
            abs(self.log_size - other.log_size),
        )


def are_near(n_edges: int, other: int) -> bool:
    """Return whether two numbers of edges may be those of one program in two sizes.

    Args:
        n_edges: Number of edges of one graph.
        other: Number of edges of the other graph.
    """
    larger = max(n_edges, other)
    at_most = max(ALWAYS_SHARE_APART * larger, min(MAX_EDGES_APART, MAX_SHARE_APART * larger))
    return abs(n_edges - other) <= at_most


def signature_of(graph: LayoutGraph) -> Signature:
    """Return the signature of a program.

    Args:
        graph: Graph of the program.
    """
    ids = graph.node_config_ids
    opcodes = hashlib.blake2b(graph.node_opcode[ids].tobytes(), digest_size=8).hexdigest()
    return Signature(
        content=program_content(graph),
        opcodes=opcodes,
        n_edges=len(graph.edge_index),
        log_size=float(np.log1p(np.abs(graph.node_feat[ids, SHAPE_PRODUCT])).mean()),
        collection=graph.file.collection.name,
    )
