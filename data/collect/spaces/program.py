"""A JAX program with the decisions of several spaces; each choice is compiled anew.

A space is a run of genes, and says how its part of a choice is applied: compiler options, layouts
by constraints, fusion by barriers. They add up, so any may be chosen with any other. A choice that
is 0 throughout is what a user gets from `jax.jit`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from data.collect.layouts.module import configurable_nodes, dump_module, node_positions
from data.collect.layouts.options import usual_choice
from data.collect.layouts.program import LayoutProgram
from data.collect.measuring.worker import Decided, Description, Told, one_line, open_device
from data.collect.programs.catalogue import ProgramSource, load_program
from data.collect.programs.compiled import as_function, check_jaxlib, digest_of, raw
from data.collect.spaces import options
from data.collect.spaces.barriers import KEEP_BARRIERS, fusible, fusible_groups, with_barriers
from data.collect.tiles.catalogue import catalogue
from data.collect.tiles.subject import find_kernel, open_kernel
from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.hlo.graph import featurize_module

SPACES = ("options", "layouts", "fusion")
TILES = "tiles"  # the one space of a TileKernel
NOTHING = {
    "layouts": "has no dot, convolution or reshape with dimensions to order",
    "fusion": "has no result that could be kept apart",
    TILES: "is no kernel",
}
# Outputs may differ by rounding: by that share of the largest value of each output.
TOLERANCE = {"float64": 1e-6, "float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}


def open_decided(program: str, spaces: tuple[str, ...], device: str | None) -> "SameOutputs":
    """Open a program, or for the space "tiles" a kernel, whose choices must not change its outputs.

    Of a kernel only tiles are decided, and of a function all but tiles.

    Raises:
        UsageError: nothing that was asked for can be decided.
        PipelineError: as `load_program` and `open_kernel`.
    """
    facts = open_device(device)
    if program in catalogue() and TILES not in spaces:
        raise UsageError(f"{undecided(program, spaces, (TILES,))}; expected --space tiles")
    if TILES in spaces:
        try:
            find_kernel(program)
        except PipelineError as error:
            if spaces == (TILES,):
                told = undecided(program, spaces, SPACES)
                raise UsageError(f"{told} ({error}); expected {', '.join(SPACES)}") from error
        else:
            return SameOutputs(open_kernel(program, device))
    of_functions = [space for space in spaces if space != TILES]
    return SameOutputs(DecidedProgram(load_program(program), of_functions, facts))


def undecided(program: str, asked: Sequence[str], decided: Sequence[str]) -> str:
    """Say why some of the spaces that were asked for are none of a program's."""
    left_out = [space for space in asked if space not in decided]
    told = " and ".join(NOTHING[space] for space in left_out if space in NOTHING)
    if tuple(decided) == (TILES,):
        told = "is a kernel, of which tiles alone are decided"
    return f"--space {','.join(left_out)}: {program} {told}"


class Genes(NamedTuple):
    """A space's n_options, groups and nodes, as of Description."""

    n_options: NDArray[np.int64]
    groups: NDArray[np.int64]
    nodes: NDArray[np.int64]


