"""A JAX program with the decisions of several spaces; each setting is compiled anew.

A space is a run of knobs, and says how its part of a setting is applied: compiler options, layouts
by constraints, fusion by barriers. They add up, so any may be chosen with any other. A setting that
is 0 throughout is what a user gets from `jax.jit`.

A layout is set by a constraint in the HLO module: a custom call that hands its operand on in a
given layout, which the compiler's layout assignment obeys, with copies where neighbours disagree.
On a CPU, whose convolutions and dots are row-major, the cost that is measured is that of those
copies; the compiler's own setting is nearly always the best there.

Over an optimisation barrier behind an instruction nothing is fused. XLA on a CPU dissolves barriers
before it fuses, unless that pass is disabled; with one behind each instruction the program runs
unfused.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.measure.worker import (
    Decisions,
    Description,
    Loaded,
    MeasurableProgram,
    one_line,
    open_device,
)
from autotune.programs.catalogue import ProgramSource, load_program
from autotune.programs.compiled import (
    as_function,
    check_jaxlib,
    code_of,
    digest_of,
    dump_module,
    loaded_module,
    raw,
    shapes_of,
)
from autotune.tiles.catalogue import catalogue, find_kernel
from autotune.tiles.kernel import TileProgram
from common.errors import PipelineError, UsageError
from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.hlo.compiler_options import DISABLED, GENES, N_OPTIONS, joined, options_of
from data.hlo.descriptor import message_class
from data.hlo.graph import featurize_module
from data.hlo.layouts import (
    Order,
    configurable_nodes,
    node_groups,
    node_options,
    node_positions,
    numbered,
    read_row,
    spell_choices,
    usual_choice,
)

Orders = tuple[Order, Order, Order]  # of output, input and kernel; empty = left to the compiler

# Tried first, by knob and value. The order follows the gains on other programs.
COMBINED = (
    {"library": 1, "vector width": 1},
    {"vector width": 1, "LLVM": 1},
    {"library": 1, "vector width": 1, "LLVM": 1, "fusion emitters": 1},
    {"library": 1, "LLVM": 1},
)
KEEP_BARRIERS = {DISABLED: "cse_barrier_expander"}
# Nothing is gained by keeping these apart: they are no work, or never fused.
NO_WORK = frozenset(
    {"parameter", "constant", "iota", "tuple", "get-tuple-element", "while", "opt-barrier"}
)
TARGET, API_VERSION_ORIGINAL = "LayoutConstraint", 1
SPACES = ("options", "layouts", "fusion")
TILES = "tiles"  # the one space of a TileKernel
NOTHING = {
    "layouts": "has no dot, convolution or reshape with dimensions to order",
    "fusion": "has no result that could be kept apart",
    TILES: "is no kernel",
}
# Outputs may differ by rounding: by that share of the largest value of each output.
TOLERANCE = {"float64": 1e-6, "float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}


def menu() -> NDArray[np.int64]:
    """Return the settings that are tried before any search, COMBINED and each alone; (m, g)."""
    alone = [{knob: value} for knob, values in GENES.items() for value in range(1, len(values) + 1)]
    return np.array(
        [[setting.get(knob, 0) for knob in GENES] for setting in (*COMBINED, *alone)], np.int64
    )


def fusible(module: Any) -> list[Any]:
    """Return the instructions of the entry that may be kept apart, in the module's order."""
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    return [given for given in entry.instructions if given.opcode not in NO_WORK]


def edited_module(module: Any, orders: Mapping[int, Orders], kept_apart: Set[int]) -> Any:
    """Return a copy of an HLO module with constraints and barriers.

    Args:
        orders: major-to-minor orders of the tensors of some instructions, by their IDs.
        kept_apart: IDs of the instructions that get a barrier behind them.
    """
    edited = message_class("HloModuleProto")()
    edited.CopyFrom(module)
    for computation in edited.computations:
        if any(given.id in orders or given.id in kept_apart for given in computation.instructions):
            _edit(computation, orders, kept_apart)
    return edited


def _edit(computation: Any, orders: Mapping[int, Orders], kept_apart: Set[int]) -> None:
    shapes = {given.id: given.shape for given in computation.instructions}
    new_ids = count(max(shapes) + 1)
    stands_for = {given_id: given_id for given_id in shapes}  # what its users read by now
    instructions: list[Any] = []

    def append(opcode: str, operand: int, shape: Any, **fields: Any) -> Any:
        new_id = next(new_ids)
        added = message_class("HloInstructionProto")(
            name=f"added.{new_id}", opcode=opcode, id=new_id, operand_ids=[operand], **fields
        )
        added.shape.CopyFrom(shape)
        instructions.append(added)
        return added

    def constrain(operand: int, shape: Any, order: Order) -> int:
        fields = {"custom_call_target": TARGET, "custom_call_api_version": API_VERSION_ORIGINAL}
        call = append("custom-call", operand, shape, constrain_layout=True, **fields)
        call.shape.layout.minor_to_major[:] = order[::-1]
        call.operand_shapes_with_layout.add().CopyFrom(call.shape)
        return int(call.id)

    for given in computation.instructions:
        output, *of_operands = orders.get(given.id, ((), (), ()))
        operands = [stands_for[i] for i in given.operand_ids]
        for slot, order in enumerate(of_operands[: len(operands)]):
            if order:
                shape = shapes[given.operand_ids[slot]]
                operands[slot] = constrain(operands[slot], shape, order)
        given.operand_ids[:] = operands
        instructions.append(given)
        if given.id in kept_apart:
            stands_for[given.id] = append("opt-barrier", given.id, given.shape).id
        if output:
            stands_for[given.id] = constrain(stands_for[given.id], given.shape, output)
    computation.root_id = stands_for[computation.root_id]
    kept = [type(given).FromString(given.SerializeToString()) for given in instructions]
    del computation.instructions[:]
    computation.instructions.extend(kept)


