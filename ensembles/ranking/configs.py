"""Configs of a program: what one says in the compiler's words, and those that come from elsewhere.

Minor-to-major lists by instruction, or tile sizes; and configs of an array, checked to fit their
program. c configs, k configurable nodes, u distinct layout vectors.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES, LayoutGraph, TileGraph
from data.graphs.node_columns import RANK_MAX
from data.packing import HIGHEST, LOWEST, ConfigEncoder, pack_values
from ensembles.ranking.program import NamedGraph

COMPILERS_CHOICE = "compiler's choice"
ONE_OPERAND = "reshape"  # of the operations that can be configured, the one without a kernel
TENSORS = ("output", "input", "kernel")
TILE_BOUNDS = ("kernel_bounds", "output_bounds", "input_bounds")
VALUES_PER_BOUNDS = 8  # six sizes, their sum and their product
SPELLED_AT_ONCE = 256  # configs

Order = tuple[int, ...]


@dataclass(frozen=True)
class NodeLayouts:
    """The layouts that a config gives to the tensors of one instruction.

    Attributes:
        name: the instruction's; None where the file has no names.
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
            opcode := named.opcode(node),
            {
                tensor: without_end(values.tolist(), -1) or None
                for tensor, values in zip(TENSORS, row.reshape(-1, RANK_MAX), strict=True)
                if tensor != "kernel" or opcode != ONE_OPERAND or values[0] >= 0
            },
        )
        for node, row in zip(named.graph.node_config_ids.tolist(), rows, strict=True)
    )


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


def change_of(before: NodeLayouts, after: NodeLayouts) -> str:
    """Say what differs in a node, such as "output {1,0} → {0,1}"; - = the compiler's choice."""
    old, new = before.tensors, after.tensors
    return ", ".join(
        f"{tensor} {spelled(old.get(tensor)) or '-'} → {spelled(new.get(tensor)) or '-'}"
        for tensor in TENSORS
        if old.get(tensor) != new.get(tensor)
    )


def with_configs(named: NamedGraph, configs: NDArray[Any]) -> NamedGraph:
    """Return a program with other configs.

    Args:
        configs: of layouts (c, k, 18), minor-to-major orders of output, input and kernel of each
            of the program's configurable nodes, six values -1..5 each, -1 = left to the compiler;
            of tiles (c, 24), kernel, output and input bounds, each 6 sizes, sum, product.

    Raises:
        PipelineError: another shape, no config, or a value that is illegal in this program.
    """
    graph, values = named.graph, np.asarray(configs)
    of_tiles = isinstance(graph, TileGraph)
    axes = {"value": N_TILE_VALUES}
    if isinstance(graph, LayoutGraph):
        axes = {"node": len(graph.node_config_ids), "value": N_LAYOUT_VALUES}
    lowest, highest = (0, np.inf) if of_tiles else (LOWEST, HIGHEST)
    if values.shape[1:] != (*axes.values(),) or not len(values):
        expected = ", ".join(map(str, axes.values()))
        raise PipelineError(
            f"configs of {named.name}: have shape {values.shape}; expected (c, {expected})"
        )
    is_whole = np.isfinite(values) & (values == np.rint(values))
    wrong = np.argwhere(~is_whole | (values < lowest) | (values > highest))
    if len(wrong):
        where = ", ".join(f"{n} {i}" for n, i in zip(("config", *axes), wrong[0], strict=True))
        raise PipelineError(
            f"configs of {named.name}: {where} is {values[tuple(wrong[0])]}; expected a whole "
            f"number from {lowest}{'' if of_tiles else f' to {highest}'}"
        )
    changes: dict[str, Any] = {"runtime_ns": np.zeros(len(values), np.int64)}
    if of_tiles:
        changes["config_feat"] = np.ascontiguousarray(values, np.float32)
        changes["runtime_normalizers"] = np.ones(len(values), np.int64)
    else:
        changes["configs"] = pack_values(values.astype(np.int8))
    given = replace(named, graph=replace(graph, **changes), run_numbers=None)
    if not of_tiles:
        check_layouts(given, "configs")
    return given


def with_guests(graph: LayoutGraph, guests: Iterable[NDArray[np.int8]]) -> LayoutGraph:
    """Return a graph with further configs behind its own, which do not count among them.

    Args:
        guests: some configs (r, k, 18) at a time, legal in this program.
    """
    encoder = ConfigEncoder(len(graph.node_config_ids))
    for start in range(0, graph.n_configs, SPELLED_AT_ONCE):
        rows = np.arange(start, min(start + SPELLED_AT_ONCE, graph.n_configs))
        encoder.add(graph.configs.rows(rows).astype(np.float32).tobytes())
    for values in guests:
        encoder.add(np.ascontiguousarray(values, np.float32).tobytes())
    packed = encoder.packed()
    n_guests = packed.n_configs - graph.n_configs
    runtime_ns = np.pad(graph.runtime_ns, (0, n_guests))
    return replace(graph, configs=packed, runtime_ns=runtime_ns, rows=None, n_guests=n_guests)


def check_layouts(named: NamedGraph, source: str) -> None:
    """Refuse layout configs that do not order distinct dimensions of the program's tensors.

    Args:
        source: where the configs are from, for the message, which names the first such node.
    """
    assert isinstance(named.graph, LayoutGraph)
    configs = named.graph.configs
    lists = configs.vectors.reshape(-1, len(TENSORS), RANK_MAX)  # (u, 3, 6)
    ordered = np.sort(lists, axis=2)
    repeats = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(axis=2)
    has_hole = np.asarray(((lists[..., 1:] >= 0) & (lists[..., :-1] < 0)).any(axis=2))  # (u, 3)
    highest = lists.max(axis=2)  # (u, 3)
    columns = configs.alphabets
    for place, (column, ranks) in enumerate(
        zip(columns.column_of.tolist(), named.tensor_ranks, strict=True)
    ):
        taken = columns.vectors[column, : columns.sizes[column]]
        wrong = repeats[taken] | has_hole[taken] | (highest[taken] >= ranks)
        if wrong.any():
            which, tensor = (int(i) for i in np.argwhere(wrong)[0])
            order, rank = lists[taken[which], tensor].tolist(), int(ranks[tensor])
            node = int(named.graph.node_config_ids[place])
            name = f" '{named.instruction_names[node]}'" if named.instruction_names else ""
            raise PipelineError(
                f"{source}: {named.opcode(node)}{name} (node {node}): {TENSORS[tensor]} is given "
                f"the order {list(without_end(order, -1))}; expected distinct dimensions of "
                f"0..{rank - 1}{', or none' if rank else '; it has none'}: are these configs of "
                "another program?"
            )
