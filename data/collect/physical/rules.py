"""For each HLO operation: in which order its result lies, and what it needs of its operands.

An operation without a rule takes and gives row-major arrays; that is always right, and costs a
transpose where its operand lies otherwise. So loops, calls, gathers and sorts need no rule.
"""

from collections.abc import Callable
from typing import Any

from data.collect.layouts.options import Order
from data.collect.physical.contractions import convolution, dot
from data.collect.physical.reshape_order import reshaped_order
from data.collect.physical.rewriter import Rewriter, rank_of, row_major

ELEMENTWISE = frozenset(
    {
        *("abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "convert", "copy"),
        *("cosine", "divide", "erf", "exponential", "exponential-minus-one", "floor", "imag"),
        *("is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply"),
        *("negate", "not", "or", "popcnt", "power", "real", "reduce-precision", "remainder"),
        *("round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left"),
        *("shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "subtract"),
        *("tan", "tanh", "xor"),
    }
)
Rule = Callable[[Rewriter, Any], None]


def rewrite(rewriter: Rewriter, instruction: Any) -> None:
    """Append what `instruction` becomes."""
    if instruction.opcode in ELEMENTWISE:
        _elementwise(rewriter, instruction)
    else:
        RULES.get(instruction.opcode, _boundary)(rewriter, instruction)


def _boundary(rewriter: Rewriter, instruction: Any) -> None:
    operands = [rewriter.need_row_major(value) for value in instruction.operand_ids]
    order = row_major(rank_of(instruction))
    rewriter.store(instruction, order, rewriter.emit(instruction, operands, order))


def _elementwise(rewriter: Rewriter, instruction: Any) -> None:
    """Follow the first operand that is stored; scalars go with every order."""
    order = rewriter.common_order(instruction.operand_ids)
    operands = [
        rewriter.need(value, order if rank_of(rewriter.instructions[value]) else None)
        for value in instruction.operand_ids
    ]
    rewriter.store(instruction, order, rewriter.emit(instruction, operands, order))


def _broadcast(rewriter: Rewriter, instruction: Any) -> None:
    rewriter.flexible[instruction.id] = _broadcast_to


def _broadcast_to(rewriter: Rewriter, instruction: Any, order: Order) -> int:
    """Lay the operand's dimensions in the order in which the result has them."""
    (operand,) = instruction.operand_ids
    target = list(instruction.dimensions)  # operand dimension -> result dimension
    of_operand = tuple(sorted(range(len(target)), key=lambda axis: order.index(target[axis])))
    held = rewriter.need(operand, of_operand)
    places = [order.index(target[axis]) for axis in of_operand]
    return rewriter.emit(instruction, [held], order, dimensions=places)


def _iota(rewriter: Rewriter, instruction: Any) -> None:
    rewriter.flexible[instruction.id] = _iota_in


def _iota_in(rewriter: Rewriter, instruction: Any, order: Order) -> int:
    axes = [order.index(axis) for axis in instruction.dimensions]
    return rewriter.emit(instruction, [], order, dimensions=axes)


def _transpose(rewriter: Rewriter, instruction: Any) -> None:
    """Rename dimensions where the operand lies in a chosen order; else transpose as written.

    So the config that chooses nothing leaves the program as it is.
    """
    (operand,) = instruction.operand_ids
    order = rewriter.order_of(operand)
    if order == row_major(len(order)):
        _boundary(rewriter, instruction)
        return
    result_of = {axis: place for place, axis in enumerate(instruction.dimensions)}
    renamed = tuple(result_of[axis] for axis in order)
    rewriter.store(instruction, renamed, rewriter.need(operand, order))


def _reshape(rewriter: Rewriter, instruction: Any) -> None:
    """Reshape in place where the order keeps the split or merged dimensions together."""
    (operand,) = instruction.operand_ids
    shape = tuple(rewriter.instructions[operand].shape.dimensions)
    new_shape = tuple(instruction.shape.dimensions)
    held, order = rewriter.take(operand, rewriter.chosen(instruction)[1])
    new_order = reshaped_order(shape, new_shape, order)
    if new_order is None:
        held = rewriter.need_row_major(operand)
        new_order = row_major(len(new_shape))
    new_id = rewriter.emit(instruction, [held], new_order)
    rewriter.store_as_wanted(instruction, new_order, new_id)


def _reduce(rewriter: Rewriter, instruction: Any) -> None:
    if len(instruction.operand_ids) != 2:
        _boundary(rewriter, instruction)
        return
    operand, start = instruction.operand_ids
    order = rewriter.order_of(operand)
    kept = [axis for axis in range(len(order)) if axis not in instruction.dimensions]
    result = tuple(kept.index(axis) for axis in order if axis in kept)
    axes = sorted(order.index(axis) for axis in instruction.dimensions)
    operands = [rewriter.need(operand, order), rewriter.need(start)]
    new_id = rewriter.emit(instruction, operands, result, dimensions=axes)
    rewriter.store(instruction, result, new_id)


def _windowed(rewriter: Rewriter, instruction: Any) -> None:
    """Reduce windows, or scatter to them: all arrays have one rank and lie alike."""
    if rank_of(instruction) == 0:
        _boundary(rewriter, instruction)
        return
    order = rewriter.common_order(instruction.operand_ids[:1])
    operands = [
        rewriter.need(value, order if rank_of(rewriter.instructions[value]) else None)
        for value in instruction.operand_ids
    ]
    new_id = rewriter.emit(instruction, operands, order)
    _permute(rewriter.emitted[-1].window.dimensions, order)
    rewriter.store(instruction, order, new_id)


def _pad(rewriter: Rewriter, instruction: Any) -> None:
    operand, value = instruction.operand_ids
    order = rewriter.order_of(operand)
    operands = [rewriter.need(operand, order), rewriter.need(value)]
    new_id = rewriter.emit(instruction, operands, order)
    _permute(rewriter.emitted[-1].padding_config.dimensions, order)
    rewriter.store(instruction, order, new_id)


def _slice(rewriter: Rewriter, instruction: Any) -> None:
    (operand,) = instruction.operand_ids
    order = rewriter.order_of(operand)
    new_id = rewriter.emit(instruction, [rewriter.need(operand, order)], order)
    _permute(rewriter.emitted[-1].slice_dimensions, order)
    rewriter.store(instruction, order, new_id)


def _along_dimensions(rewriter: Rewriter, instruction: Any) -> None:
    """Concatenate or reverse."""
    order = rewriter.common_order(instruction.operand_ids)
    operands = [rewriter.need(value, order) for value in instruction.operand_ids]
    axes = [order.index(axis) for axis in instruction.dimensions]
    new_id = rewriter.emit(instruction, operands, order, dimensions=axes)
    rewriter.store(instruction, order, new_id)


def _dynamic_slice(rewriter: Rewriter, instruction: Any) -> None:
    operand, *starts = instruction.operand_ids
    order = rewriter.order_of(operand)
    operands = [rewriter.need(value) for value in (operand, *(starts[axis] for axis in order))]
    sizes = [instruction.dynamic_slice_sizes[axis] for axis in order]
    new_id = rewriter.emit(instruction, operands, order, dynamic_slice_sizes=sizes)
    rewriter.store(instruction, order, new_id)


def _dynamic_update_slice(rewriter: Rewriter, instruction: Any) -> None:
    operand, update, *starts = instruction.operand_ids
    order = rewriter.order_of(operand)
    operands = [rewriter.need(operand, order), rewriter.need(update, order)]
    operands += [rewriter.need(starts[axis]) for axis in order]
    rewriter.store(instruction, order, rewriter.emit(instruction, operands, order))


def _permute(entries: Any, order: Order) -> None:
    """Put the repeated messages `entries`, one a dimension, in `order`."""
    copies = [type(entry).FromString(entry.SerializeToString()) for entry in entries]
    del entries[:]
    entries.extend(copies[axis] for axis in order)


RULES: dict[str, Rule] = {
    "broadcast": _broadcast,
    "concatenate": _along_dimensions,
    "convolution": convolution,
    "dot": dot,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "iota": _iota,
    "pad": _pad,
    "reduce": _reduce,
    "reduce-window": _windowed,
    "reshape": _reshape,
    "reverse": _along_dimensions,
    "select-and-scatter": _windowed,
    "slice": _slice,
    "transpose": _transpose,
}
