"""Dots and convolutions on operands that lie in any order: their dimension numbers are renamed."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

from data.collect.layouts.options import Order
from data.collect.physical.rewriter import Rewriter


class _Operand(NamedTuple):
    """One side of a dot: its order and its batch and contracted dimensions, pair by pair."""

    order: Order
    batch: tuple[int, ...]
    contracted: tuple[int, ...]

    @property
    def free(self) -> list[int]:
        """Return the dimensions that go to the output, as they lie."""
        return [axis for axis in self.order if axis not in (*self.batch, *self.contracted)]

    def places(self, axes: Sequence[int]) -> list[int]:
        """Return where dimensions lie."""
        return [self.order.index(axis) for axis in axes]


def dot(rewriter: Rewriter, instruction: Any) -> None:
    """Contract operands as they lie; batch axes and sides are listed as the output asks for.

    The result has its batch axes as listed, then the free axes of the side listed first, then
    those of the other: whichever of these comes to the wanted order is taken, else a transpose
    follows.
    """
    left, right = instruction.operand_ids
    numbers = instruction.dot_dimension_numbers
    wanted, of_left, of_right = rewriter.chosen(instruction)
    held_left, left_order = rewriter.take(left, of_left)
    held_right, right_order = rewriter.take(right, of_right)
    sides = (
        _Operand(
            left_order,
            tuple(numbers.lhs_batch_dimensions),
            tuple(numbers.lhs_contracting_dimensions),
        ),
        _Operand(
            right_order,
            tuple(numbers.rhs_batch_dimensions),
            tuple(numbers.rhs_contracting_dimensions),
        ),
    )
    pairs, swapped, order = _arrange(sides, wanted)
    held = (held_left, held_right)
    first, second = (1, 0) if swapped else (0, 1)
    new_id = rewriter.emit(instruction, [held[first], held[second]], order)
    renamed = rewriter.emitted[-1].dot_dimension_numbers
    for name, side in (("lhs", sides[first]), ("rhs", sides[second])):
        batch = [side.batch[pair] for pair in pairs]
        getattr(renamed, f"{name}_batch_dimensions")[:] = side.places(batch)
        getattr(renamed, f"{name}_contracting_dimensions")[:] = side.places(side.contracted)
    rewriter.store_as_wanted(instruction, order, new_id)


def _arrange(
    sides: tuple[_Operand, _Operand], wanted: Order
) -> tuple[tuple[int, ...], bool, Order]:
    """Return the order of batch pairs, whether the sides are swapped, and the output's order."""
    n_batch = len(sides[0].batch)
    plain = tuple(range(n_batch))
    if not wanted:
        return plain, False, _output_order(sides, plain, swapped=False)
    for pairs in permutations(plain):
        for swapped in (False, True):
            order = _output_order(sides, pairs, swapped=swapped)
            if order == wanted:
                return pairs, swapped, order
    return plain, False, _output_order(sides, plain, swapped=False)


def _output_order(
    sides: tuple[_Operand, _Operand], pairs: tuple[int, ...], *, swapped: bool
) -> Order:
    """Return the output's logical dimensions as a dot of these operands lays them."""
    logical: list[list[int]] = []
    start = len(pairs)
    for side in sides:
        lying = side.free
        numbered = {axis: start + i for i, axis in enumerate(sorted(lying))}
        logical.append([numbered[axis] for axis in lying])
        start += len(lying)
    left, right = reversed(logical) if swapped else logical
    return (*pairs, *left, *right)


def convolution(rewriter: Rewriter, instruction: Any) -> None:
    """Convolve operands as they lie; a result without a chosen order lies as its input does."""
    data, kernel = instruction.operand_ids
    numbers = instruction.convolution_dimension_numbers
    wanted, of_data, of_kernel = rewriter.chosen(instruction)
    held_data, of_data = rewriter.take(data, of_data)
    held_kernel, of_kernel = rewriter.take(kernel, of_kernel)
    result_of = {
        numbers.input_batch_dimension: numbers.output_batch_dimension,
        numbers.input_feature_dimension: numbers.output_feature_dimension,
        **dict(
            zip(numbers.input_spatial_dimensions, numbers.output_spatial_dimensions, strict=True)
        ),
    }
    is_plain = of_data == tuple(range(len(of_data)))
    # Left alone, a program whose input and output dimensions differ in order stays as written.
    follows = tuple(range(len(of_data))) if is_plain else tuple(result_of[a] for a in of_data)
    order = wanted or follows
    new_id = rewriter.emit(instruction, [held_data, held_kernel], order)
    renamed = rewriter.emitted[-1].convolution_dimension_numbers
    for part, lying in (("input", of_data), ("kernel", of_kernel), ("output", order)):
        _rename(renamed, numbers, part, lying)
    rewriter.store_as_wanted(instruction, order, new_id)


def _rename(renamed: Any, numbers: Any, part: str, order: Order) -> None:
    """Write where the dimensions of one tensor of a convolution lie."""
    kinds = ("input_feature", "output_feature") if part == "kernel" else ("batch", "feature")
    for kind in kinds:
        name = f"{part}_{kind}_dimension"
        setattr(renamed, name, order.index(getattr(numbers, name)))
    name = f"{part}_spatial_dimensions"
    getattr(renamed, name)[:] = [order.index(axis) for axis in getattr(numbers, name)]