def open_decided(program: str, spaces: Sequence[str], device: str | None) -> "SameOutputs":
    """Do as `open_program`, but refuse settings under which the outputs are others.

    Those of a kernel are compared with what it gives without a loop.
    """
    subject = open_program(program, spaces, device)
    if isinstance(subject, TileProgram):
        return SameOutputs(subject, ("the whole kernel's", subject.whole))
    return SameOutputs(subject)


def open_program(program: str, spaces: Sequence[str], device: str | None) -> MeasurableProgram:
    """Open a program, or for the space "tiles" a kernel, to decide some spaces of it.

    Of a kernel only tiles are decided, and of a function all but tiles.

    Raises:
        UsageError: nothing that was asked for can be decided.
        PipelineError: as `load_program`; a kernel that is not known.
    """
    facts = open_device(device)
    if program in catalogue() and TILES not in spaces:
        raise UsageError(f"{undecided(program, spaces, (TILES,))}; expected {TILES}")
    if TILES in spaces:
        try:
            return TileProgram(find_kernel(program), facts)
        except PipelineError as error:
            if ":" in program and not isinstance(error, UsageError):
                raise  # there is no such module or name
            if set(spaces) == {TILES}:
                reason = f"{undecided(program, spaces, SPACES)}; expected {', '.join(SPACES)}"
                raise UsageError(
                    f"{reason}; or a TileKernel: docs/guides/measure.md has one"
                ) from error
    of_functions = [space for space in spaces if space != TILES]
    return DecidedProgram(load_program(program), of_functions, facts)


def undecided(program: str, asked: Sequence[str], decided: Sequence[str]) -> str:
    """Say why some of the spaces that were asked for are none of a program's."""
    left_out = [space for space in asked if space not in decided]
    reason = " and ".join(NOTHING[space] for space in left_out if space in NOTHING)
    if tuple(decided) == (TILES,):
        reason = "is a kernel, of which tiles alone are decided"
    return f"{','.join(left_out)}: {program} {reason}"


class Knobs(NamedTuple):
    """A space's n_options, groups and nodes, as of Description."""

    n_options: NDArray[np.int64]
    groups: NDArray[np.int64]
    nodes: NDArray[np.int64]


