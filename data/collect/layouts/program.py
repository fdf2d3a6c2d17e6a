"""A JAX program whose layouts are chosen node by node; shapes: n nodes, k configurable, c configs.

A layout is set by a constraint in the HLO module: a custom call that hands its operand on in a
given layout, which the compiler's layout assignment obeys, with copies where neighbours disagree.
On CPU, whose convolutions and dots are row-major, the cost that is measured is that of those
copies; the compiler's own choice is nearly always the best there.

JAX has no public way to compile an HLO module. This file alone touches the private one; which
releases of jaxlib it was tested with stands here, and others are refused by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.collect.layouts.module import (
    DumpedModule,
    ProgramSource,
    configurable_nodes,
    dump_module,
)
from data.collect.layouts.options import N_VALUES, Order, node_groups, node_options, read_row
from data.collect.measuring.worker import Description, first_line, open_device
from data.hlo import featurize_module
from data.hlo.descriptor import message_class

TESTED_JAXLIB = ("0.10",)
TARGET = "LayoutConstraint"
API_VERSION_ORIGINAL = 1


class CompileRefused(PipelineError):  # noqa: N818 (what happened, said in the past tense)
    """The compiler refuses a config: it is recorded as failed and skipped.

    The message is one line that names the program and gives the compiler's first words.
    """


class LayoutProgram:
    """A program with k configurable nodes, compiled anew for each config.

    A config is (k, 18) int8: per node the minor-to-major orders of its output, its input and its
    kernel, six values each, filled up with -1; a tensor that is all -1 is left to the compiler.

    Attributes:
        name: the program's.
        dumped: its module before layouts are chosen.
        options: for each of the k nodes its (o, 18) int8 legal rows; row 0 is its default.
        groups: (k,) int64; nodes of one group do alike and may be given the same option.
        graph: the arrays of a layout file that no config changes.
    """

    def __init__(self, source: ProgramSource) -> None:
        """Compile a program once and open its layouts.

        Raises:
            PipelineError: it cannot be compiled, has no configurable node, or this jaxlib was not
                tested.
        """
        problem = why_unavailable()
        if problem is not None:
            raise PipelineError(f"{source.name}: {problem}")
        self.name = source.name
        self.dumped = dump_module(source)
        self._nodes = configurable_nodes(self.dumped.message)
        if not self._nodes:
            raise PipelineError(
                f"{source.name}: has no convolution, dot or reshape left after simplification; "
                "expected at least one"
            )
        self.options: Sequence[NDArray[np.int8]] = [node_options(node) for node in self._nodes]
        self.groups = node_groups(self._nodes)
        graph = featurize_module(self.dumped.message, source=self.name)
        self.graph: dict[str, NDArray[Any]] = {
            "node_feat": graph.node_feat,
            "node_opcode": graph.node_opcode,
            "edge_index": graph.edge_index,
            "node_splits": graph.node_splits,
            "node_config_ids": np.array([node.position for node in self._nodes], np.int64),
        }

    @property
    def default(self) -> NDArray[np.int8]:
        """Return the (k, 18) int8 config that leaves every choice to the compiler: all -1."""
        return np.full((len(self.options), N_VALUES), -1, np.int8)

    def compile(self, config: NDArray[np.int8]) -> Callable[[], None]:
        """Compile under `config` (k, 18); calling the result runs it once and waits for its end.

        It has run once before it is returned, so that nothing is set up while it is timed.

        Raises:
            CompileRefused: the compiler refuses the config.
            PipelineError: the config is not made of this program's options.
        """
        executable = self._executable(config)
        executable.run()
        return executable.run

    def outputs(self, config: NDArray[np.int8]) -> list[NDArray[np.generic]]:
        """Run under `config` (k, 18) and return the flat outputs; raises as `compile`."""
        return self._executable(config).outputs()

    def constrained_module(self, config: NDArray[np.int8]) -> Any:
        """Return a copy of the HLO module with the constraints of `config` (k, 18)."""
        module = message_class("HloModuleProto")()
        module.CopyFrom(self.dumped.message)
        orders = {
            node.instruction.id: read_row(row)
            for node, row in zip(self._nodes, config, strict=True)
            if (row >= 0).any()
        }
        for computation in module.computations:
            if any(instruction.id in orders for instruction in computation.instructions):
                _constrain(computation, orders)
        return module

    def _executable(self, config: NDArray[np.int8]) -> "_Executable":
        self._check(config)
        return _Executable(self.dumped, self.constrained_module(config))

    def _check(self, config: NDArray[np.int8]) -> None:
        """Refuse a config (k, 18) that is not one of the program's options in every row."""
        expected = (len(self.options), N_VALUES)
        if config.shape != expected or config.dtype != np.int8:
            raise PipelineError(
                f"{self.name}: config is {config.shape} {config.dtype}; expected {expected} int8"
            )
        for node, (row, options) in enumerate(zip(config, self.options, strict=True)):
            if not (options == row).all(axis=1).any():
                raise PipelineError(
                    f"{self.name}: configurable node {node} is given {row.tolist()}; "
                    f"expected one of its {len(options)} options"
                )


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


