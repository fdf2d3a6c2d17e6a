"""Configs that come apart from their program: from a file or an array, checked to fit it.

c configs, k configurable nodes, u distinct layout vectors.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.checks import HIGHEST, LOWEST
from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES, Graph, LayoutGraph, TileGraph
from data.graphs.node_columns import MINOR_TO_MAJOR, RANK_MAX
from data.npz.read import Archive
from data.packing.config_encoder import pack_values
from data.packing.configs import PackedConfigs
from data.packing.npz_graphs import encode_configs
from ensembles.ranking.layouts import TENSORS, without_end
from ensembles.ranking.program import NamedGraph

REAL_KINDS = "iuf"
SAME_PROGRAM = ("node_opcode", "edge_index", "node_feat")


def with_configs(named: NamedGraph, configs: NDArray[Any]) -> NamedGraph:
    """Return a program with other configs.

    Args:
        configs: of layouts (c, k, 18), minor-to-major orders of output, input and kernel of each
            of the program's configurable nodes, six values -1..5 each, -1 = left to the compiler;
            of tiles (c, 24), kernel, output and input bounds, each 6 sizes, sum, product.

    Raises:
        PipelineError: another shape, no config, or a value that is no layout or tile of this
            program.
    """
    values = _numbers(configs, named)
    if isinstance(named.graph, TileGraph):
        return named.holding(_tiles(named.graph, values, "configs"))
    assert isinstance(named.graph, LayoutGraph)
    wanted = (len(named.graph.node_config_ids), N_LAYOUT_VALUES)
    if values.ndim != 3 or values.shape[1:] != wanted or not len(values):
        raise PipelineError(
            f"configs of {named.name}: have shape {values.shape}; expected (c, {wanted[0]}, "
            f"{wanted[1]}), the values of {wanted[0]} configurable nodes in c configs"
        )
    in_range = (values >= LOWEST) & (values <= HIGHEST) & (values == np.rint(values))
    if not in_range.all():
        config, node, place = (int(i) for i in np.argwhere(~in_range)[0])
        raise PipelineError(
            f"configs of {named.name}: config {config}, node {node}, value {place} is "
            f"{values[config, node, place]}; expected a whole number {LOWEST}..{HIGHEST}"
        )
    return _with_layouts(named, pack_values(values.astype(np.int8)), "configs")


def _numbers(configs: object, named: NamedGraph) -> NDArray[Any]:
    """Return an array of real numbers."""
    try:
        values = np.asarray(configs)
    except ValueError as error:  # lists of different lengths
        raise PipelineError(f"configs of {named.name}: no array: {error}") from error
    if values.dtype.kind not in REAL_KINDS:
        raise PipelineError(
            f"configs of {named.name}: have dtype {values.dtype}; expected integers or floats"
        )
    return values


def read_configs(named: NamedGraph, path: Path) -> NamedGraph:
    """Return a program with the configs of an npz file.

    Args:
        path: a graph's npz of the same program, or an npz of its config arrays alone:
            `node_config_feat`, and `node_config_ids` if they are not those of the program's own
            configs; for tiles `config_feat`.

    Raises:
        PipelineError: the file is damaged, or its configs are of another program or kind.
    """
    with Archive(path) as archive:
        _check_same_program(archive, named)
        if isinstance(named.graph, TileGraph):
            wanted = (None, N_TILE_VALUES)
            values = archive.array("config_feat", dtype=np.float32, shape=wanted)
            return named.holding(_tiles(named.graph, values, str(path)))
        named = _with_ids(archive, named)
        assert isinstance(named.graph, LayoutGraph)
        n_nodes = len(named.graph.node_config_ids)
        return _with_layouts(named, encode_configs(archive, None, n_nodes), str(path))


def _check_same_program(archive: Archive, named: NamedGraph) -> None:
    """Refuse configs whose file holds another program's nodes or edges, if it holds any."""
    graph = named.graph
    for key in SAME_PROGRAM:
        if key in archive.keys:
            own: NDArray[Any] = getattr(graph, key)
            shape = (None, *own.shape[1:])
            given = archive.array(key, dtype=own.dtype.type, shape=shape)
            if key == "node_feat":  # whose layouts may be padded otherwise
                own, given = own[:, : MINOR_TO_MAJOR.start], given[:, : MINOR_TO_MAJOR.start]
            if not np.array_equal(own, given):
                archive.fail(
                    key,
                    f"differs from that of {named.path}; expected configs of the same program",
                )


