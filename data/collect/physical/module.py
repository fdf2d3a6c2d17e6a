"""Realise layout configs by storing every value in the chosen physical order, on any device.

The module before layout assignment is rewritten: dots and convolutions get permuted dimension
numbers, what is elementwise follows its operand, and a transpose stands only where a producer's
and a consumer's order differ. So a config runs really different kernels, on any device. Node
positions stay those of the module that was rewritten.

A parameter lies in the order that its first configurable user asks for, and an output lies as it
comes; both are turned outside of what is timed. What crosses a loop is row-major.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.collect.layouts.executable import Executable
from data.collect.layouts.module import DumpedModule, configurable_nodes, dump_module
from data.collect.layouts.module_program import ModuleProgram
from data.collect.layouts.options import Order, read_row
from data.collect.layouts.realise import LayoutProgram, ProgramSource
from data.collect.physical.rewriter import (
    Orders,
    Rewriter,
    rank_of,
    row_major,
    set_physical_shape,
)
from data.collect.physical.rules import rewrite


@dataclass(frozen=True)
class PhysicalModule:
    """A rewritten module, and how its parameters and flat outputs lie."""

    message: Any
    parameters: list[Order]
    outputs: list[Order]


def load_physical(source: ProgramSource) -> LayoutProgram:
    """Compile a program once and open its layouts to physical orders.

    Raises:
        PipelineError: it cannot be compiled, or has no configurable node.
    """
    dumped = dump_module(source)
    nodes = configurable_nodes(dumped.message)
    return ModuleProgram(source, dumped, nodes, partial(_stored, dumped))


def _stored(dumped: DumpedModule, config: NDArray[np.int8]) -> tuple[Executable, list[Order]]:
    module = physical_module(dumped, config)
    arguments = [
        array if order == row_major(len(order)) else array.transpose(order)
        for array, order in zip(dumped.arguments, module.parameters, strict=True)
    ]
    return Executable(dumped.name, module.message, arguments), module.outputs


def physical_module(dumped: DumpedModule, config: NDArray[np.int8]) -> PhysicalModule:
    """Return the module rewritten under `config` (k, 18); the default leaves it as it is."""
    module = dumped.copy()
    nodes = configurable_nodes(dumped.message)
    choices: dict[int, Orders] = {
        node.instruction.id: read_row(row) for node, row in zip(nodes, config, strict=True)
    }
    parameters = [row_major(np.ndim(array)) for array in dumped.arguments]
    outputs: list[Order] = []
    for computation in module.computations:
        is_entry = computation.id == module.entry_computation_id
        if not is_entry and not any(i.id in choices for i in computation.instructions):
            continue
        rewriter = _rewriter(computation, choices)
        if is_entry:
            _choose_parameter_orders(rewriter, parameters)
        _rewrite_computation(computation, rewriter, outputs if is_entry else None)
        if is_entry:
            _describe_interface(module, computation)
    return PhysicalModule(module, parameters, outputs)


def _rewriter(computation: Any, choices: dict[int, Orders]) -> Rewriter:
    logical = {}
    for instruction in computation.instructions:
        logical[instruction.id] = type(instruction)()
        logical[instruction.id].CopyFrom(instruction)
    return Rewriter(logical, choices, next_id=max(logical) + 1)


def _choose_parameter_orders(rewriter: Rewriter, parameters: list[Order]) -> None:
    """Lay each entry parameter as the first configurable node that reads it asks for."""
    chosen: dict[int, Order] = {}
    for instruction in rewriter.instructions.values():
        _, *orders = rewriter.chosen(instruction)
        for value, order in zip(instruction.operand_ids, orders, strict=False):
            if order and rewriter.instructions[value].opcode == "parameter":
                chosen.setdefault(value, order)
    for value, order in chosen.items():
        parameters[rewriter.instructions[value].parameter_number] = order
    for instruction in rewriter.instructions.values():
        if instruction.opcode == "parameter":
            order = parameters[instruction.parameter_number]
            rewriter.store(instruction, order, rewriter.emit(instruction, [], order))


def _rewrite_computation(computation: Any, rewriter: Rewriter, outputs: list[Order] | None) -> None:
    """Replace the computation's instructions; an entry's outputs may lie in any order."""
    root = rewriter.instructions[computation.root_id]
    for instruction in rewriter.instructions.values():
        if instruction.id == computation.root_id and outputs is not None:
            continue
        if instruction.id not in rewriter.stored:
            rewrite(rewriter, instruction)
    if outputs is None:
        computation.root_id = rewriter.need_row_major(computation.root_id)
    else:
        computation.root_id = _rewrite_entry_root(rewriter, root, outputs)
    del computation.instructions[:]
    computation.instructions.extend(rewriter.emitted)


def _rewrite_entry_root(rewriter: Rewriter, root: Any, outputs: list[Order]) -> int:
    """Emit the entry's root and note how its flat outputs lie."""
    if root.opcode != "tuple":
        if root.id not in rewriter.stored:
            rewrite(rewriter, root)
        outputs.extend([rewriter.order_of(root.id)] if rank_of(root) else _row_major_parts(root))
        return rewriter.need(root.id)
    outputs.extend(rewriter.order_of(value) for value in root.operand_ids)
    operands = [rewriter.need(value) for value in root.operand_ids]
    new_id = rewriter.emit(root, operands, row_major(0))
    shapes = rewriter.emitted[-1].shape.tuple_shapes
    for shape, value, order in zip(shapes, root.operand_ids, outputs, strict=True):
        set_physical_shape(shape, rewriter.instructions[value].shape, order)
    return new_id


def _row_major_parts(root: Any) -> list[Order]:
    """Return the orders of what a root that is no array holds, or that of a scalar."""
    parts = root.shape.tuple_shapes or [root.shape]
    return [row_major(len(shape.dimensions)) for shape in parts]


def _describe_interface(module: Any, computation: Any) -> None:
    """Write the shapes of parameters and result where the module repeats them."""
    root = next(i for i in computation.instructions if i.id == computation.root_id)
    by_number = {i.parameter_number: i for i in computation.instructions if i.opcode == "parameter"}
    for described in (module.host_program_shape, computation.program_shape):
        for number, parameter in by_number.items():
            described.parameters[number].CopyFrom(parameter.shape)
        described.result.CopyFrom(root.shape)
