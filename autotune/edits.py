"""An HLO module with layout constraints and fusion barriers.

A layout is set by a custom call that returns its operand in a fixed layout. The compiler's layout
assignment obeys the constraint, and adds copies if neighbours have other layouts. Convolutions and
dots on a CPU are row-major, so the measured cost is the time of these copies. The default is nearly
always the best layout of a CPU.

XLA does not fuse over an optimisation barrier after an instruction. On a CPU it removes barriers
before it fuses, unless that pass is disabled. A program with a barrier after each instruction runs
unfused.
"""

from collections.abc import Mapping, Set
from itertools import count
from typing import Any

from data.hlo.descriptor import message_class
from data.hlo.layouts import Order

# Orders of output, input and kernel. An empty order leaves the layout to the compiler.
Orders = tuple[Order, Order, Order]

# A barrier after one of these changes nothing: they compute nothing, or are never fused.
NO_WORK = frozenset(
    {"parameter", "constant", "iota", "tuple", "get-tuple-element", "while", "opt-barrier"}
)
TARGET, API_VERSION_ORIGINAL = "LayoutConstraint", 1


def fusible(module: Any) -> list[Any]:
    """Return the entry's instructions that may have a barrier, in the module's order."""
    return _with_work(module, {module.entry_computation_id})


def fusible_in_bodies(module: Any) -> list[Any]:
    """Return the same instructions of bodies of loops and branches.

    Computations of reductions and sorts compute single numbers, so they have none.
    """
    computations = {computation.id: computation for computation in module.computations}
    reached = [module.entry_computation_id]
    for i in reached:
        for op in computations[i].instructions:
            # A loop calls its body first, and then its condition.
            n_called = {"while": 1, "conditional": None}.get(op.opcode, 0)
            reached += op.called_computation_ids[:n_called]
    return _with_work(module, {*reached[1:]})


def _with_work(module: Any, ids: Set[int]) -> list[Any]:
    by_computation = (c.instructions for c in module.computations if c.id in ids)
    return [op for ops in by_computation for op in ops if op.opcode not in NO_WORK]


def edited_module(module: Any, orders: Mapping[int, Orders], kept_apart: Set[int]) -> Any:
    """Return a copy of an HLO module with constraints and barriers.

    Args:
        orders: Major-to-minor orders of the tensors of instructions, by instruction ID.
    """
    copy = message_class("HloModuleProto")()
    copy.CopyFrom(module)
    for computation in copy.computations:
        if any(op.id in orders or op.id in kept_apart for op in computation.instructions):
            _edit(computation, orders, kept_apart)
    return copy


def _edit(computation: Any, orders: Mapping[int, Orders], kept_apart: Set[int]) -> None:
    shapes = {op.id: op.shape for op in computation.instructions}
    new_ids = count(max(shapes) + 1)
    # The instruction that the users of an instruction read, by ID.
    replacement = {i: i for i in shapes}
    instructions: list[Any] = []

    def append(opcode: str, operand: int, shape: Any, **fields: Any) -> Any:
        new_id = next(new_ids)
        instruction = message_class("HloInstructionProto")(
            name=f"added.{new_id}", opcode=opcode, id=new_id, operand_ids=[operand], **fields
        )
        instruction.shape.CopyFrom(shape)
        instructions.append(instruction)
        return instruction

    def constrain(operand: int, shape: Any, order: Order) -> int:
        fields = {"custom_call_target": TARGET, "custom_call_api_version": API_VERSION_ORIGINAL}
        call = append("custom-call", operand, shape, constrain_layout=True, **fields)
        call.shape.layout.minor_to_major[:] = order[::-1]
        call.operand_shapes_with_layout.add().CopyFrom(call.shape)
        return int(call.id)

    for op in computation.instructions:
        output, *of_operands = orders.get(op.id, ((), (), ()))
        operands = [replacement[i] for i in op.operand_ids]
        for slot, order in enumerate(of_operands[: len(operands)]):
            if order:
                shape = shapes[op.operand_ids[slot]]
                operands[slot] = constrain(operands[slot], shape, order)
        op.operand_ids[:] = operands
        instructions.append(op)
        if op.id in kept_apart:
            replacement[op.id] = append("opt-barrier", op.id, op.shape).id
        if output:
            replacement[op.id] = constrain(replacement[op.id], op.shape, output)
    computation.root_id = replacement[computation.root_id]
    copies = [type(op).FromString(op.SerializeToString()) for op in instructions]
    del computation.instructions[:]
    computation.instructions.extend(copies)
