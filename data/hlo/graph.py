"""From an HLO module to the arrays of a graph: nodes, edges and computation boundaries."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.node_columns import MINOR_TO_MAJOR, OPCODES, RANK_MAX, UNKNOWN_OPCODE
from data.graphs.node_layouts import Padding
from data.hlo.descriptor import message_class
from data.hlo.node_features import node_features
from data.npz.read import shown

# In the dataset a boundary follows each computation that is named like one of these, and the last.
SPLIT_NAMES = ("cluster", "while", "cond")


@dataclass(frozen=True)
class HloGraph:
    """One HLO module as the dataset stores it.

    Nodes are the instructions: computations in the module's order, instructions in theirs.
    """

    name: str
    node_feat: NDArray[np.float32]  # (n, 140)
    node_opcode: NDArray[np.uint8]  # (n,) 0 for operations unknown to the dataset
    # (e, 2) sorted, each once; a row [u, v] means that u consumes v: v is an operand of u, or the
    # root of a computation that u calls. u > v.
    edge_index: NDArray[np.int64]
    node_splits: NDArray[np.int64]  # (1, s) boundaries of the module's major computations
    instruction_names: tuple[str, ...]  # n names, unique in modules that XLA wrote

    @property
    def n_nodes(self) -> int:
        return len(self.node_opcode)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the dataset's files that no config changes, by key."""
        keys = ("node_feat", "node_opcode", "edge_index", "node_splits")
        return {key: getattr(self, key) for key in keys}


def featurize_module(
    module: Any, *, padding: Padding = "zero", source: str | None = None
) -> HloGraph:
    """Turn an HLO module into a graph.

    Args:
        module: a HloModuleProto: the message class of this package, or of any other that can
            be serialised, or the serialised bytes.

    Raises:
        PipelineError: the bytes are no HLO module, or its parts do not fit each other.
    """
    module = _own_message(module, source)
    source = source or f"HLO module '{shown(module.name)}'"
    instructions = [i for computation in module.computations for i in computation.instructions]
    if not instructions:
        raise PipelineError(f"{source}: the module has no instruction; expected at least one")
    positions = _positions(instructions, source)
    roots = _roots(module, positions, source)
    _check_instructions(instructions, source)
    sizes = [len(computation.instructions) for computation in module.computations]
    ends = np.cumsum(sizes, dtype=np.int64)
    return HloGraph(
        name=module.name,
        node_feat=node_features(instructions, roots.values(), padding=padding),
        node_opcode=np.array(
            [OPCODES.get(i.opcode, UNKNOWN_OPCODE) for i in instructions], dtype=np.uint8
        ),
        edge_index=_edges(instructions, positions, roots, source),
        node_splits=_node_splits([c.name for c in module.computations], ends),
        instruction_names=tuple(i.name for i in instructions),
    )


def check_layouts(graph: HloGraph, source: str) -> None:
    """Check that layouts use no dimension number beyond those of the dataset's format.

    Raises:
        PipelineError: a tensor has more dimensions; the line names the instruction.
    """
    deepest = graph.node_feat[:, MINOR_TO_MAJOR].max(axis=1)
    if deepest.max() >= RANK_MAX:
        name = graph.instruction_names[int(np.argmax(deepest))]
        raise PipelineError(
            f"{source}: instruction '{shown(name)}' has more than {RANK_MAX} dimensions; "
            "the dataset's format has no room for their layout"
        )


def _own_message(module: Any, source: str | None) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    own = message_class("HloModuleProto")
    if isinstance(module, own):
        return module
    content = module if isinstance(module, bytes) else module.SerializeToString()
    try:
        return own.FromString(content)
    except DecodeError as error:
        raise PipelineError(
            f"{source or 'HLO module'}: is not a serialised HloModuleProto, or is cut short"
        ) from error


def _positions(instructions: list[Any], source: str) -> dict[int, int]:
    positions = {instruction.id: node for node, instruction in enumerate(instructions)}
    if len(positions) < len(instructions):
        twice = next(i for node, i in enumerate(instructions) if positions[i.id] != node)
        raise PipelineError(
            f"{source}: instruction id {twice.id} occurs twice; expected each once in the module"
        )
    return positions


def _roots(module: Any, positions: dict[int, int], source: str) -> dict[int, int]:
    roots: dict[int, int] = {}
    start = 0
    for computation in module.computations:
        end = start + len(computation.instructions)
        root = positions.get(computation.root_id, -1)
        if computation.id in roots or not start <= root < end:
            raise PipelineError(
                f"{source}: computation '{shown(computation.name)}': its id {computation.id} is "
                f"taken or its root {computation.root_id} is not in it; is the file damaged?"
            )
        roots[computation.id] = root
        start = end
    return roots


def _edges(
    instructions: list[Any], positions: dict[int, int], roots: dict[int, int], source: str
) -> NDArray[np.int64]:
    """Return (e, 2) int64 rows [consumer, producer], sorted, each once."""
    pairs = set()
    for node, instruction in enumerate(instructions):
        for kind, keys, places in (
            ("operand", instruction.operand_ids, positions),
            ("called computation", instruction.called_computation_ids, roots),
        ):
            for key in keys:
                producer = places.get(key, node)
                if producer >= node:
                    raise PipelineError(
                        f"{source}: instruction '{shown(instruction.name)}': {kind} {key} is not "
                        "among what comes before it; expected callees and operands first"
                    )
                pairs.add((node, producer))
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _node_splits(names: list[str], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    major = [any(part in name for part in SPLIT_NAMES) for name in names]
    bounds = [0, *ends[major].tolist()]
    if bounds[-1] < ends[-1]:
        bounds.append(int(ends[-1]))
    return np.array([bounds], dtype=np.int64)


def _check_instructions(instructions: list[Any], source: str) -> None:
    for instruction in instructions:
        rank = len(instruction.shape.dimensions)
        order = instruction.shape.layout.minor_to_major
        if not instruction.opcode or (len(order) and sorted(order) != list(range(rank))):
            problem = f"layout {list(order)[:8]} of a tensor of {rank} dimensions"
            raise PipelineError(
                f"{source}: instruction '{shown(instruction.name)}': "
                f"{problem if instruction.opcode else 'no operation'}; is the file damaged?"
            )