def _with_ids(archive: Archive, named: NamedGraph) -> NamedGraph:
    """Take the file's configurable nodes, where it names them."""
    assert isinstance(named.graph, LayoutGraph)
    key = "node_config_ids"
    if key not in archive.keys:
        return named
    ids = archive.array(key, dtype=np.int64, shape=(None,))
    own = named.graph.node_config_ids
    if np.array_equal(ids, own):
        return named
    has_own_configs = named.program is None or named.program.configs is not None
    n_nodes = named.graph.n_nodes
    if has_own_configs or not _are_places(ids, n_nodes):
        archive.fail(
            key,
            f"names {len(ids)} nodes, {ids[:4].tolist()}…; expected "
            + (f"the {len(own)} of {named.path}" if has_own_configs else f"some of {n_nodes}")
            + ", each once",
        )
    left_open = np.full((1, len(ids), N_LAYOUT_VALUES), -1, np.int8)
    graph = replace(named.graph, node_config_ids=ids, configs=pack_values(left_open))
    return named.holding(graph)


def _are_places(ids: NDArray[np.int64], n_nodes: int) -> bool:
    inside = len(ids) and ids.min() >= 0 and ids.max() < n_nodes
    return bool(inside and len(np.unique(ids)) == len(ids))


def _tiles(graph: TileGraph, values: NDArray[Any], source: str) -> Graph:
    """Return a kernel with other tile configs (c, 24)."""
    if values.ndim != 2 or values.shape[1] != N_TILE_VALUES or not len(values):
        raise PipelineError(
            f"{source}: tile configs have shape {values.shape}; expected (c, {N_TILE_VALUES})"
        )
    is_size = np.isfinite(values) & (values >= 0) & (values == np.floor(values))
    if not is_size.all():
        row, place = (int(i) for i in np.argwhere(~is_size)[0])
        raise PipelineError(
            f"{source}: config {row}, value {place} is {values[row, place]}; expected whole sizes "
            "from 0"
        )
    unknown = np.zeros(len(values), np.int64)
    return replace(
        graph,
        config_feat=np.ascontiguousarray(values, np.float32),
        runtime_ns=unknown,
        runtime_normalizers=np.ones_like(unknown),
    )


def _with_layouts(named: NamedGraph, configs: PackedConfigs, source: str) -> NamedGraph:
    """Return a program with other layout configs, each of which orders dimensions that exist."""
    assert isinstance(named.graph, LayoutGraph)
    unknown = np.zeros(configs.n_configs, np.int64)
    given = named.holding(replace(named.graph, configs=configs, runtime_ns=unknown))
    check_layouts(given, source)
    return given


def check_layouts(named: NamedGraph, source: str) -> None:
    """Check that a program's layout configs order distinct dimensions of its tensors.

    Args:
        source: where the configs are from, for the message.

    Raises:
        PipelineError: names the first node that has none such.
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
            _refuse(named, source, place, tensor, lists[taken[which], tensor])


def _refuse(
    named: NamedGraph, source: str, place: int, tensor: int, order: NDArray[np.int8]
) -> NoReturn:
    assert isinstance(named.graph, LayoutGraph)
    node = int(named.graph.node_config_ids[place])
    name = f" '{named.instruction_names[node]}'" if named.instruction_names else ""
    rank = int(named.tensor_ranks[place, tensor])
    raise PipelineError(
        f"{source}: {named.opcode(node)}{name} (node {node}): {TENSORS[tensor]} is given the order "
        f"{list(without_end(order.tolist(), -1))}; expected distinct dimensions of 0..{rank - 1}"
        + (", or none" if rank else "; it has none")
        + ": are these configs of another program?"
    )
