"""A tile kernel as something to measure: made, compiled and run in the worker."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.collect.layouts.module import dump_module
from data.collect.measuring.worker import Description, Told, one_line
from data.collect.programs.catalogue import ProgramSource, named_object
from data.collect.tiles.catalogue import catalogue
from data.collect.tiles.kernel import TileKernel, tiled_function
from data.hlo.graph import featurize_module


def find_kernel(program: str) -> TileKernel:
    """Return a kernel of the catalogue, or the one that "module:name" holds or returns.

    Raises:
        PipelineError: there is none, or its module cannot be imported.
    """
    if ":" not in program:
        kernels = catalogue()
        if program not in kernels:
            raise PipelineError(
                f"--program {program}: no such kernel; --list names all {len(kernels)}; or give "
                "module:name of your own"
            )
        return kernels[program]
    found = named_object(program)
    try:
        kernel = found() if callable(found) and not isinstance(found, TileKernel) else found
    except Exception as error:
        raise PipelineError(
            f"--program {program}: cannot be called without arguments ({one_line(error)}); "
            "expected a function that returns a TileKernel; a JAX function is of --kind layout"
        ) from error
    if not isinstance(kernel, TileKernel):
        raise PipelineError(
            f"--program {program}: is a {type(kernel).__name__}; expected a TileKernel, "
            "or a function without arguments that returns one"
        )
    return kernel


class TileSubject:
    """A kernel with one gene: which of its tiles; option 0 is the default tile."""

    def __init__(self, kernel: TileKernel, facts: dict[str, str]) -> None:
        import jax

        self._kernel = kernel
        self._facts = facts
        self._arguments = [jax.device_put(array) for array in kernel.arguments()]

    def describe(self) -> Description:
        """Return the graph of the kernel over whole arrays, without a loop."""
        kernel = self._kernel
        source = ProgramSource(
            kernel.name,
            kernel.family,
            "xla",
            build=lambda: (kernel.whole, tuple(kernel.arguments())),
        )
        graph = featurize_module(dump_module(source))
        arrays = {key: getattr(graph, key) for key in ("node_feat", "node_opcode", "edge_index")}
        n_options = np.array([len(kernel.tiles)], np.int64)
        return Description(n_options, np.zeros(1, np.int64), arrays, self._facts)

    def spell(self, choices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return choices (c, 1) as tile configs (c, 24)."""
        return self._kernel.config_feat(self._kernel.tiles[choices[:, 0]])

    def tell(self, choice: NDArray[np.int64]) -> Told:
        """Say which tile a choice (1,) takes."""
        return Told({"tile": self._kernel.tiles[int(choice[0])].tolist()})

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile for the tile of a choice (1,)."""
        import jax

        tile = self._kernel.tiles[int(choice[0])].tolist()
        compiled = jax.jit(tiled_function(self._kernel, tile)).lower(*self._arguments).compile()
        return lambda: compiled(*self._arguments).block_until_ready()
