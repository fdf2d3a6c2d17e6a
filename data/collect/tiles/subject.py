"""A tile kernel as something to measure: made, compiled and run in the worker."""

import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.collect.layouts.module import ProgramSource, dump_module
from data.collect.measuring.worker import Description, first_line, open_device
from data.collect.programs.loading import named_object
from data.collect.tiles.catalogue import catalogue
from data.collect.tiles.kernel import TileKernel, tiled_function
from data.hlo import featurize_module


def find_kernel(program: str) -> TileKernel:
    """Return a kernel of the catalogue, or the one that "module:name" holds or returns.

    Raises:
        PipelineError: there is none, or its module cannot be imported.
    """
    if ":" not in program:
        kernels = catalogue()
        if program not in kernels:
            near = difflib.get_close_matches(program, kernels, n=3, cutoff=0.3)
            raise PipelineError(
                f"--program {program}: no such kernel; the nearest of {len(kernels)}: "
                f"{', '.join(near) or 'none'}; --list names all; or module:name of your own"
            )
        return kernels[program]
    found = named_object(program)
    try:
        kernel = found() if callable(found) and not isinstance(found, TileKernel) else found
    except Exception as error:
        raise PipelineError(
            f"--program {program}: cannot be called without arguments ({first_line(error)}); "
            "expected a function that returns a TileKernel; a JAX function is of --kind layout"
        ) from error
    if not isinstance(kernel, TileKernel):
        raise PipelineError(
            f"--program {program}: is a {type(kernel).__name__}; expected a TileKernel, "
            "or a function without arguments that returns one"
        )
    return kernel


@dataclass(frozen=True)
class TileSource:
    """A kernel by name, on a device."""

    program: str
    device: str | None = None

    def open(self) -> "TileSubject":
        """Make the kernel's arguments on the device.

        Raises:
            PipelineError: no such kernel or device.
        """
        facts = open_device(self.device)
        return TileSubject(find_kernel(self.program), facts)


class TileSubject:
    """A kernel with one gene: which of its tiles; option 0 is the default tile."""

    def __init__(self, kernel: TileKernel, facts: dict[str, str]) -> None:
        import jax

        self._kernel = kernel
        self._facts = facts
        self._arguments = [jax.device_put(array) for array in kernel.arguments()]

    def describe(self) -> Description:
        """Return the graph of the kernel over whole arrays, without a loop."""
        return Description(
            n_options=np.array([len(self._kernel.tiles)], np.int64),
            groups=np.zeros(1, np.int64),
            arrays=kernel_graph(self._kernel),
            facts=self._facts,
        )

    def spell(self, choices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return choices (c, 1) as tile configs (c, 24)."""
        return self._kernel.config_feat(self._kernel.tiles[choices[:, 0]])

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile for the tile of a choice (1,)."""
        import jax

        tile = self._kernel.tiles[int(choice[0])].tolist()
        function = jax.jit(tiled_function(self._kernel, tile))
        compiled = function.lower(*self._arguments).compile()
        return functools.partial(_run, compiled, self._arguments)


def _run(compiled: Callable[..., Any], arguments: list[Any]) -> None:
    compiled(*arguments).block_until_ready()


def kernel_graph(kernel: TileKernel) -> dict[str, NDArray[Any]]:
    """Return node_feat (n, 140), node_opcode (n,) and edge_index (e, 2) of a whole kernel.

    Raises:
        PipelineError: the kernel cannot be traced or compiled.
    """

    def build() -> tuple[Callable[..., object], tuple[object, ...]]:
        return kernel.whole, tuple(kernel.arguments())

    dumped = dump_module(ProgramSource(kernel.name, kernel.family, "xla", build))
    graph = featurize_module(dumped.message)
    return {
        "node_feat": graph.node_feat,
        "node_opcode": graph.node_opcode,
        "edge_index": graph.edge_index,
    }
