"""The HLO module of a JAX program just before layouts are chosen, and which nodes may be chosen.

That module is inlined and simplified, with nothing fused yet: what TpuGraphs stores. Node
positions count instructions in the order of the module's computations.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.collect.measuring.worker import one_line
from data.collect.programs.catalogue import ProgramSource
from data.hlo.descriptor import message_class

CONFIGURABLE = ("convolution", "dot", "reshape")
DUMPED_STEP = "layout-assignment"


class ConfigurableNode(NamedTuple):
    """An instruction whose layouts a config chooses."""

    position: int  # of its node in the graph
    instruction: Any  # its message
    shapes: tuple[tuple[int, ...], ...]  # of output, input and, but for reshapes, kernel


def dump_module(source: ProgramSource) -> Any:
    """Compile a program once and return its HloModule message before layout assignment.

    It is read from the compiler's dump.

    Raises:
        PipelineError: the program cannot be built, traced or compiled, or no dump was written.
    """
    import jax

    try:
        function, arguments = source.build()
        lowered = jax.jit(function, keep_unused=True).lower(*arguments)
        with tempfile.TemporaryDirectory() as folder:
            lowered.compile(
                compiler_options={
                    "xla_dump_to": folder,
                    "xla_dump_hlo_as_proto": True,
                    "xla_dump_hlo_pass_re": DUMPED_STEP,
                }
            )
            return _read_dump(source.name, Path(folder))
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(f"{source.name}: cannot be compiled: {one_line(error)}") from error


def _read_dump(name: str, folder: Path) -> Any:
    files = sorted(folder.glob(f"*before_{DUMPED_STEP}.hlo.pb"))
    if not files:
        raise PipelineError(
            f"{name}: the compiler dumped no module before {DUMPED_STEP}; expected one from "
            "xla_dump_hlo_pass_re (a newer jaxlib may have renamed the pass)"
        )
    # Helper programs that run while tracing are dumped too; the program itself is the largest.
    largest = max(files, key=lambda path: path.stat().st_size)
    return message_class("HloProto").FromString(largest.read_bytes()).hlo_module


def _instructions(module: Any) -> list[Any]:
    return [given for computation in module.computations for given in computation.instructions]


def node_positions(module: Any, instructions: Sequence[Any]) -> NDArray[np.int64]:
    """Return the node positions (k,) of some instructions of a module."""
    places = {given.id: place for place, given in enumerate(_instructions(module))}
    return np.array([places[given.id] for given in instructions], np.int64)


def configurable_nodes(module: Any) -> list[ConfigurableNode]:
    """Return the convolutions, dots and reshapes of which a tensor has two dimensions to order."""
    found = [
        place for place, given in enumerate(_instructions(module)) if given.opcode in CONFIGURABLE
    ]
    return [
        node
        for node in nodes_at(module, found)
        if any(sum(size > 1 for size in shape) > 1 for shape in node.shapes)
    ]


def nodes_at(module: Any, positions: Sequence[int]) -> list[ConfigurableNode]:
    """Return the instructions at some node positions with the shapes of their tensors."""
    in_order = _instructions(module)
    by_id = {instruction.id: instruction for instruction in in_order}
    nodes = []
    for position in positions:
        instruction = in_order[position]
        tensors = [instruction, *(by_id[i] for i in instruction.operand_ids)]
        shapes = tuple(tuple(tensor.shape.dimensions) for tensor in tensors)
        nodes.append(ConfigurableNode(position, instruction, shapes))
    return nodes
