"""HLO modules edited by hand: layouts that are asked for, and results that are kept apart.

A layout is set by a constraint: a custom call that hands its operand on in a given layout, which
the compiler's layout assignment obeys, with copies where neighbours disagree. On a CPU, whose
convolutions and dots are row-major, the cost that is measured is that of those copies; the
compiler's own choice is nearly always the best there.

Over an optimisation barrier behind an instruction nothing is fused. XLA on a CPU dissolves barriers
before it fuses, unless that pass is disabled; with one behind each instruction the program runs
unfused.
"""

from collections.abc import Mapping, Set
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.collect.layouts import Order, numbered
from data.collect.spaces.options import DISABLED
from data.hlo.descriptor import message_class

Orders = tuple[Order, Order, Order]  # of output, input and kernel; empty = left to the compiler

KEEP_BARRIERS = {DISABLED: "cse_barrier_expander"}
# Nothing is gained by keeping these apart: they are no work, or never fused.
NO_WORK = frozenset(
    {"parameter", "constant", "iota", "tuple", "get-tuple-element", "while", "opt-barrier"}
)
TARGET, API_VERSION_ORIGINAL = "LayoutConstraint", 1


def fusible(module: Any) -> list[Any]:
    """Return the instructions of the entry that may be kept apart, in the module's order."""
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    return [given for given in entry.instructions if given.opcode not in NO_WORK]


def fusible_groups(module: Any) -> NDArray[np.int64]:
    """Return a number per fusible instruction, (g,): those of one opcode and shape share theirs."""
    return numbered([(given.opcode, *given.shape.dimensions) for given in fusible(module)])


def edited_module(module: Any, orders: Mapping[int, Orders], kept_apart: Set[int]) -> Any:
    """Return a copy of an HLO module with constraints and barriers.

    Args:
        orders: major-to-minor orders of the tensors of some instructions, by their IDs.
        kept_apart: IDs of the instructions that get a barrier behind them.
    """
    edited = message_class("HloModuleProto")()
    edited.CopyFrom(module)
    for computation in edited.computations:
        if any(given.id in orders or given.id in kept_apart for given in computation.instructions):
            _edit(computation, orders, kept_apart)
    return edited


def _edit(computation: Any, orders: Mapping[int, Orders], kept_apart: Set[int]) -> None:
    shapes = {given.id: given.shape for given in computation.instructions}
    new_ids = count(max(shapes) + 1)
    stands_for = {given_id: given_id for given_id in shapes}  # what its users read by now
    instructions: list[Any] = []

    def append(opcode: str, operand: int, shape: Any, **fields: Any) -> Any:
        new_id = next(new_ids)
        added = message_class("HloInstructionProto")(
            name=f"added.{new_id}", opcode=opcode, id=new_id, operand_ids=[operand], **fields
        )
        added.shape.CopyFrom(shape)
        instructions.append(added)
        return added

    def constrain(operand: int, shape: Any, order: Order) -> int:
        fields = {"custom_call_target": TARGET, "custom_call_api_version": API_VERSION_ORIGINAL}
        call = append("custom-call", operand, shape, constrain_layout=True, **fields)
        call.shape.layout.minor_to_major[:] = order[::-1]
        call.operand_shapes_with_layout.add().CopyFrom(call.shape)
        return int(call.id)

    for given in computation.instructions:
        output, *of_operands = orders.get(given.id, ((), (), ()))
        operands = [stands_for[i] for i in given.operand_ids]
        for slot, order in enumerate(of_operands[: len(operands)]):
            if order:
                shape = shapes[given.operand_ids[slot]]
                operands[slot] = constrain(operands[slot], shape, order)
        given.operand_ids[:] = operands
        instructions.append(given)
        if given.id in kept_apart:
            stands_for[given.id] = append("opt-barrier", given.id, given.shape).id
        if output:
            stands_for[given.id] = constrain(stands_for[given.id], given.shape, output)
    computation.root_id = stands_for[computation.root_id]
    kept = [type(given).FromString(given.SerializeToString()) for given in instructions]
    del computation.instructions[:]
    computation.instructions.extend(kept)
