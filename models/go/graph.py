"""A program as the policy reads it: nodes in topological order, and which of them decide what.

n nodes, e edges, d nodes that decide in a task, g genes: a choice is (g,) int64, an option a gene.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data.collect.measuring.session import Description
from data.graphs.graph import N_NODE_FEATURES
from data.graphs.node_columns import MINOR_TO_MAJOR
from features.scaling import NodeScaler
from models.layout.network import N_OPCODES
from models.layout.sparse_aggregation import Neighbours
from models.training.device import OnDevice

WHOLE_PROGRAM = -1  # given for the node of a gene that is of none
MAX_PROGRAM_GENES = 64  # of one space


@dataclass(frozen=True)
class Task(OnDevice):
    """Decisions of one kind.

    Attributes:
        genes: which of a choice's genes they are.
        nodes: (d,) int64 positions in topological order.
        n_options: (d,) int64.
    """

    name: str
    genes: slice
    nodes: Tensor
    n_options: Tensor


@dataclass(frozen=True)
class DecisionGraph(OnDevice):
    """A graph and its tasks; each decision of the whole program is a node of its own, the last.

    Attributes:
        node_feat: (n, 140) float32 scaled, in topological order as all that follows.
        opcode: (n,) int64; of a whole program's gene, 256 + its number within its task.
        neighbours: what nodes read of operands and users.
        tasks: in the order in which they are decided.
    """

    name: str
    node_feat: Tensor
    opcode: Tensor
    neighbours: Neighbours
    tasks: tuple[Task, ...]
    n_genes: int


def decision_graph(name: str, description: Description, scaler: NodeScaler) -> DecisionGraph:
    """Scale the graph of a described subject; each space of its decisions is a task.

    Its nodes are in topological order: HloGraph has operands first. What has spaces says which
    nodes decide.
    """
    arrays, of_genes = description.arrays, description.nodes
    assert of_genes is not None
    opcode, edge_index = arrays["node_opcode"].astype(np.int64), arrays["edge_index"]
    scaled = scaler(arrays["node_feat"])
    scaled[:, MINOR_TO_MAJOR] = 0
    opcodes, tasks, start, n_nodes = [opcode], [], 0, len(opcode)
    for space, n_genes in description.spaces.items():
        genes = slice(start, start + n_genes)
        nodes = of_genes[genes].copy()
        own = np.flatnonzero(nodes == WHOLE_PROGRAM)
        nodes[own] = n_nodes + np.arange(len(own))
        opcodes.append(N_OPCODES + np.arange(len(own)))
        given = torch.from_numpy(nodes), torch.from_numpy(description.n_options[genes])
        tasks.append(Task(space, genes, *given))
        start, n_nodes = start + n_genes, n_nodes + len(own)
    none = np.zeros((n_nodes - len(opcode), N_NODE_FEATURES), np.float32)
    edges = torch.from_numpy(edge_index.reshape(-1, 2))
    return DecisionGraph(
        name=name,
        node_feat=torch.from_numpy(np.concatenate([scaled, none])),
        opcode=torch.from_numpy(np.concatenate(opcodes)),
        neighbours=Neighbours(edges, n_nodes, varying=torch.empty(0, dtype=torch.int64)),
        tasks=tuple(tasks),
        n_genes=start,
    )
