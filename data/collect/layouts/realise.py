"""What measuring needs of a program whose layouts may be chosen, however they are realised.

Shapes: n nodes, e edges, k configurable nodes, s splits, c configs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError

Source = Literal["xla", "nlp"]
N_TENSORS = 3  # output, input (left operand), kernel (right operand)
MAX_RANK = 6
N_VALUES = N_TENSORS * MAX_RANK


class CompileRefused(PipelineError):  # noqa: N818 (what happened, said in the past tense)
    """The compiler refuses a config: it is recorded as failed and skipped.

    The message is one line that names the program and gives the compiler's first words.
    """


class GraphArrays(TypedDict):
    """The arrays of a layout file that do not depend on configs.

    `node_feat` (n, 140) float32, `node_opcode` (n,) uint8, `edge_index` (e, 2) int64,
    `node_splits` (1, s) int64, `node_config_ids` (k,) int64 node positions.
    """

    node_feat: NDArray[np.float32]
    node_opcode: NDArray[np.uint8]
    edge_index: NDArray[np.int64]
    node_splits: NDArray[np.int64]
    node_config_ids: NDArray[np.int64]


@dataclass(frozen=True)
class ProgramSource:
    """A JAX program before anything is compiled.

    Attributes:
        name: unique; becomes a file name.
        family: the architecture without its batch size; folds and splits keep families together.
        source: "xla" (no transformer) or "nlp" (transformers).
        build: returns a function of arrays and the tuple of its example arguments. Weights are
            arguments, so that the compiler cannot fold them; equal calls give equal arguments.
    """

    name: str
    family: str
    source: Source
    build: Callable[[], tuple[Callable[..., object], tuple[object, ...]]]


class LayoutProgram(Protocol):
    """A program with k configurable nodes, compiled anew for each config.

    A config is (k, 18) int8: per node the minor-to-major orders of its output, its input and its
    kernel, six values each, filled up with -1; a tensor that is all -1 is left to the compiler.
    """

    @property
    def name(self) -> str:
        """Return the program's unique name."""

    @property
    def family(self) -> str:
        """Return the program's family."""

    @property
    def graph(self) -> GraphArrays:
        """Return the graph's arrays, those of a layout file that no config changes."""

    @property
    def options(self) -> Sequence[NDArray[np.int8]]:
        """Return for each of the k nodes its (o, 18) int8 legal rows; row 0 is its default."""

    @property
    def default(self) -> NDArray[np.int8]:
        """Return the (k, 18) int8 config that leaves every choice to the compiler: all -1."""

    @property
    def groups(self) -> NDArray[np.int64]:
        """Return (k,) int64; nodes of one group do alike and may be given the same option."""

    def compile(self, config: NDArray[np.int8]) -> Callable[[], None]:
        """Compile under `config` (k, 18); calling the result runs it once and waits for its end.

        Raises:
            CompileRefused: the compiler refuses the config.
            PipelineError: the config is not made of this program's options.
        """

    def outputs(self, config: NDArray[np.int8]) -> list[NDArray[np.generic]]:
        """Run under `config` (k, 18) and return the flat outputs in their logical shapes.

        Raises:
            CompileRefused: the compiler refuses the config.
            PipelineError: the config is not made of this program's options.
        """


def check_config(program: LayoutProgram, config: NDArray[np.int8]) -> None:
    """Refuse a config (k, 18) that is not one of the program's options in every row.

    Raises:
        PipelineError: names the program, the configurable node and the values.
    """
    expected = (len(program.options), N_VALUES)
    if config.shape != expected or config.dtype != np.int8:
        raise PipelineError(
            f"{program.name}: config is {config.shape} {config.dtype}; expected {expected} int8"
        )
    for node, (row, options) in enumerate(zip(config, program.options, strict=True)):
        if not (options == row).all(axis=1).any():
            raise PipelineError(
                f"{program.name}: configurable node {node} is given {row.tolist()}; "
                f"expected one of its {len(options)} options"
            )
