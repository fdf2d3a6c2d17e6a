"""A program with knobs of several spaces. Each setting is compiled separately.

A space is a sequence of knobs. Compiler options are passed to the compiler, layouts become
constraints, and fusion is prevented by barriers (`autotune.edits`). The spaces can be combined. The
setting with only zeros is the default of `jax.jit`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.edits import Orders, edited_module, fusible, fusible_in_bodies
from autotune.measure.program import (
    WHOLE_PROGRAM,
    Decisions,
    Description,
    Knobs,
    Loaded,
    MeasurableProgram,
)
from autotune.measure.worker import one_line, open_device
from autotune.programs.catalogue import NO_INPUTS, ProgramInputs, ProgramSource
from autotune.programs.compiled import (
    accept_extra_options,
    code_of,
    dump_module,
    export_flat,
    facts_of,
    lower_program,
    share_finite,
    with_module,
)
from autotune.programs.files import load_program
from autotune.same_outputs import SameOutputs
from common.errors import PipelineError, UsageError
from common.progress import log
from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.hlo.choices import Choices
from data.hlo.compiler_options import DISABLED, GENES, N_OPTIONS, Options, joined, options_of
from data.hlo.graph import featurize_module
from data.hlo.layouts import (
    configurable_nodes,
    node_groups,
    node_options,
    node_positions,
    numbered,
    read_row,
    spell_choices,
    usual_choice,
)
from data.hlo.parse import check_jaxlib

SPACES = ("options", "layouts", "fusion")
# Why a function may have no knobs in a space.
WITHOUT_KNOBS = {
    "layouts": "has no dot, convolution or reshape with dimensions to order",
    "fusion": "has no result that could be kept apart",
}
KEEP_BARRIERS = {DISABLED: "cse_barrier_expander"}


def open_program(
    program: str,
    spaces: Sequence[str],
    device: str | None = None,
    inputs: ProgramInputs = NO_INPUTS,
    *,
    has_checks: bool = True,
) -> MeasurableProgram:
    """Open a program with the knobs of some spaces.

    Args:
        program: Name in the catalogue, "module:function", FILE or FILE#MODULE.
        device: "cpu", "gpu" or "tpu". None lets JAX choose.
        has_checks: Whether settings are rejected if their outputs differ from the default's.
    """
    facts = open_device(device)
    program_with_knobs = DecidedProgram(load_program(program, inputs), spaces, facts)
    return SameOutputs(program_with_knobs) if has_checks else program_with_knobs


def why_without(program: str, spaces: Sequence[str]) -> str:
    """Return the reason why a program has no knobs in some spaces."""
    reasons = " and ".join(WITHOUT_KNOBS[space] for space in spaces)
    return f"{','.join(spaces)}: {program} {reasons}"


@cache
def known_options() -> NDArray[np.int64]:
    """Return the number of options of each compiler knob, (g,): 1 if this XLA lacks the knob."""
    import jax

    accept_extra_options()
    probe, n_options = jax.jit(lambda: 0).lower(), N_OPTIONS.copy()
    for knob, values in enumerate(GENES.values()):
        try:
            for options in values:
                probe.compile(compiler_options=dict(options))
        except Exception:
            n_options[knob] = 1
    return n_options


def note_unknown_options(description: Description) -> None:
    """Log the compiler options that no setting has, because this XLA lacks them."""
    knobs = description.knobs.get("options")
    genes = zip(GENES.values(), knobs.n_options if knobs else (), strict=False)
    if names := {name for values, n in genes if n <= len(values) for name in values[0]}:
        release = f"the XLA of jaxlib {description.facts.get('jaxlib', '')}"
        log.info(f"note: left out, because {release} lacks them: {', '.join(sorted(names))}")


class DecidedProgram:
    """A function with the knobs of some spaces. Spaces without knobs are left out.

    Args:
        facts: Facts of the device for the description.

    Raises:
        UsageError: No space has knobs.
    """

    def __init__(
        self, source: ProgramSource, spaces: Sequence[str], facts: Mapping[str, str] | None = None
    ) -> None:
        self.name = source.name
        if set(spaces) != {"options"}:
            check_jaxlib(source.name)
        self._function, self._arguments, self._lowered = lower_program(source)
        self._is_file = source.module is not None
        # Layouts and fusion edit this module. The one of a file has its names and its order.
        self.message = source.module() if source.module else dump_module(self.name, self._lowered)
        self._redraw_arguments(source)
        arguments_facts = facts_of(self._lowered, self._arguments, has_values=self._is_file)
        self._facts = {**(facts or {}), **arguments_facts}
        self._fusible, self.nodes = fusible(self.message), configurable_nodes(self.message)
        self._ids_in_bodies: set[int] = set()
        if "fusion" in spaces:
            self._fusible = self._with_bodies()
        self.options = [node_options(node) for node in self.nodes]
        knobs = self._all_knobs()
        self._knobs = {space: knobs[space] for space in spaces if len(knobs[space].nodes)}
        if not self._knobs:
            reason = why_without(self.name, spaces)
            raise UsageError(f"{reason}; expected options, which every function has")
        self._config_ids = self._knobs.get("layouts", knobs["fusion"]).nodes

    def _redraw_arguments(self, source: ProgramSource) -> None:
        """Use other arguments if more of their outputs are finite."""
        import jax

        if source.redraw and (share := share_finite(self._default(*self._arguments))) < 1:
            redrawn = jax.device_put(source.redraw())
            if share_finite(self._default(*redrawn)) > share:
                self._arguments = redrawn

    def _with_bodies(self) -> list[Any]:
        """Return all instructions that may have a barrier, in the module's order.

        XLA compiles a loop of few bytes as one function, which may have no barrier.
        """
        if not (in_bodies := fusible_in_bodies(self.message)):
            return self._fusible
        # The fewest bytes that each loop can have with a barrier.
        ids = {op.id for op in in_bodies}
        ops = [[op.id for op in c.instructions if op.id in ids] for c in self.message.computations]
        module = edited_module(self.message, {}, {own[0] for own in ops if own})
        try:
            self._compile(self._lower_module(module.SerializeToString()), KEEP_BARRIERS)
        except PipelineError:
            return self._fusible
        self._ids_in_bodies = ids
        able = [*self._fusible, *in_bodies]
        places = node_positions(self.message, able)
        return [able[place] for place in np.argsort(places)]

    def _lower_module(self, module: bytes) -> Any:
        import jax

        exported = with_module(self.name, self._signature, module)
        # An export takes and returns the arrays of the function's trees.
        arguments = jax.tree.leaves(self._arguments)
        return jax.jit(exported.call, keep_unused=True).lower(*arguments)

    def _all_knobs(self) -> dict[str, Knobs]:
        whole_program = np.full(len(N_OPTIONS), WHOLE_PROGRAM)
        n_rows = np.array([len(rows) for rows in self.options], np.int64)
        laid_out = np.array([node.position for node in self.nodes], np.int64)
        kept_apart = node_positions(self.message, self._fusible)
        shapes = [(op.opcode, *op.shape.dimensions) for op in self._fusible]
        return {
            "options": Knobs(known_options(), np.arange(len(N_OPTIONS)), whole_program),
            "layouts": Knobs(n_rows, node_groups(self.nodes), laid_out),
            "fusion": Knobs(np.full(len(kept_apart), 2), numbered(shapes), kept_apart),
        }

    @cached_property
    def _description(self) -> Description:
        graph = featurize_module(self.message, source=self.name)
        arrays = {**graph.arrays, "node_config_ids": self._config_ids}
        description = Description(self._knobs, arrays, self._facts, names=graph.instruction_names)
        if "layouts" not in self._knobs:
            return description
        usual = np.zeros(len(description.n_options), np.int64)
        usual[description.slices["layouts"]] = usual_choice(self.options)
        return replace(description, usual=usual)

    def describe(self) -> Description:
        """Return the graph of the program and the knobs of all spaces."""
        return self._description

    def spell(self, settings: Choices) -> NDArray[Any]:
        """Return config features of settings (c, g), for the first of three spaces.

        Layouts come first, (c, k, 18). Fusion comes second, (c, k, 18): the first value of a node
        is 0 if the node has a barrier. Options come last, (c, 24): the option of each knob.
        """
        parts = self._parts(settings)
        if "layouts" in parts:
            return spell_choices(self.options, parts["layouts"])
        if "fusion" in parts:
            configs = np.full((*parts["fusion"].shape, N_LAYOUT_VALUES), -1, np.int8)
            configs[:, :, 0] += parts["fusion"].astype(np.int8)
            return configs
        rows = np.zeros((len(settings), N_TILE_VALUES), np.float32)
        rows[:, : settings.shape[1]] = settings
        return rows

    def load(self, setting: Choices) -> Loaded:
        """Compile for one setting (g,) and run it once."""
        import jax

        decisions, module = self._decide(setting)
        lowered, arguments = self._lowered, self._arguments
        if module is not None:
            lowered, arguments = self._lower_module(module), jax.tree.leaves(arguments)
        options = decisions.get("options", {})
        executable = self._compile(lowered, options) if decisions else self._default

        def run() -> Any:
            return jax.block_until_ready(executable(*arguments))

        run()
        return Loaded(run, code_of(executable.runtime_executable()))

    @cached_property
    def _default(self) -> Any:
        return self._compile(self._lowered, {})

    @cached_property
    def _signature(self) -> Any:
        return export_flat(self.name, self._function, self._arguments)

    def _compile(self, lowered: Any, options: Options) -> Any:
        try:
            return lowered.compile(compiler_options=dict(options))
        except Exception as error:
            line = f"{self.name}: the compiler refuses: {one_line(error)}"
            raise PipelineError(line) from error

    def describe_setting(self, setting: Choices) -> Decisions:
        """Return the decisions of one setting (g,). Nodes have the names of their instructions."""
        decisions, module = self._decide(setting)
        if module is None and not self._is_file:
            return Decisions(decisions)
        module = module or self.message.SerializeToString()
        return Decisions(decisions, with_module(self.name, self._signature, module).serialize())

    def _decide(self, setting: Choices) -> tuple[dict[str, Any], bytes | None]:
        """Return the decisions of a setting, and its edited HLO module if there is one."""
        parts = self._parts(setting)
        barriers = parts.get("fusion", np.zeros(len(self._fusible)))
        kept_apart = [op for op, is_apart in zip(self._fusible, barriers, strict=True) if is_apart]
        choice = parts.get("options", np.zeros(len(GENES), np.int64)).copy()
        if any(op.id in self._ids_in_bodies for op in kept_apart):
            # A loop that is compiled as one function may have no barrier.
            choice[[*GENES].index("small loops")] = 0
        options = options_of(choice)
        if kept_apart:
            options = joined(options, KEEP_BARRIERS)
        laid_out = self._orders(parts["layouts"]) if "layouts" in parts else []
        decisions = {
            "options": options,
            "layouts": {op.name: _named_layouts(orders) for op, orders in laid_out},
            "kept_apart": [op.name for op in kept_apart],
        }
        decisions = {kind: value for kind, value in decisions.items() if value}
        if not laid_out and not kept_apart:
            return decisions, None
        orders = {op.id: orders for op, orders in laid_out}
        module = edited_module(self.message, orders, {op.id for op in kept_apart})
        return decisions, module.SerializeToString()

    def _orders(self, layouts: Choices) -> list[tuple[Any, Orders]]:
        """Return the instructions whose layouts are decided, with the orders of their tensors."""
        rows = spell_choices(self.options, layouts[None])[0]
        return [
            (node.instruction, read_row(row))
            for node, row in zip(self.nodes, rows, strict=True)
            if (row >= 0).any()
        ]

    def _parts(self, settings: Choices) -> dict[str, Choices]:
        return {space: settings[..., place] for space, place in self._description.slices.items()}


def _named_layouts(orders: Orders) -> dict[str, list[int]]:
    """Return minor-to-major orders by tensor."""
    by_tensor = zip(("output", "input", "kernel"), orders, strict=True)
    return {tensor: list(order[::-1]) for tensor, order in by_tensor if order}
