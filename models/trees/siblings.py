"""Find siblings: graphs of the same program in two sizes, for example of two batch sizes."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from common.settings import FrozenConfig
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, program_content
from data.graphs.node_columns import SHAPE_PRODUCT
from data.tree import GraphFile

K = TypeVar("K")

MAX_SIBLINGS = 4
# Siblings may differ by some edges, for example by a broadcast that a batch of 1 does not need. In
# the published sizes the largest difference is 20 edges of 749.
MAX_EDGES_APART, MAX_SHARE_APART, ALWAYS_SHARE_APART = 20, 0.05, 0.01


class Signature(FrozenConfig):
    """The facts that decide whether two graphs are the same program or siblings.

    Attributes:
        opcodes: Hash of the opcodes of the configurable nodes, in config order.
        log_size: Mean of log(1 + elements) over the outputs of the configurable nodes.
    """

    content: str
    opcodes: str
    n_edges: int
    log_size: float
    collection: str

    def is_sibling(self, graph: "Signature") -> bool:
        """Return whether two graphs are the same program, in any size."""
        return self.opcodes == graph.opcodes and are_near(self.n_edges, graph.n_edges)

    def distance(self, graph: "Signature") -> tuple[bool, bool, float]:
        """Return the key that sorts siblings: same content, same collection, nearest size."""
        size_ratio = abs(self.log_size - graph.log_size)
        return self.content != graph.content, self.collection != graph.collection, size_ratio


def are_near(first: int, second: int) -> bool:
    """Return whether two numbers of edges may be those of one program in two sizes."""
    larger = max(first, second)
    at_most = max(ALWAYS_SHARE_APART * larger, min(MAX_EDGES_APART, MAX_SHARE_APART * larger))
    return abs(first - second) <= at_most


def signature_of(graph: LayoutGraph) -> Signature:
    ids = graph.node_config_ids
    opcodes = hashlib.blake2b(graph.node_opcode[ids].tobytes(), digest_size=8).hexdigest()
    return Signature(
        content=program_content(graph),
        opcodes=opcodes,
        n_edges=len(graph.edge_index),
        log_size=float(np.log1p(np.abs(graph.node_feat[ids, SHAPE_PRODUCT])).mean()),
        collection=graph.file.collection.name,
    )


def siblings_of(programs: Mapping[K, Signature], graph: Signature) -> list[K]:
    """Return the learned programs that rank a graph, nearest first: itself, or its siblings."""
    siblings = [key for key, program in programs.items() if program.is_sibling(graph)]
    siblings.sort(key=lambda key: programs[key].distance(graph))
    copies = [key for key in siblings if programs[key].content == graph.content]
    return (copies or siblings)[:MAX_SIBLINGS]


def used_programs(files: Sequence[GraphFile], to_rank: Sequence[GraphFile]) -> list[GraphFile]:
    """Return the train graphs that rank some graphs, or all of them without graphs to rank."""
    if not to_rank:
        return [*files]
    programs = {file: signature_of(read_layout(file)) for file in files}
    graphs = [signature_of(read_layout(file)) for file in to_rank]
    needed_files = {file for graph in graphs for file in siblings_of(programs, graph)}
    return [file for file in files if file in needed_files]