def why_unavailable() -> str | None:
    """Return why edited modules cannot be compiled here and what to do, or None if they can."""
    import jax
    import jaxlib

    remedy = "pip install -r requirements-collect.txt"
    if ".".join(jaxlib.__version__.split(".")[:2]) not in TESTED_JAXLIB:
        tested = ", ".join(f"{v}.x" for v in TESTED_JAXLIB)
        return (
            f"jaxlib {jaxlib.__version__} was not tested with edited HLO modules; tested: "
            f"{tested}; {remedy}"
        )
    try:
        from jaxlib import _jax
    except ImportError:
        return f"jaxlib {jaxlib.__version__} has no compiler client module; {remedy}"
    client = jax.devices()[0].client
    if not hasattr(_jax.mlir, "hlo_to_stablehlo") or not hasattr(client, "compile_and_load"):
        return f"jaxlib {jaxlib.__version__} cannot compile HLO modules; {remedy}"
    return None


class _Executable:
    """A compiled module with its arguments on the first device."""

    def __init__(self, dumped: DumpedModule, module: Any) -> None:
        import jax
        from jaxlib import _jax

        device = jax.devices()[0]
        self._arguments = [jax.device_put(argument, device) for argument in dumped.arguments]
        jax.block_until_ready(self._arguments)
        try:
            stable = _jax.mlir.hlo_to_stablehlo(module.SerializeToString())
            self._loaded = device.client.compile_and_load(stable, [device], _jax.CompileOptions())
        except Exception as error:
            raise CompileRefused(
                f"{dumped.name}: the compiler refuses: {first_line(error)}"
            ) from error

    def run(self) -> None:
        """Run once and wait for the end."""
        for array in self._execute():
            array.block_until_ready()

    def outputs(self) -> list[NDArray[np.generic]]:
        """Run once and return the flat outputs."""
        return [np.asarray(array) for array in self._execute()]

    def _execute(self) -> list[Any]:
        results = self._loaded.execute_sharded(self._arguments)
        return [arrays[0] for arrays in results.disassemble_into_single_device_arrays()]


@dataclass(frozen=True)
class LayoutSource:
    """A program by name, on a device, as something to measure."""

    program: str
    device: str | None = None

    def open(self) -> "LayoutSubject":
        """Compile the program once and find what may be chosen.

        Raises:
            PipelineError: no such program or device, or it cannot be compiled.
        """
        facts = open_device(self.device)
        from data.collect.programs.loading import load_program

        return LayoutSubject(LayoutProgram(load_program(self.program)), facts)


class LayoutSubject:
    """A program with one gene per configurable node: which of its k nodes' options."""

    def __init__(self, program: LayoutProgram, facts: dict[str, str]) -> None:
        self._program = program
        self._facts = facts

    def describe(self) -> Description:
        """Return the program's graph and the number of options of its k nodes."""
        n_options = np.array([len(options) for options in self._program.options], np.int64)
        return Description(n_options, self._program.groups, self._program.graph, self._facts)

    def spell(self, choices: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return choices (c, k) as configs (c, k, 18)."""
        options = self._program.options
        return np.stack([options[node][choices[:, node]] for node in range(len(options))], axis=1)

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile under the config of a choice (k,)."""
        return self._program.compile(self.spell(choice[None])[0])
