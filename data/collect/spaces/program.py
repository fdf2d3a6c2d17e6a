"""A JAX program with the decisions of several spaces; each choice is compiled anew.

A space is a run of genes, and says how its part of a choice is applied: compiler options, layouts
by constraints, fusion by barriers. They add up, so any may be chosen with any other. A choice that
is 0 throughout is what a user gets from `jax.jit`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from data.collect.layouts import (
    configurable_nodes,
    dump_module,
    node_groups,
    node_options,
    node_positions,
    read_row,
    spell_choices,
    usual_choice,
)
from data.collect.measuring.worker import Description, Subject, Told, one_line, open_device
from data.collect.programs.catalogue import ProgramSource, load_program
from data.collect.programs.compiled import as_function, check_jaxlib, digest_of, raw
from data.collect.spaces.edits import (
    KEEP_BARRIERS,
    Orders,
    edited_module,
    fusible,
    fusible_groups,
)
from data.collect.spaces.options import N_OPTIONS as OPTIONS
from data.collect.spaces.options import joined, options_of
from data.collect.tiles.catalogue import catalogue, find_kernel
from data.collect.tiles.kernel import TileSubject
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


def open_decided(program: str, spaces: Sequence[str], device: str | None) -> "SameOutputs":
    """Do as `open_program`, but refuse choices under which the outputs are others."""
    return SameOutputs(open_program(program, spaces, device))


def open_program(program: str, spaces: Sequence[str], device: str | None) -> Subject:
    """Open a program, or for the space "tiles" a kernel, to decide some spaces of it.

    Of a kernel only tiles are decided, and of a function all but tiles.

    Raises:
        UsageError: nothing that was asked for can be decided.
        PipelineError: as `load_program`; a kernel that is not known.
    """
    facts = open_device(device)
    if program in catalogue() and TILES not in spaces:
        raise UsageError(f"{undecided(program, spaces, (TILES,))}; expected --space tiles")
    if TILES in spaces:
        try:
            return TileSubject(find_kernel(program), facts)
        except PipelineError as error:
            if set(spaces) == {TILES}:
                told = undecided(program, spaces, SPACES)
                raise UsageError(f"{told} ({error}); expected {', '.join(SPACES)}") from error
    of_functions = [space for space in spaces if space != TILES]
    return DecidedProgram(load_program(program), of_functions, facts)


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
        nodes: the k nodes whose layouts may be chosen.
        options: for each of these its (o, 18) int8 legal rows; row 0 leaves it to the compiler.
    """

    def __init__(
        self, source: ProgramSource, spaces: Sequence[str], facts: dict[str, str] | None = None
    ) -> None:
        """Compile a program once; spaces in which it has nothing to decide are left out.

        Raises:
            UsageError: no space is left.
            PipelineError: it cannot be compiled, or this jaxlib was not tested with edited modules.
        """
        import jax

        self.name = source.name
        if set(spaces) != {"options"}:
            check_jaxlib(source.name)
        self.message = dump_module(source)
        self._function, arguments = source.build()
        self._arguments = jax.device_put(arguments)
        self._lowered = jax.jit(self._function, keep_unused=True).lower(*self._arguments)
        self._facts = {**(facts or {}), "function": digest_of(self._lowered)}
        self._fusible, self.nodes = fusible(self.message), configurable_nodes(self.message)
        self.options = [node_options(node) for node in self.nodes]
        kept_apart = node_positions(self.message, self._fusible)
        genes = {
            "options": Genes(OPTIONS, np.arange(len(OPTIONS)), np.full(len(OPTIONS), -1)),
            "layouts": Genes(
                np.array([len(rows) for rows in self.options], np.int64),
                node_groups(self.nodes),
                np.array([node.position for node in self.nodes], np.int64),
            ),
            "fusion": Genes(np.full(len(kept_apart), 2), fusible_groups(self.message), kept_apart),
        }
        self._genes = {space: genes[space] for space in spaces if len(genes[space].nodes)}
        if not self._genes:
            raise UsageError(f"{undecided(self.name, spaces, ())}; expected --space options")
        self._config_ids = self._genes.get("layouts", genes["fusion"]).nodes

    def describe(self) -> Description:
        """Return the program's graph, and the genes of all spaces."""
        graph = featurize_module(self.message, source=self.name)
        n_options, groups, nodes = zip(*self._genes.values(), strict=True)
        starts = np.cumsum([0, *map(len, groups)])
        usual = {space: np.zeros(len(own.nodes), np.int64) for space, own in self._genes.items()}
        if "layouts" in usual:
            usual["layouts"] = usual_choice(self.options)
        return Description(
            np.concatenate(n_options),
            np.concatenate([own + start for own, start in zip(groups, starts, strict=False)]),
            {**graph.arrays, "node_config_ids": self._config_ids},
            self._facts,
            {space: len(own.nodes) for space, own in self._genes.items()},
            np.concatenate(nodes),
            np.concatenate([*usual.values()]) if "layouts" in usual else None,
        )

    def spell(self, choices: NDArray[np.int64]) -> NDArray[Any]:
        """Return choices (c, g) as the dataset has configs, of the first space that it can hold.

        Layouts (c, k, 18) as rankers read them; of fusion, for the k nodes that may be kept apart,
        a 0 in the first place where one is; of options the number of each gene's value, (c, 24).
        """
        parts = self._parts(choices)
        if "layouts" in parts:
            return spell_choices(self.options, parts["layouts"])
        if "fusion" in parts:
            configs = np.full((*parts["fusion"].shape, N_LAYOUT_VALUES), -1, np.int8)
            configs[:, :, 0] += parts["fusion"].astype(np.int8)
            return configs
        tiles = np.zeros((len(choices), N_TILE_VALUES), np.float32)
        tiles[:, : choices.shape[1]] = choices
        return tiles

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile under a choice (g,), and run once."""
        import jax

        told = self.tell(choice)
        chosen = told.decisions.get("options", {})
        compiled: Callable[..., Any]
        if told.module is None:
            try:
                compiled = self._lowered.compile(compiler_options=chosen)
            except Exception as error:
                line = f"{self.name}: the compiler refuses: {one_line(error)}"
                raise PipelineError(line) from error
        else:
            own = self._function, self._arguments
            compiled = as_function(self.name, told.module, *own, chosen)

        def run() -> Any:
            return jax.block_until_ready(compiled(*self._arguments))

        run()
        return run

    def tell(self, choice: NDArray[np.int64]) -> Told:
        """Say what a choice (g,) decides; nodes by the names of their instructions."""
        parts = self._parts(choice)
        chosen = options_of(parts["options"]) if "options" in parts else {}
        genes = parts.get("fusion", np.zeros(len(self._fusible)))
        kept_apart = [given for given, one in zip(self._fusible, genes, strict=True) if one]
        if kept_apart:
            chosen = joined(chosen, KEEP_BARRIERS)
        rows = spell_choices(self.options, parts["layouts"][None])[0] if "layouts" in parts else ()
        laid_out = [
            (node.instruction, read_row(row))
            for node, row in zip(self.nodes, rows, strict=False)  # no rows where layouts are not
            if (row >= 0).any()
        ]
        decisions = {
            "options": chosen,
            "layouts": {given.name: _named_layouts(orders) for given, orders in laid_out},
            "kept_apart": [given.name for given in kept_apart],
        }
        decided = {kind: what for kind, what in decisions.items() if what}
        if not laid_out and not kept_apart:
            return Told(decided)
        orders = {given.id: orders for given, orders in laid_out}
        module = edited_module(self.message, orders, {given.id for given in kept_apart})
        return Told(decided, module.SerializeToString())

    def _parts(self, choices: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Split choices (…, g) by space."""
        ends = np.cumsum([len(own.nodes) for own in self._genes.values()])
        return dict(zip(self._genes, np.split(choices, ends[:-1], axis=-1), strict=True))


def _named_layouts(orders: Orders) -> dict[str, list[int]]:
    """Return the minor-to-major orders of a node's tensors, by their names."""
    named = zip(("output", "input", "kernel"), orders, strict=True)
    return {tensor: list(order[::-1]) for tensor, order in named if order}


class SameOutputs:
    """A subject that refuses choices under which its outputs are others than the default's."""

    def __init__(self, subject: Subject) -> None:
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
