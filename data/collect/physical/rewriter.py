"""Rewrite one HLO computation so that every array lies in a chosen physical order.

An *order* lists an array's logical dimensions as they lie in memory, outermost first. The array
is stored as a row-major array of the permuted dimensions; a rule per operation then renames the
dimensions it speaks of. A transpose stands only where a value is needed in another order than the
one it is stored in. Rules are in `data.collect.physical.rules`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data.collect.layouts.options import UNSET, Order
from data.hlo.descriptor import message_class

Orders = tuple[Order, Order, Order]  # of output, input and kernel; UNSET where nothing is chosen
Emit = Callable[["Rewriter", Any, Order], int]


def row_major(rank: int) -> Order:
    """Return the order of a row-major array."""
    return tuple(range(rank))


def rank_of(instruction: Any) -> int:
    """Return the rank of an instruction's array; 0 for scalars, tuples and tokens."""
    return len(instruction.shape.dimensions)


@dataclass
class Rewriter:
    """The state of rewriting one computation.

    Attributes:
        instructions: the logical instructions by id.
        choices: the configured orders of nodes, by id.
        stored: the order in which each logical value lies.
        held: which new instruction holds a logical value in an order.
        flexible: values made on demand in any order (broadcasts, iotas), by their rules.
        emitted: the new instructions, operands before users.
        pinned: values that a barrier keeps in an order.
        next_id: the first unused id.
    """

    instructions: Mapping[int, Any]
    choices: Mapping[int, Orders]
    next_id: int
    stored: dict[int, Order] = field(default_factory=dict)
    held: dict[tuple[int, Order], int] = field(default_factory=dict)
    flexible: dict[int, Emit] = field(default_factory=dict)
    emitted: list[Any] = field(default_factory=list)
    pinned: set[tuple[int, Order]] = field(default_factory=set)

    def chosen(self, instruction: Any) -> Orders:
        """Return the configured orders of an instruction, UNSET where nothing is chosen."""
        return self.choices.get(instruction.id, (UNSET, UNSET, UNSET))

    def order_of(self, value: int) -> Order:
        """Return the order of a value: as it is stored, row-major if it is made on demand."""
        return self.stored.get(value, row_major(rank_of(self.instructions[value])))

    def common_order(self, values: Sequence[int]) -> Order:
        """Return the order of the first stored array among values of one shape."""
        arrays = [v for v in values if rank_of(self.instructions[v])]
        firm = [v for v in arrays if v not in self.flexible]
        return self.order_of((firm or arrays or list(values))[0])

    def need(self, value: int, order: Order | None = None) -> int:
        """Return the id of an instruction that holds `value` in `order` (default: as stored)."""
        instruction = self.instructions[value]
        order = self.order_of(value) if order is None else order
        if (value, order) not in self.held:
            if value in self.flexible:
                self.held[value, order] = self.flexible[value](self, instruction, order)
            else:
                self.held[value, order] = self._transpose(value, order)
        return self.held[value, order]

    def need_row_major(self, value: int) -> int:
        """Return the id of an instruction that holds `value` as the logical program does."""
        return self.need(value, row_major(rank_of(self.instructions[value])))

    def emit(
        self, instruction: Any, operands: Sequence[int], order: Order, **fields: Sequence[int]
    ) -> int:
        """Append a copy of an instruction whose array lies in `order`, with fields replaced."""
        copy = message_class("HloInstructionProto")()
        copy.CopyFrom(instruction)
        copy.id = self._new_id()
        copy.name = f"{instruction.name}.p{copy.id}"
        copy.operand_ids[:] = operands
        del copy.control_predecessor_ids[:]
        if rank_of(instruction):
            set_physical_shape(copy.shape, instruction.shape, order)
        for name, values in fields.items():
            getattr(copy, name)[:] = values
        self.emitted.append(copy)
        return int(copy.id)

    def take(self, value: int, chosen: Order) -> tuple[int, Order]:
        """Return an operand's id and order: pinned in the chosen order, or else as it is stored."""
        if chosen:
            return self.pin(value, chosen), chosen
        return self.need(value), self.order_of(value)

    def store(self, instruction: Any, order: Order, new_id: int) -> None:
        """Say that a logical value now lies in `order` in the instruction `new_id`."""
        self.stored[instruction.id] = order
        self.held[instruction.id, order] = new_id

    def store_as_wanted(self, instruction: Any, order: Order, new_id: int) -> None:
        """As `store`, then turned to the configured output order, if there is one."""
        self.store(instruction, order, new_id)
        wanted = self.chosen(instruction)[0]
        if wanted:
            self.store(instruction, wanted, self.pin(instruction.id, wanted))

    def pin(self, value: int, order: Order) -> int:
        """As `need`, but the compiler may not store the value otherwise.

        A barrier keeps it from moving transposes across, or from undoing them in pairs. None is
        needed where a value lies so by itself: a parameter, or a row-major array.
        """
        held = self.need(value, order)
        is_given = self.instructions[value].opcode == "parameter" or order == row_major(len(order))
        if (value, order) in self.pinned or (is_given and order == self.order_of(value)):
            return held
        barrier = message_class("HloInstructionProto")(opcode="opt-barrier", name="pinned_order")
        barrier.shape.CopyFrom(self.instructions[value].shape)
        self.pinned.add((value, order))
        self.held[value, order] = self.emit(barrier, [held], order)
        return self.held[value, order]

    def _transpose(self, value: int, order: Order) -> int:
        """Emit the transposition of a stored value to another order."""
        stored = self.stored[value]
        logical = self.instructions[value]
        transpose = message_class("HloInstructionProto")(opcode="transpose", name="physical_order")
        transpose.shape.CopyFrom(logical.shape)
        axes = [stored.index(axis) for axis in order]
        return self.emit(transpose, [self.held[value, stored]], order, dimensions=axes)

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1


def set_physical_shape(shape: Any, logical: Any, order: Order) -> None:
    """Write the dimensions of `logical` in `order` into `shape`, row-major."""
    dimensions = [logical.dimensions[axis] for axis in order]
    dynamic = [logical.is_dynamic_dimension[a] for a in order if logical.is_dynamic_dimension]
    shape.dimensions[:] = dimensions
    shape.is_dynamic_dimension[:] = dynamic
    shape.layout.minor_to_major[:] = range(len(order) - 1, -1, -1)
