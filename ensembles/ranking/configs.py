"""The configs of a program to rank: the compiler's choice among them, and other ones.

c configs, k configurable nodes, u distinct layout vectors.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from data.graphs.graph import N_LAYOUT_VALUES, LayoutGraph
from data.graphs.node_columns import RANK_MAX
from data.graphs.packing import HIGHEST, LOWEST, ConfigEncoder, pack_values
from ensembles.ranking.layouts import TENSORS, without_end
from ensembles.ranking.program import NamedGraph
from features.padding import minor_to_major

# Number of configs that are unpacked at a time.
SPELLED_AT_ONCE = 256


def default_row(graph: LayoutGraph) -> int:
    """Return the row of the config that is nearest to the compiler's choice.

    First it maximises the number of output layouts that are open or equal to the compiler's. Then
    it maximises the number of open tensors. A config that leaves all tensors open always wins.
    """
    default = minor_to_major(graph.node_feat)[graph.node_config_ids]  # (k, 6)
    vectors = graph.configs.vectors.reshape(-1, 3, default.shape[1])  # (u, 3, 6)
    agrees = ((vectors[:, 0] < 0) | (vectors[:, 0] == default[:, None])).all(axis=2)  # (k, u)
    n_open = (vectors < 0).all(axis=2).sum(axis=1)  # (u,)
    nearness = agrees * (1 + vectors.shape[1] * len(default)) + n_open
    codebooks, total = graph.configs.codebooks, np.zeros(graph.n_configs)
    for of_node, column in zip(nearness, codebooks.column_of, strict=True):
        total += of_node[codebooks.vectors[column]].take(graph.configs.indices[:, column])
    return int(total.argmax())


def with_configs(program: NamedGraph, configs: NDArray[Any]) -> NamedGraph:
    """Return a program with other layout configs.

    Args:
        configs: Minor-to-major orders of output, input and kernel of each configurable node,
            (c, k, 18). Each order has six values from -1 to 5, and -1 is the compiler's choice.

    Raises:
        UsageError: The configs of the program are tiles.
    """
    graph, values = program.graph, np.asarray(configs)
    if not isinstance(graph, LayoutGraph):
        raise UsageError(f"{program.name}: its configs are tiles; expected a program of layouts")
    n_nodes, source = len(graph.node_config_ids), f"configs of {program.name}"
    if values.shape[1:] != (n_nodes, N_LAYOUT_VALUES) or not len(values):
        shape = f"(c, {n_nodes}, {N_LAYOUT_VALUES})"
        raise PipelineError(f"{source}: have shape {values.shape}; expected {shape}")
    wrong = np.argwhere((values != np.rint(values)) | (values < LOWEST) | (values > HIGHEST))
    if len(wrong):
        config, node, value = wrong[0].tolist()
        raise PipelineError(
            f"{source}: config {config}, node {node}, value {value} is "
            f"{values[config, node, value]}; expected a whole number from {LOWEST} to {HIGHEST}"
        )
    runtime_ns = np.zeros(len(values), np.int64)
    new_graph = replace(graph, configs=pack_values(values.astype(np.int8)), runtime_ns=runtime_ns)
    result = replace(program, graph=new_graph, run_numbers=None, has_configs=True)
    check_layout_configs(result, "configs")
    return result


def add_query_configs(graph: LayoutGraph, batches: Iterable[NDArray[np.int8]]) -> LayoutGraph:
    """Return a graph with batches of query configs, (r, k, 18) each, after its configs."""
    encoder = ConfigEncoder(len(graph.node_config_ids))
    for start in range(0, graph.n_configs, SPELLED_AT_ONCE):
        rows = np.arange(start, min(start + SPELLED_AT_ONCE, graph.n_configs))
        encoder.add(graph.configs.rows(rows).astype(np.float32).tobytes())
    for values in batches:
        encoder.add(np.ascontiguousarray(values, np.float32).tobytes())
    packed = encoder.packed()
    n_query_configs = packed.n_configs - graph.n_configs
    runtime_ns = np.pad(graph.runtime_ns, (0, n_query_configs))
    return replace(
        graph, configs=packed, runtime_ns=runtime_ns, rows=None, n_query_configs=n_query_configs
    )


def check_layout_configs(program: NamedGraph, source: str) -> None:
    """Check that layout configs order distinct dimensions of the program's tensors."""
    assert isinstance(program.graph, LayoutGraph)
    configs = program.graph.configs
    lists = configs.vectors.reshape(-1, len(TENSORS), RANK_MAX)  # (u, 3, 6)
    in_order = np.sort(lists, axis=2)
    repeats = ((in_order[..., 1:] == in_order[..., :-1]) & (in_order[..., 1:] >= 0)).any(axis=2)
    has_hole = np.asarray(((lists[..., 1:] >= 0) & (lists[..., :-1] < 0)).any(axis=2))  # (u, 3)
    highest = lists.max(axis=2)  # (u, 3)
    columns = configs.codebooks
    for place, (column, ranks) in enumerate(
        zip(columns.column_of.tolist(), program.tensor_ranks, strict=True)
    ):
        node_vectors = columns.vectors[column, : columns.sizes[column]]
        wrong = repeats[node_vectors] | has_hole[node_vectors] | (highest[node_vectors] >= ranks)
        if wrong.any():
            row, tensor = (int(i) for i in np.argwhere(wrong)[0])
            order, rank = lists[node_vectors[row], tensor].tolist(), int(ranks[tensor])
            node = int(program.graph.node_config_ids[place])
            name = f" '{program.instruction_names[node]}'" if program.instruction_names else ""
            raise PipelineError(
                f"{source}: {program.opcode(node)}{name} (node {node}): {TENSORS[tensor]} is given "
                f"the order {list(without_end(order, -1))}; expected distinct dimensions of "
                f"0..{rank - 1}{', or none' if rank else '; it has none'}: are these configs of "
                "another program?"
            )
