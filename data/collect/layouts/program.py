"""A JAX program whose layouts are chosen node by node; shapes: n nodes, k configurable, c configs.

A layout is set by a constraint in the HLO module: a custom call that hands its operand on in a
given layout, which the compiler's layout assignment obeys, with copies where neighbours disagree.
On CPU, whose convolutions and dots are row-major, the cost that is measured is that of those
copies; the compiler's own choice is nearly always the best there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.collect.layouts.module import configurable_nodes, dump_module
from data.collect.layouts.options import Order, node_groups, node_options, read_row
from data.collect.measuring.worker import Description, open_device
from data.collect.programs.catalogue import ProgramSource, load_program
from data.collect.programs.compiled import check_jaxlib, compile_module
from data.hlo.descriptor import message_class
from data.hlo.graph import featurize_module

TARGET = "LayoutConstraint"
API_VERSION_ORIGINAL = 1


def open_program(name: str, device: str | None) -> "LayoutProgram":
    """Return a program by name, ready to be measured on a device.

    Raises:
        PipelineError: no such program or device, or it cannot be compiled.
    """
    facts = open_device(device)
    return LayoutProgram(load_program(name), facts)


class LayoutProgram:
    """A program with k configurable nodes, compiled anew for each config.

    A config is (k, 18) int8: per node the minor-to-major orders of its output, its input and its
    kernel, six values each, filled up with -1; a tensor that is all -1 is left to the compiler.
    A choice (k,) takes one of each node's options.

    Attributes:
        message: its HLO module before layouts are chosen.
        options: for each of the k nodes its (o, 18) int8 legal rows; row 0 is its default.
        groups: (k,) int64; nodes of one group do alike and may be given the same option.
        graph: the arrays of a layout file that no config changes.
    """

    def __init__(
        self,
        source: ProgramSource,
        facts: dict[str, str] | None = None,
        *,
        dumped: tuple[Any, tuple[Any, ...]] | None = None,
    ) -> None:
        """Compile a program once and open its layouts.

        Args:
            facts: those of the device.
            dumped: what `dump_module` returned for the program, if it was compiled already.

        Raises:
            PipelineError: it cannot be compiled, has no configurable node, or this jaxlib was not
                tested.
        """
        check_jaxlib(source.name)
        self.name = source.name
        self._facts = facts or {}
        self.message, self._arguments = dumped or dump_module(source)
        self._nodes = configurable_nodes(self.message)
        if not self._nodes:
            raise PipelineError(
                f"{source.name}: has no convolution, dot or reshape left after simplification; "
                "expected at least one"
            )
        self.options = [node_options(node) for node in self._nodes]
        self.groups = node_groups(self._nodes)
        graph = featurize_module(self.message, source=self.name)
        positions = np.array([node.position for node in self._nodes], np.int64)
        self.graph: dict[str, NDArray[Any]] = {**graph.arrays, "node_config_ids": positions}

    def describe(self) -> Description:
        """Return the program's graph and the number of options of its k nodes."""
        n_options = np.array([len(options) for options in self.options], np.int64)
        return Description(n_options, self.groups, self.graph, self._facts)

    def spell(self, choices: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return choices (c, k) as configs (c, k, 18)."""
        rows = [options[choices[:, node]] for node, options in enumerate(self.options)]
        return np.stack(rows, axis=1)

    def tell(self, choice: NDArray[np.int64]) -> dict[str, dict[str, list[int]]]:
        """Say of each instruction that a choice (k,) decides its tensors' minor-to-major orders."""
        config = self.spell(choice[None])[0]
        return {
            node.instruction.name: {
                tensor: list(order[::-1])
                for tensor, order in zip(("output", "input", "kernel"), read_row(row), strict=True)
                if order
            }
            for node, row in zip(self._nodes, config, strict=True)
            if (row >= 0).any()
        }

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile under the config of a choice (k,), and run once."""
        return self.compile(self.spell(choice[None])[0])

    def compile(self, config: NDArray[np.int8]) -> Callable[[], list[Any]]:
        """Compile under `config` (k, 18); calling the result returns the flat outputs at their end.

        It has run once before it is returned, so that nothing is set up while it is timed.

        Raises:
            PipelineError: the compiler refuses the config; its first words in one line.
        """
        module = self.constrained_module(config).SerializeToString()
        return compile_module(self.name, module, self._arguments)

    def constrained_module(self, config: NDArray[np.int8]) -> Any:
        """Return a copy of the HLO module with the constraints of `config` (k, 18)."""
        module = message_class("HloModuleProto")()
        module.CopyFrom(self.message)
        orders = {
            node.instruction.id: read_row(row)
            for node, row in zip(self._nodes, config, strict=True)
            if (row >= 0).any()
        }
        for computation in module.computations:
            if any(instruction.id in orders for instruction in computation.instructions):
                _constrain(computation, orders)
        return module


def _constrain(computation: Any, orders: dict[int, tuple[Order, Order, Order]]) -> None:
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
        instruction.operand_ids[:] = operands
        edited.append(instruction)
        if output:
            edited.append(_constraint(next_id, instruction.id, instruction.shape, output))
            renamed[instruction.id] = next_id
            next_id += 1
    computation.root_id = renamed.get(computation.root_id, computation.root_id)
    kept = [message_class("HloInstructionProto").FromString(i.SerializeToString()) for i in edited]
    del computation.instructions[:]
    computation.instructions.extend(kept)


def _constraint(new_id: int, operand: int, shape: Any, order: Sequence[int]) -> Any:
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
