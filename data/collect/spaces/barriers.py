"""Fusion as decisions: which results are kept apart from what uses them; g genes, one per node.

A gene of 1 puts an optimisation barrier behind an instruction, over which nothing is fused. XLA on
a CPU dissolves barriers before it fuses, unless that pass is disabled; with all genes at 1 the
program runs unfused, with all at 0 as the compiler fuses it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.collect.spaces.options import DISABLED
from data.hlo.descriptor import message_class

KEEP_BARRIERS = {DISABLED: "cse_barrier_expander"}
# Nothing is gained by keeping these apart: they are no work, or never fused.
NO_WORK = frozenset(
    {"parameter", "constant", "iota", "tuple", "get-tuple-element", "while", "opt-barrier"}
)


def fusible(module: Any) -> list[Any]:
    """Return the instructions of the entry that may be kept apart, in the module's order."""
    return [given for given in _entry(module).instructions if given.opcode not in NO_WORK]


def fusible_groups(module: Any) -> NDArray[np.int64]:
    """Return a number per fusible instruction, (g,): those of one opcode and shape share theirs."""
    kinds = [(given.opcode, tuple(given.shape.dimensions)) for given in fusible(module)]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return np.array([numbers[kind] for kind in kinds], np.int64)


def with_barriers(module: Any, kept_apart: frozenset[int]) -> Any:
    """Return a copy of an HLO module with barriers behind the entry's instructions of these IDs."""
    edited = message_class("HloModuleProto")()
    edited.CopyFrom(module)
    entry = _entry(edited)
    next_id = max(given.id for given in entry.instructions) + 1
    renamed: dict[int, int] = {}
    instructions: list[Any] = []
    for given in entry.instructions:
        given.operand_ids[:] = [renamed.get(i, i) for i in given.operand_ids]
        instructions.append(given)
        if given.id in kept_apart:
            barrier = message_class("HloInstructionProto")(
                name=f"keep_apart.{next_id}",
                opcode="opt-barrier",
                id=next_id,
                operand_ids=[given.id],
            )
            barrier.shape.CopyFrom(given.shape)
            instructions.append(barrier)
            renamed[given.id] = next_id
            next_id += 1
    entry.root_id = renamed.get(entry.root_id, entry.root_id)
    kept = [type(given).FromString(given.SerializeToString()) for given in instructions]
    del entry.instructions[:]
    entry.instructions.extend(kept)
    return edited


def _entry(module: Any) -> Any:
    return next(c for c in module.computations if c.id == module.entry_computation_id)
