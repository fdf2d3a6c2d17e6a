"""When an array that does not lie row-major can be reshaped where it lies."""

from data.collect.layouts.options import Order


def reshaped_order(shape: Order, new_shape: Order, order: Order) -> Order | None:
    """Return the order of a reshaped array that lay in `order`, or None if it must move.

    A reshape falls apart into blocks: runs of old and of new dimensions of equal product. Blocks
    may lie in any order as long as the dimensions of each old block lie together and in sequence;
    dimensions of size 1 belong to the block that they stand in.

    >>> reshaped_order((8, 64, 32), (8, 64, 4, 8), (1, 0, 2))
    (1, 0, 2, 3)
    >>> reshaped_order((8, 64, 32), (512, 32), (1, 0, 2)) is None
    True
    """
    blocks = _blocks(shape, new_shape)
    if blocks is None:
        return None
    block_of = {axis: number for number, (old, _) in enumerate(blocks) for axis in old}
    lying = [block_of[axis] for axis in order]
    sequence = [n for i, n in enumerate(lying) if i == 0 or lying[i - 1] != n]
    in_sequence = tuple(axis for number in sequence for axis in blocks[number][0])
    if len(sequence) != len(set(sequence)) or in_sequence != order:
        return None
    missing = [number for number, (old, _) in enumerate(blocks) if not old]
    return tuple(axis for number in [*sequence, *missing] for axis in blocks[number][1])


def _blocks(shape: Order, new_shape: Order) -> list[tuple[Order, Order]] | None:
    """Split both lists of dimensions into runs of equal product; None for empty arrays."""
    if 0 in shape:
        return None
    blocks: list[tuple[Order, Order]] = []
    i = j = 0
    while i < len(shape) or j < len(new_shape):
        old_start, new_start = i, j
        old = new = 1
        if i < len(shape):
            old, i = shape[i], i + 1
        if j < len(new_shape):
            new, j = new_shape[j], j + 1
        while old != new:
            if old < new:
                old, i = old * shape[i], i + 1
            else:
                new, j = new * new_shape[j], j + 1
        blocks.append((tuple(range(old_start, i)), tuple(range(new_start, j))))
    return blocks