class DecidedProgram:
    """A program and some spaces; a choice is the genes of one space after the other.

    Attributes:
        message: the HLO module before layouts are chosen, which layouts and fusion edit.
    """

    def __init__(
        self, source: ProgramSource, spaces: Sequence[str], facts: dict[str, str] | None = None
    ) -> None:
        """Compile a program once; spaces in which it has nothing to decide are left out.

        Raises:
            UsageError: no space is left.
            PipelineError: as `LayoutProgram`.
        """
        import jax

        self.name, self._facts = source.name, dict(facts or {})
        if set(spaces) != {"options"}:
            check_jaxlib(source.name)
        dumped = dump_module(source)
        self.message = dumped[0]
        has_layouts = "layouts" in spaces and configurable_nodes(self.message)
        self.layouts = LayoutProgram(source, dumped=dumped) if has_layouts else None
        self._function, arguments = source.build()
        self._arguments = jax.device_put(arguments)
        self._lowered = jax.jit(self._function, keep_unused=True).lower(*self._arguments)
        self._facts["function"] = digest_of(self._lowered)
        self.fusible = fusible(self.message)
        nodes, groups = node_positions(self.message, self.fusible), fusible_groups(self.message)
        n_options = len(options.GENES)
        self._genes = {
            "options": Genes(options.N_OPTIONS, np.arange(n_options), np.full(n_options, -1)),
            "fusion": Genes(np.full(len(nodes), 2), groups, nodes),
        }
        if self.layouts:
            known, nodes = self.layouts.describe(), self.layouts.graph["node_config_ids"]
            self._genes["layouts"] = Genes(known.n_options, known.groups, nodes)
        n_genes = {space: len(own.nodes) for space, own in self._genes.items() if space in spaces}
        self._spaces = {space: n_genes[space] for space in spaces if n_genes.get(space)}
        if not self._spaces:
            raise UsageError(f"{undecided(self.name, spaces, ())}; expected --space options")

    def describe(self) -> Description:
        """Return the program's graph, and the genes of all spaces."""
        arrays = dict(self.layouts.graph if self.layouts else self._featurized())
        genes = [self._genes[space] for space in self._spaces]
        groups, n_groups = [], 0
        for own in genes:
            groups.append(own.groups + n_groups)
            n_groups += len(own.groups)
        usual = [np.zeros(n_genes, np.int64) for n_genes in self._spaces.values()]
        if self.layouts:
            usual[list(self._spaces).index("layouts")] = usual_choice(self.layouts.options)
        return Description(
            np.concatenate([own.n_options for own in genes]).astype(np.int64),
            np.concatenate(groups),
            arrays,
            self._facts,
            self._spaces,
            np.concatenate([own.nodes for own in genes]),
            np.concatenate(usual) if self.layouts else None,
        )

    def _featurized(self) -> dict[str, NDArray[Any]]:
        arrays = dict(featurize_module(self.message, source=self.name).arrays)
        return {**arrays, "node_config_ids": self._genes["fusion"].nodes}

    def spell(self, choices: NDArray[np.int64]) -> NDArray[Any]:
        """Return choices (c, g) as the dataset has configs, of the first space that it can hold.

        Layouts (c, k, 18) as rankers read them; of fusion, for the k nodes that may be kept apart,
        a 0 in the first place where one is; of options the number of each gene's value, (c, 24).
        """
        parts = [dict(self._parts(choice)) for choice in choices]
        if self.layouts:
            return self.layouts.spell(np.array([part["layouts"] for part in parts]))
        if "fusion" in self._spaces:
            configs = np.full((len(choices), len(self.fusible), N_LAYOUT_VALUES), -1, np.int8)
            configs[:, :, 0] += np.array([part["fusion"] for part in parts], np.int8)
            return configs
        tiles = np.zeros((len(choices), N_TILE_VALUES), np.float32)
        tiles[:, : choices.shape[1]] = choices
        return tiles

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile under a choice (g,), and run once."""
        parts = dict(self._parts(choice))
        module, chosen = self._module(parts), self._options(parts)
        if module is not None:
            own = self._function, self._arguments
            compiled: Callable[..., Any] = as_function(self.name, module, *own, chosen)
        else:
            compiled = self._compiled(chosen)
        run = partial(_wait, compiled, self._arguments)
        run()
        return run

    def _compiled(self, chosen: dict[str, str | bool]) -> Callable[..., Any]:
        try:
            return self._lowered.compile(compiler_options=chosen)
        except Exception as error:
            raise PipelineError(f"{self.name}: the compiler refuses: {one_line(error)}") from error

    def tell(self, choice: NDArray[np.int64]) -> Told:
        """Say what a choice (g,) decides; nodes by the names of their instructions."""
        parts = dict(self._parts(choice))
        decided: dict[str, Any] = {"options": self._options(parts)}
        if "layouts" in parts:
            assert self.layouts is not None
            decided["layouts"] = self.layouts.tell(parts["layouts"])
        if "fusion" in parts:
            decided["kept_apart"] = [given.name for given in self._kept_apart(parts)]
        return Told({kind: what for kind, what in decided.items() if what}, self._module(parts))

    def _module(self, parts: Mapping[str, NDArray[np.int64]]) -> bytes | None:
        """Return the edited HLO module; None where nothing of it is edited."""
        edited = None
        if "layouts" in parts and parts["layouts"].any():
            assert self.layouts is not None
            config = self.layouts.spell(parts["layouts"][None])[0]
            edited = self.layouts.constrained_module(config)
        kept_apart = frozenset(given.id for given in self._kept_apart(parts))
        if kept_apart:
            edited = with_barriers(edited or self.message, kept_apart)
        return edited.SerializeToString() if edited else None

    def _kept_apart(self, parts: Mapping[str, NDArray[np.int64]]) -> list[Any]:
        chosen = parts.get("fusion", np.zeros(len(self.fusible)))
        return [given for given, one in zip(self.fusible, chosen, strict=True) if one]

    def _options(self, parts: Mapping[str, NDArray[np.int64]]) -> dict[str, str | bool]:
        chosen = options.options_of(parts["options"]) if "options" in parts else {}
        if "fusion" in parts and parts["fusion"].any():
            chosen = options.joined(chosen, KEEP_BARRIERS)
        return chosen

    def _parts(self, choice: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64]]]:
        start = 0
        for space, n_genes in self._spaces.items():
            yield space, choice[start : start + n_genes]
            start += n_genes


def _wait(compiled: Callable[..., Any], arguments: Any) -> Any:
    import jax

    return jax.block_until_ready(compiled(*arguments))


class SameOutputs:
    """A subject that refuses choices under which its outputs are others than the default's."""

    def __init__(self, subject: Decided) -> None:
        self.describe, self.spell, self.tell = subject.describe, subject.spell, subject.tell
        self._load = subject.load
        self._expected: list[NDArray[Any]] | None = None

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile for a choice (g,), and compare what it gives with what the default gives.

        Raises:
            PipelineError: an output differs by more than TOLERANCE; names it and by how much.
        """
        run = self._load(choice)
        if self._expected is None:
            default = self._load(np.zeros_like(choice)) if choice.any() else run
            self._expected = _flat(default())
        for number, (own, expected) in enumerate(zip(_flat(run()), self._expected, strict=True)):
            _check_same(number, own, expected)
        return run


def _flat(outputs: object) -> list[NDArray[Any]]:
    import jax

    return [np.asarray(raw(leaf)) for leaf in jax.tree.leaves(outputs)]


def _check_same(number: int, own: NDArray[Any], expected: NDArray[Any]) -> None:
    tolerance = TOLERANCE.get(str(expected.dtype), 0.0)
    if not tolerance:
        apart = float((own != expected).mean())
    else:
        known = np.isfinite(expected)
        wide, exact = own[known].astype(np.float64), expected[known].astype(np.float64)
        apart = float(
            np.abs(wide - exact).max(initial=0) / max(np.abs(exact).max(initial=0), 1e-30)
        )
        apart = apart if np.array_equal(np.isfinite(own), known) else np.inf
    if not apart <= tolerance:
        raise PipelineError(
            f"output {number} differs from the default's by {apart:.2g} of its largest value; "
            f"expected at most {tolerance:g}"
        )
