"""A fused kernel as a loop over tiles of its output. Each tile size is compiled separately.

A kernel has axes with one letter each, as in an einsum: matmul is "mk", "kn" -> "mn". The loop runs
over tiles of the output's axes. If contracted axes are tiled too, it sums over their tiles before
the epilogue. g is the number of tiled axes.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.worker import Decisions, Description, Loaded, error_line
from autotune.programs.compiled import code_of, digest_of, dump_module, shapes_of
from common.errors import PipelineError
from data.hlo.graph import featurize_module
from data.hlo.programs import tile_bounds

# With more steps a runtime is mainly the overhead of the loop.
MAX_STEPS = 1024
# The blocks of a step are as large as the scratchpad memory of an accelerator.
MAX_BLOCK_BYTES = 128 * 1024
ELEMENT_BYTES = 4
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Operand:
    """An input array of a kernel.

    Attributes:
        halo: Elements beyond the extent of an axis. For example, a 3x3 window needs a halo of 2: an
            output tile of h rows reads h + 2 rows of the input.
    """

    axes: str
    halo: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TileKernel:
    """A fused kernel whose output can be computed tile by tile.

    Attributes:
        name: Unique name. It becomes a file name.
        family: Family of the kernel. All kernels of a family are in one split.
        operands: Arguments of `combine`.
        tiled: Axes whose tile size is chosen, of the output or contracted by `combine`.
        combine: Function of blocks of the operands. Its blocks are summed over contracted tiles.
        epilogue: Function of the sum and the blocks of `extras` that returns the final block.
        extras: Further arguments of the epilogue, without contracted axes.
        has_weights: Whether the second operand is a weight. Its tile is the "kernel bounds".
    """

    name: str
    family: str
    extents: Mapping[str, int]
    operands: tuple[Operand, ...]
    output: str
    tiled: str
    combine: Callable[..., Any]
    epilogue: Callable[..., Any] = lambda block, *extras: block
    extras: tuple[Operand, ...] = ()
    has_weights: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise PipelineError(
                f"TileKernel '{self.name}': expected a name of letters, digits, '_', '.' and '-', "
                "as it becomes a file's"
            )
        for axis, extent in self.extents.items():
            if extent < 1:
                raise PipelineError(
                    f"TileKernel {self.name}: extents has {extent} for {axis}; expected 1 or more"
                )
        axes = [("tiled", self.tiled), ("output", self.output)]
        axes += [("operands", one.axes) for one in self.operands]
        axes += [("extras", one.axes) for one in self.extras]
        for where, letters in axes:
            if missing := sorted(set(letters) - self.extents.keys()):
                raise PipelineError(
                    f"TileKernel {self.name}: {where} has the axis {missing[0]} ({letters}), which "
                    f"extents lacks; expected one of {', '.join(self.extents)}"
                )

    @cached_property
    def tiles(self) -> NDArray[np.int64]:
        """Return the tile sizes that may be chosen, (o, g). Row 0 is the default.

        Sizes are 2^i, 3·2^i and the extent. Contracted axes have only divisors, because a last tile
        that overlaps its neighbour would be summed twice. The blocks of a step have at most 128 KiB
        in all, and the loop has 2 to 1,024 steps. The default is the choice of a compiler without a
        cost model: the fewest steps, then the largest blocks.
        """
        sizes = [_sizes(self.extents[axis], axis not in self.output) for axis in self.tiled]
        tiles = [
            tile
            for tile in itertools.product(*sizes)
            if self.block_bytes(tile) <= MAX_BLOCK_BYTES and 2 <= self.n_steps(tile) <= MAX_STEPS
        ]
        if len(tiles) < 2:
            raise PipelineError(
                f"{self.name}: {len(tiles)} tiles of {self.tiled} are legal; expected 2 or more, "
                f"with 2 to {MAX_STEPS} steps and blocks of {MAX_BLOCK_BYTES} bytes in all"
            )
        tiles.sort(key=lambda tile: (self.n_steps(tile), -self.block_bytes(tile), tile))
        return np.array(tiles, np.int64)

    def block_bytes(self, tile: Sequence[int]) -> int:
        """Return the bytes of all blocks of one step.

        Args:
            tile: Tile sizes, (g,).
        """
        tensors = (*self.operands, *self.extras, Operand(self.output))
        return ELEMENT_BYTES * sum(math.prod(self.block_shape(t, tile)) for t in tensors)

    def n_steps(self, tile: Sequence[int]) -> int:
        """Return the number of steps of the loop.

        Args:
            tile: Tile sizes, (g,).
        """
        return math.prod(
            -(-self.extents[axis] // size) for axis, size in zip(self.tiled, tile, strict=True)
        )

    def config_feat(self, tiles: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return config features: the bounds of kernel, output and input, (c, 24).

        Bounds are up to 6 sizes in dimension order, their sum and their product. The bounds of a
        missing tensor are 0.

        Args:
            tiles: Tile sizes, (c, g).
        """
        weights = self.operands[1] if self.has_weights else None
        tensors = (weights, Operand(self.output), self.operands[0])

        def row(tile: Sequence[int]) -> list[int]:
            shapes = [self.block_shape(tensor, tile) if tensor else () for tensor in tensors]
            return [value for sizes in shapes for value in tile_bounds(sizes)]

        return np.array([row(tile) for tile in tiles.tolist()], np.float32)

    def block_shape(self, operand: Operand, tile: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an operand's block.

        Args:
            operand: The operand.
            tile: Tile sizes, (g,).
        """
        sizes = dict(self.extents) | dict(zip(self.tiled, tile, strict=True))
        return tuple(sizes[axis] + operand.halo.get(axis, 0) for axis in operand.axes)

    def arguments(self) -> list[NDArray[np.float32]]:
        """Return the operands, then the extras, filled with small random float32 numbers."""
        rng = np.random.default_rng(0)
        return [rng.standard_normal(s, dtype=np.float32) * 0.1 for s in self.argument_shapes()]

    def argument_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the operands, then of the extras."""
        whole = [self.extents[axis] for axis in self.tiled]
        return [self.block_shape(operand, whole) for operand in (*self.operands, *self.extras)]

    def whole(self, *arguments: Any) -> Any:
        """Apply the kernel to whole arrays without a loop. Each tile must have this result."""
        n = len(self.operands)
        return self.epilogue(self.combine(*arguments[:n]), *arguments[n:])


def _sizes(extent: int, must_divide: bool) -> list[int]:
    steps = (base << shift for base in (1, 3) for shift in range(extent.bit_length()))
    sizes = {size for size in steps if size <= extent and not (must_divide and extent % size)}
    return sorted(sizes | {extent})


def tiled_function(kernel: TileKernel, tile: Sequence[int]) -> Callable[..., Any]:
    """Return the kernel as a function of its arguments that loops over tiles.

    The outer loop is over the tiled axes of the output, the inner loop over contracted axes. The
    last tile of an axis is moved back to end with the axis, so all blocks have the same shape.
    Some elements are then computed twice, with the same values.

    Args:
        kernel: The kernel.
        tile: Tile sizes, (g,).
    """
    from jax import lax
    from jax import numpy as jnp

    sizes = dict(kernel.extents) | dict(zip(kernel.tiled, tile, strict=True))
    outer = [axis for axis in kernel.tiled if axis in kernel.output]
    inner = [axis for axis in kernel.tiled if axis not in kernel.output]

    def n_steps(axes: Sequence[str]) -> int:
        return math.prod(-(-kernel.extents[axis] // sizes[axis]) for axis in axes)

    def starts_of(step: Any, axes: Sequence[str]) -> dict[str, Any]:
        # The last axis varies first.
        starts: dict[str, Any] = {}
        for axis in reversed(axes):
            last, count = kernel.extents[axis] - sizes[axis], n_steps([axis])
            starts[axis] = jnp.minimum(step % count * sizes[axis], last)
            step = step // count
        return starts

    def cut(arrays: Any, operands: Sequence[Operand], starts: Mapping[str, Any]) -> list[Any]:
        return [
            lax.dynamic_slice(
                array, [starts.get(a, 0) for a in part.axes], kernel.block_shape(part, tile)
            )
            for array, part in zip(arrays, operands, strict=True)
        ]

    def combined(arrays: Any, starts: Mapping[str, Any]) -> Any:
        def partial(j: Any) -> Any:
            both = {**starts, **starts_of(j, inner)}
            return kernel.combine(*cut(arrays, kernel.operands, both))

        if n_steps(inner) == 1:
            return partial(0)
        empty = jnp.zeros([sizes[axis] for axis in kernel.output], jnp.float32)
        return lax.fori_loop(0, n_steps(inner), lambda j, total: total + partial(j), empty)

    def tiled(*arguments: Any) -> Any:
        expected = [f"float32{list(shape)}" for shape in kernel.argument_shapes()]
        actual = [
            f"{a.dtype}{list(a.shape)}" if hasattr(a, "shape") else type(a).__name__
            for a in arguments
        ]
        # Without this check a slice that does not fit would be moved back without an error.
        if actual != expected:
            shapes = f"{', '.join(actual)}; expected {', '.join(expected)}"
            raise PipelineError(f"{kernel.name}: given arrays {shapes}")
        n = len(kernel.operands)

        def step(i: Any, output: Any) -> Any:
            starts = starts_of(i, outer)
            block = combined(arguments[:n], starts)
            block = kernel.epilogue(block, *cut(arguments[n:], kernel.extras, starts))
            places = [starts.get(axis, 0) for axis in kernel.output]
            return lax.dynamic_update_slice(output, block, places)

        empty = jnp.zeros([kernel.extents[axis] for axis in kernel.output], jnp.float32)
        return lax.fori_loop(0, n_steps(outer), step, empty)

    return tiled


class TileProgram:
    """A kernel whose only knob is the tile. Option 0 is the default tile."""

    def __init__(self, kernel: TileKernel, facts: dict[str, str]) -> None:
        import jax

        self._kernel = kernel
        self._arguments = [jax.device_put(array) for array in kernel.arguments()]
        function = digest_of(self._lowered(np.zeros(1, np.int64)))
        arguments = shapes_of(self._arguments)
        self._facts = {**facts, "function": function, "arguments": arguments}

    def describe(self) -> Description:
        """Return the graph of the kernel over whole arrays, without a loop."""
        import jax

        kernel = self._kernel
        whole = jax.jit(kernel.whole, keep_unused=True).lower(*self._arguments)
        graph = featurize_module(dump_module(kernel.name, whole))
        arrays = {key: getattr(graph, key) for key in ("node_feat", "node_opcode", "edge_index")}
        n_options = np.array([len(kernel.tiles)], np.int64)
        return Description(n_options, np.zeros(1, np.int64), arrays, self._facts)

    def spell(self, settings: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return config features, (c, 24).

        Args:
            settings: Number of the tile, (c, 1).
        """
        return self._kernel.config_feat(self._kernel.tiles[settings[:, 0]])

    def describe_setting(self, setting: NDArray[np.int64]) -> Decisions:
        """Return the tile of one setting.

        Args:
            setting: Number of the tile, (1,).
        """
        return Decisions({"tile": self._kernel.tiles[int(setting[0])].tolist()})

    def load(self, setting: NDArray[np.int64]) -> Loaded:
        """Compile for the tile of one setting.

        Args:
            setting: Number of the tile, (1,).
        """
        compiled = self._lowered(setting).compile()
        code = code_of(compiled.runtime_executable())
        return Loaded(lambda: compiled(*self._arguments).block_until_ready(), code)

    def whole(self) -> Any:
        """Return the result of the kernel without a loop."""
        import jax

        return jax.jit(self._kernel.whole)(*self._arguments)

    def _lowered(self, setting: NDArray[np.int64]) -> Any:
        import jax

        tile = self._kernel.tiles[int(setting[0])].tolist()
        try:
            return jax.jit(tiled_function(self._kernel, tile)).lower(*self._arguments)
        # The functions of a user's kernel may raise anything.
        except Exception as error:
            reason = error_line(error)
            where = f"{self._kernel.name}: combine or epilogue of tile {tile}"
            raise PipelineError(f"{where}: {reason}") from error
