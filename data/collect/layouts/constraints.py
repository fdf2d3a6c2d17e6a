"""Realise layout configs by constraints written into the HLO module, on any device.

A constraint is a custom call that hands its operand on in a given layout; the compiler's layout
assignment obeys it and inserts copies where neighbours disagree. On CPU, whose convolutions and
dots are row-major, the cost that is measured is that of those copies; the compiler's own choice is
nearly always the best there.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.collect.layouts.executable import Executable, why_unavailable
from data.collect.layouts.module import DumpedModule, configurable_nodes, dump_module
from data.collect.layouts.module_program import ModuleProgram
from data.collect.layouts.options import Order, read_row
from data.collect.layouts.realise import LayoutProgram, ProgramSource
from data.collect.layouts.traced import load_traced
from data.hlo.descriptor import message_class

TARGET = "LayoutConstraint"
API_VERSION_ORIGINAL = 1


def load_constrained(source: ProgramSource) -> LayoutProgram:
    """Compile a program once and open its layouts to constraints.

    Where this jaxlib cannot compile edited modules, constraints are put in with JAX's public
    means, for as many nodes as can be told apart that way.

    Raises:
        PipelineError: it cannot be compiled, or has no configurable node.
    """
    if why_unavailable() is not None:
        return load_traced(source)
    dumped = dump_module(source)
    nodes = configurable_nodes(dumped.message)
    return ModuleProgram(source, dumped, nodes, partial(_constrained, dumped))


def _constrained(dumped: DumpedModule, config: NDArray[np.int8]) -> Executable:
    return Executable(dumped.name, constrained_module(dumped, config), dumped.arguments)


def constrained_module(dumped: DumpedModule, config: NDArray[np.int8]) -> Any:
    """Return a copy of the module with the constraints of `config` (k, 18)."""
    module = dumped.copy()
    nodes = configurable_nodes(dumped.message)
    orders = {
        node.instruction.id: read_row(row)
        for node, row in zip(nodes, config, strict=True)
        if (row >= 0).any()
    }
    for computation in module.computations:
        if any(instruction.id in orders for instruction in computation.instructions):
            _constrain(computation, orders)
    return module


def _constrain(computation: Any, orders: dict[int, tuple[Order, Order, Order]]) -> None:
    """Insert the constraints of one computation, each beside the instruction that it is about."""
    next_id = max(instruction.id for instruction in computation.instructions) + 1
    shapes = {instruction.id: instruction.shape for instruction in computation.instructions}
    renamed: dict[int, int] = {}
    edited: list[Any] = []
    for instruction in computation.instructions:
        operands = [renamed.get(i, i) for i in instruction.operand_ids]
        output, *of_operands = orders.get(instruction.id, ((), (), ()))
        for slot, order in enumerate(of_operands[: len(operands)]):
            if order:
                shape = shapes[instruction.operand_ids[slot]]
                edited.append(_constraint(next_id, operands[slot], shape, order))
                operands[slot] = next_id
                next_id += 1
        del instruction.operand_ids[:]
        instruction.operand_ids.extend(operands)
        edited.append(instruction)
        if output:
            edited.append(_constraint(next_id, instruction.id, instruction.shape, output))
            renamed[instruction.id] = next_id
            next_id += 1
    computation.root_id = renamed.get(computation.root_id, computation.root_id)
    _replace_instructions(computation, edited)


def _constraint(new_id: int, operand: int, shape: Any, order: Sequence[int]) -> Any:
    """Return a custom call that hands `operand` on, laid out in `order` (major to minor)."""
    call = message_class("HloInstructionProto")(
        name=f"layout_constraint.{new_id}",
        opcode="custom-call",
        id=new_id,
        operand_ids=[operand],
        custom_call_target=TARGET,
        custom_call_api_version=API_VERSION_ORIGINAL,
        constrain_layout=True,
    )
    call.shape.CopyFrom(shape)
    call.shape.layout.minor_to_major[:] = list(reversed(order))
    call.operand_shapes_with_layout.add().CopyFrom(call.shape)
    return call


def _replace_instructions(computation: Any, edited: Sequence[Any]) -> None:
    """Put `edited` in the place of the computation's instructions."""
    kept = [message_class("HloInstructionProto").FromString(i.SerializeToString()) for i in edited]
    del computation.instructions[:]
    computation.instructions.extend(kept)
