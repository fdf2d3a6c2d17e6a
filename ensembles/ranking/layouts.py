"""Configs in the compiler's terms: minor-to-major lists by instruction, or tile sizes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from data.graphs.graph import LayoutGraph, TileGraph
from data.graphs.node_columns import RANK_MAX
from ensembles.ranking.program import NamedGraph

COMPILERS_CHOICE = "compiler's choice"
# Of the configurable operations, only this one has no kernel.
ONE_OPERAND = "reshape"
TENSORS = ("output", "input", "kernel")
TILE_BOUNDS = ("kernel_bounds", "output_bounds", "input_bounds")
# Six sizes, their sum and their product.
VALUES_PER_BOUNDS = 8

Order = tuple[int, ...]


@dataclass(frozen=True)
class NodeLayouts:
    """Layouts that a config gives to the tensors of one instruction.

    Attributes:
        node: Number of the node.
        name: Name of the instruction. None if the file has no names.
        opcode: Operation, for example "convolution".
        tensors: Minor-to-major order as XLA writes it, or None for the compiler's choice. Keys are
            "output", "input" (left operand) and "kernel" (right operand, except for reshapes).
            Tensors with more than six dimensions have only the six minor-most ones.
    """

    node: int
    name: str | None
    opcode: str
    tensors: dict[str, Order | None]

    @property
    def is_left_open(self) -> bool:
        """Return whether the compiler chooses all layouts."""
        return all(order is None for order in self.tensors.values())

    def as_json(self) -> dict[str, Any]:
        """Return the layouts for JSON, with "compiler's choice" for open ones."""
        name_entry = {"name": self.name} if self.name is not None else {}
        orders = {
            tensor: COMPILERS_CHOICE if order is None else list(order)
            for tensor, order in self.tensors.items()
        }
        return {"node": self.node, **name_entry, "opcode": self.opcode, **orders}


def layouts_of(graph: NamedGraph, config: int) -> tuple[NodeLayouts, ...]:
    """Return the layouts of each configurable node in a config."""
    assert isinstance(graph.graph, LayoutGraph)
    names = graph.instruction_names
    rows = graph.graph.configs.rows(np.array([config]))[0]  # (k, 18)
    return tuple(
        NodeLayouts(
            node,
            names[node] if names else None,
            opcode := graph.opcode(node),
            {
                tensor: without_end(values.tolist(), -1) or None
                for tensor, values in zip(TENSORS, row.reshape(-1, RANK_MAX), strict=True)
                if tensor != "kernel" or opcode != ONE_OPERAND or values[0] >= 0
            },
        )
        for node, row in zip(graph.graph.node_config_ids.tolist(), rows, strict=True)
    )


def tile_of(graph: NamedGraph, config: int) -> dict[str, Order]:
    """Return the tile sizes of a config by field: kernel, output and input bounds.

    Tuning data may also have iteration bounds, which models do not read.
    """
    assert isinstance(graph.graph, TileGraph)
    bounds = graph.graph.config_feat[config].reshape(-1, VALUES_PER_BOUNDS)[:, :RANK_MAX]
    tile = {
        field: without_end([int(size) for size in sizes], 0)
        for field, sizes in zip(TILE_BOUNDS, bounds.tolist(), strict=True)
    }
    if graph.program and graph.run_numbers is not None:
        run = graph.program.runs[int(graph.run_numbers[config])]
        iteration = tuple(run.op_config.tile_size_config.iteration_bounds)
        tile |= {"iteration_bounds": iteration} if iteration else {}
    return tile


def without_end(values: list[int], padding: int) -> Order:
    """Return values without the padding at their end.

    >>> without_end([3, 0, 2, 1, -1, -1], -1)
    (3, 0, 2, 1)
    """
    n = len(values)
    while n and values[n - 1] == padding:
        n -= 1
    return tuple(values[:n])


def order_text(order: Order | None) -> str | None:
    """Return a minor-to-major order as XLA writes it.

    >>> order_text((1, 0))
    '{1,0}'
    """
    return None if order is None else "{" + ",".join(map(str, order)) + "}"


def change_of(before: NodeLayouts, after: NodeLayouts) -> str:
    """Return the changes of a node, "output {1,0} → {0,1}". `-` is the compiler's choice."""
    old, new = before.tensors, after.tensors
    return ", ".join(
        f"{tensor} {order_text(old.get(tensor)) or '-'} → {order_text(new.get(tensor)) or '-'}"
        for tensor in TENSORS
        if old.get(tensor) != new.get(tensor)
    )
