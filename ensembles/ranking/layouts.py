"""What a config says, in the compiler's words: minor-to-major lists by instruction, tile sizes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph, TileGraph
from data.graphs.node_columns import RANK_MAX
from ensembles.ranking.program import NamedGraph

COMPILERS_CHOICE = "compiler's choice"
ONE_OPERAND = "reshape"  # of the operations that can be configured, the one without a kernel
TENSORS = ("output", "input", "kernel")
TILE_BOUNDS = ("kernel_bounds", "output_bounds", "input_bounds")
VALUES_PER_BOUNDS = 8  # six sizes, their sum and their product

Order = tuple[int, ...]


@dataclass(frozen=True)
class NodeLayouts:
    """The layouts that a config gives to the tensors of one instruction.

    Attributes:
        node: its position in the graph.
        name: the instruction's; None where the file has no names.
        opcode: its operation, such as "dot".
        tensors: by "output", "input" (left operand) and, but for reshapes, "kernel" (right
            operand): the minor-to-major order, as XLA writes it; None = the compiler's choice. The
            dataset's longer tensors are given their minor-most dimensions alone.
    """

    node: int
    name: str | None
    opcode: str
    tensors: dict[str, Order | None]

    @property
    def is_left_open(self) -> bool:
        """Tell whether all of it is left to the compiler."""
        return all(order is None for order in self.tensors.values())

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON, with words where the compiler chooses."""
        named = {"name": self.name} if self.name is not None else {}
        orders = {
            tensor: COMPILERS_CHOICE if order is None else list(order)
            for tensor, order in self.tensors.items()
        }
        return {"node": self.node, **named, "opcode": self.opcode, **orders}


def layouts_of(named: NamedGraph, config: int) -> tuple[NodeLayouts, ...]:
    """Return the layouts of each configurable node in a config, in config order."""
    assert isinstance(named.graph, LayoutGraph)
    names = named.instruction_names
    rows = named.graph.configs.rows(np.array([config]))[0]  # (k, 18)
    return tuple(
        NodeLayouts(
            node,
            names[node] if names else None,
            named.opcode(node),
            dict(_tensors(row, named.opcode(node))),
        )
        for node, row in zip(named.graph.node_config_ids.tolist(), rows, strict=True)
    )


def _tensors(row: NDArray[np.int8], opcode: str) -> Iterator[tuple[str, Order | None]]:
    """Yield the tensors of a node with their orders, from its values (18,)."""
    for tensor, values in zip(
        ("output", "input", "kernel"), row.reshape(-1, RANK_MAX), strict=True
    ):
        if tensor != "kernel" or opcode != ONE_OPERAND or (values >= 0).any():
            order = without_end(values.tolist(), -1)
            yield tensor, order or None


def tile_of(named: NamedGraph, config: int) -> dict[str, Order]:
    """Return the tile sizes of a config by field: kernel, output and input bounds.

    Tuning data may also hold iteration bounds, which models do not read; those are as in the run.
    """
    assert isinstance(named.graph, TileGraph)
    bounds = named.graph.config_feat[config].reshape(-1, VALUES_PER_BOUNDS)[:, :RANK_MAX]
    tile = {
        field: without_end([int(size) for size in sizes], 0)
        for field, sizes in zip(TILE_BOUNDS, bounds.tolist(), strict=True)
    }
    if named.program and named.run_numbers is not None:
        run = named.program.runs[int(named.run_numbers[config])]
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


def spelled(order: Order | None) -> str | None:
    """Return an order as XLA writes it: "{1,0}"; None stays None.

    >>> spelled((1, 0))
    '{1,0}'
    """
    return None if order is None else "{" + ",".join(map(str, order)) + "}"