class DecidedProgram:
    """A program and some spaces; a setting is the knobs of one space after the other."""

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
        self.message = dump_module(source)  # which layouts and fusion edit
        self._function, arguments = source.build()
        self._arguments = jax.device_put(arguments)
        self._lowered = jax.jit(self._function, keep_unused=True).lower(*self._arguments)
        own = {"function": digest_of(self._lowered), "arguments": shapes_of(self._arguments)}
        self._facts = {**(facts or {}), **own}
        self._fusible, self.nodes = fusible(self.message), configurable_nodes(self.message)
        self.options = [node_options(node) for node in self.nodes]
        kept_apart = node_positions(self.message, self._fusible)
        alike = [(given.opcode, *given.shape.dimensions) for given in self._fusible]
        knobs = {
            "options": Knobs(N_OPTIONS, np.arange(len(N_OPTIONS)), np.full(len(N_OPTIONS), -1)),
            "layouts": Knobs(
                np.array([len(rows) for rows in self.options], np.int64),
                node_groups(self.nodes),
                np.array([node.position for node in self.nodes], np.int64),
            ),
            "fusion": Knobs(np.full(len(kept_apart), 2), numbered(alike), kept_apart),
        }
        self._knobs = {space: knobs[space] for space in spaces if len(knobs[space].nodes)}
        if not self._knobs:
            reason = undecided(self.name, spaces, ())
            raise UsageError(f"{reason}; expected options, which every function has")
        self._config_ids = self._knobs.get("layouts", knobs["fusion"]).nodes

    def describe(self) -> Description:
        """Return the program's graph, and the knobs of all spaces."""
        graph = featurize_module(self.message, source=self.name)
        n_options, groups, nodes = zip(*self._knobs.values(), strict=True)
        starts = np.cumsum([0, *map(len, groups)])
        usual = {space: np.zeros(len(own.nodes), np.int64) for space, own in self._knobs.items()}
        if "layouts" in usual:
            usual["layouts"] = usual_choice(self.options)
        return Description(
            np.concatenate(n_options),
            np.concatenate([own + start for own, start in zip(groups, starts, strict=False)]),
            {**graph.arrays, "node_config_ids": self._config_ids},
            self._facts,
            {space: len(own.nodes) for space, own in self._knobs.items()},
            np.concatenate(nodes),
            np.concatenate([*usual.values()]) if "layouts" in usual else None,
            graph.instruction_names,
        )

    def spell(self, settings: NDArray[np.int64]) -> NDArray[Any]:
        """Return settings (c, g) as the dataset has configs, of the first space that it can hold.

        Layouts (c, k, 18) as rankers read them; of fusion, for the k nodes that may be kept apart,
        a 0 in the first place where one is; of options the number of each knob's value, (c, 24).
        """
        parts = self._parts(settings)
        if "layouts" in parts:
            return spell_choices(self.options, parts["layouts"])
        if "fusion" in parts:
            configs = np.full((*parts["fusion"].shape, N_LAYOUT_VALUES), -1, np.int8)
            configs[:, :, 0] += parts["fusion"].astype(np.int8)
            return configs
        tiles = np.zeros((len(settings), N_TILE_VALUES), np.float32)
        tiles[:, : settings.shape[1]] = settings
        return tiles

    def load(self, setting: NDArray[np.int64]) -> Loaded:
        """Compile under a setting (g,), and run once."""
        import jax

        effect = self.describe_setting(setting)
        options = effect.decisions.get("options", {})
        compiled: Any
        if effect.module is None:
            try:
                compiled = self._lowered.compile(compiler_options=options)
            except Exception as error:
                line = f"{self.name}: the compiler refuses: {one_line(error)}"
                raise PipelineError(line) from error
            executable = compiled.runtime_executable()
        else:
            executable = loaded_module(self.name, effect.module, options)
            compiled = as_function(self.name, executable, self._function, self._arguments)

        def run() -> Any:
            return jax.block_until_ready(compiled(*self._arguments))

        run()
        return Loaded(run, code_of(executable))

    def describe_setting(self, setting: NDArray[np.int64]) -> Decisions:
        """Say what a setting (g,) decides; nodes by the names of their instructions."""
        parts = self._parts(setting)
        chosen = options_of(parts["options"]) if "options" in parts else {}
        knobs = parts.get("fusion", np.zeros(len(self._fusible)))
        kept_apart = [given for given, one in zip(self._fusible, knobs, strict=True) if one]
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
            return Decisions(decided)
        orders = {given.id: orders for given, orders in laid_out}
        module = edited_module(self.message, orders, {given.id for given in kept_apart})
        return Decisions(decided, module.SerializeToString())

    def _parts(self, settings: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Split settings (…, g) by space."""
        ends = np.cumsum([len(own.nodes) for own in self._knobs.values()])
        return dict(zip(self._knobs, np.split(settings, ends[:-1], axis=-1), strict=True))


def _named_layouts(orders: Orders) -> dict[str, list[int]]:
    """Return the minor-to-major orders of a node's tensors, by their names."""
    named = zip(("output", "input", "kernel"), orders, strict=True)
    return {tensor: list(order[::-1]) for tensor, order in named if order}


class SameOutputs:
    """A subject that refuses settings under which its outputs are others than they should be.

    Args:
        reference: whose outputs they should be, and what makes them; None = the default's.
    """

    def __init__(
        self, subject: MeasurableProgram, reference: tuple[str, Callable[[], object]] | None = None
    ) -> None:
        self.describe, self.spell, self.describe_setting = (
            subject.describe,
            subject.spell,
            subject.describe_setting,
        )
        self._load = subject.load
        self._whose = reference[0] if reference else "the default's"
        self._reference = reference[1] if reference else None
        self._expected: list[NDArray[Any]] | None = None

    def load(self, setting: NDArray[np.int64]) -> Loaded:
        """Compile for a setting (g,), and compare what it gives with what it should give.

        Raises:
            PipelineError: an output differs by more than TOLERANCE; names it and by how much.
        """
        loaded = self._load(setting)
        if self._expected is None and self._reference:
            self._expected = _flat(self._reference())
        elif self._expected is None:
            default = self._load(np.zeros_like(setting)) if setting.any() else loaded
            self._expected = _flat(default.run())
        outputs = _flat(loaded.run())
        is_itself = not (self._reference or setting.any())
        whose = "its own of another call" if is_itself else self._whose
        for number, (own, expected) in enumerate(zip(outputs, self._expected, strict=True)):
            _check_same(f"output {number} differs from {whose}", own, expected)
        return loaded


def _flat(outputs: object) -> list[NDArray[Any]]:
    import jax

    return [np.asarray(raw(leaf)) for leaf in jax.tree.leaves(outputs)]


def _check_same(what: str, own: NDArray[Any], expected: NDArray[Any]) -> None:
    if own.shape != expected.shape:
        raise PipelineError(f"{what}: {list(own.shape)}; expected {list(expected.shape)}")
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
            f"{what} by {apart:.2g} of its largest value; expected at most {tolerance:g}"
        )
