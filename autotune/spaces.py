"""A program with knobs of several spaces. Each setting is compiled separately.

A space is a sequence of knobs. Compiler options are passed to the compiler, layouts become
constraints, and fusion is prevented by barriers. The spaces can be combined. The setting with only
zeros is the default of `jax.jit`.

A layout is set by a constraint in the HLO module: a custom call that returns its operand in a fixed
layout. The compiler's layout assignment obeys the constraint, and adds copies if neighbours have
other layouts. Convolutions and dots on a CPU are row-major, so the measured cost is the time of
these copies. The default is nearly always the best layout of a CPU.

XLA does not fuse over an optimisation barrier after an instruction. On a CPU it removes barriers
before it fuses, unless that pass is disabled. A program with a barrier after each instruction runs
unfused.
"""

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
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
from autotune.programs.catalogue import NO_INPUTS, ProgramInputs, ProgramSource
from autotune.programs.compiled import (
    code_of,
    digest_of,
    dump_module,
    export_flat,
    lower_program,
    shapes_of,
    share_finite,
    values_digest,
    with_module,
)
from autotune.programs.files import load_program
from autotune.same_outputs import SameOutputs
from autotune.tiles.catalogue import catalogue, find_kernel
from autotune.tiles.kernel import TileProgram
from common.errors import PipelineError, UsageError
from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.hlo.compiler_options import DISABLED, GENES, N_OPTIONS, Options, joined, options_of
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
from data.hlo.parse import check_jaxlib

# Orders of output, input and kernel. An empty order leaves the layout to the compiler.
Orders = tuple[Order, Order, Order]

# The first settings, by knob and value. The order follows the gains on other programs.
COMBINED = (
    {"library": 1, "vector width": 1},
    {"vector width": 1, "LLVM": 1},
    {"library": 1, "vector width": 1, "LLVM": 1, "fusion emitters": 1},
    {"library": 1, "LLVM": 1},
)
KEEP_BARRIERS = {DISABLED: "cse_barrier_expander"}
# A barrier after one of these changes nothing: they compute nothing, or are never fused.
NO_WORK = frozenset(
    {"parameter", "constant", "iota", "tuple", "get-tuple-element", "while", "opt-barrier"}
)
TARGET, API_VERSION_ORIGINAL = "LayoutConstraint", 1
SPACES = ("options", "layouts", "fusion")
# The only space of a TileKernel.
TILES = "tiles"
NOTHING = {
    "layouts": "has no dot, convolution or reshape with dimensions to order",
    "fusion": "has no result that could be kept apart",
    TILES: "is no kernel",
}


def menu() -> NDArray[np.int64]:
    """Return the first settings of a search: `COMBINED`, then each knob alone, (m, g)."""
    single = [
        {knob: value} for knob, values in GENES.items() for value in range(1, len(values) + 1)
    ]
    return np.array(
        [[setting.get(knob, 0) for knob in GENES] for setting in (*COMBINED, *single)], np.int64
    )


def fusible(module: Any) -> list[Any]:
    """Return the entry's instructions that may have a barrier, in the module's order."""
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    return [op for op in entry.instructions if op.opcode not in NO_WORK]


def edited_module(module: Any, orders: Mapping[int, Orders], kept_apart: Set[int]) -> Any:
    """Return a copy of an HLO module with constraints and barriers.

    Args:
        orders: Major-to-minor orders of the tensors of instructions, by instruction ID.
    """
    edited = message_class("HloModuleProto")()
    edited.CopyFrom(module)
    for computation in edited.computations:
        if any(op.id in orders or op.id in kept_apart for op in computation.instructions):
            _edit(computation, orders, kept_apart)
    return edited


def _edit(computation: Any, orders: Mapping[int, Orders], kept_apart: Set[int]) -> None:
    shapes = {op.id: op.shape for op in computation.instructions}
    new_ids = count(max(shapes) + 1)
    # The instruction that the users of an instruction read, by ID.
    replacement = {i: i for i in shapes}
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

    for op in computation.instructions:
        output, *of_operands = orders.get(op.id, ((), (), ()))
        operands = [replacement[i] for i in op.operand_ids]
        for slot, order in enumerate(of_operands[: len(operands)]):
            if order:
                shape = shapes[op.operand_ids[slot]]
                operands[slot] = constrain(operands[slot], shape, order)
        op.operand_ids[:] = operands
        instructions.append(op)
        if op.id in kept_apart:
            replacement[op.id] = append("opt-barrier", op.id, op.shape).id
        if output:
            replacement[op.id] = constrain(replacement[op.id], op.shape, output)
    computation.root_id = replacement[computation.root_id]
    kept = [type(op).FromString(op.SerializeToString()) for op in instructions]
    del computation.instructions[:]
    computation.instructions.extend(kept)


def open_decided(
    program: str, spaces: Sequence[str], device: str | None, inputs: ProgramInputs = NO_INPUTS
) -> SameOutputs:
    """Open a program that rejects settings with wrong outputs.

    The outputs of a function are compared with the default's. The outputs of a kernel are compared
    with the kernel without a loop.

    Args:
        device: "cpu", "gpu" or "tpu". None lets JAX choose.
    """
    measurable = open_program(program, spaces, device, inputs)
    if isinstance(measurable, TileProgram):
        return SameOutputs(measurable, ("the whole kernel's", measurable.whole))
    return SameOutputs(measurable)


def open_program(
    program: str, spaces: Sequence[str], device: str | None, inputs: ProgramInputs = NO_INPUTS
) -> MeasurableProgram:
    """Open a program or a kernel with the knobs of some spaces.

    A kernel has only the space "tiles". A function has all other spaces.

    Args:
        program: Name in a catalogue, "module:name", FILE or FILE#MODULE.
        device: "cpu", "gpu" or "tpu". None lets JAX choose.

    Raises:
        UsageError: The program has no knobs in these spaces.
    """
    facts = open_device(device)
    if program in catalogue() and TILES not in spaces:
        raise UsageError(f"{undecided(program, spaces, (TILES,))}; expected {TILES}")
    if TILES in spaces:
        try:
            return TileProgram(find_kernel(program), facts)
        except PipelineError as error:
            if ":" in program and not isinstance(error, UsageError):
                # There is no such module or name.
                raise
            if set(spaces) == {TILES}:
                reason = f"{undecided(program, spaces, SPACES)}; expected {', '.join(SPACES)}"
                raise UsageError(
                    f"{reason}; or a TileKernel: docs/guides/measure.md has one"
                ) from error
    of_functions = [space for space in spaces if space != TILES]
    return DecidedProgram(load_program(program, inputs), of_functions, facts)


def undecided(program: str, spaces: Sequence[str], decided: Sequence[str]) -> str:
    """Return the reason why a program has no knobs in some spaces."""
    left_out = [space for space in spaces if space not in decided]
    reason = " and ".join(NOTHING[space] for space in left_out if space in NOTHING)
    if tuple(decided) == (TILES,):
        reason = "is a kernel, which has only the space tiles"
    return f"{','.join(left_out)}: {program} {reason}"


class Knobs(NamedTuple):
    """The knobs of one space. The fields are the same as in `Description`."""

    n_options: NDArray[np.int64]
    groups: NDArray[np.int64]
    nodes: NDArray[np.int64]


class DecidedProgram:
    """A function with the knobs of some spaces. A setting has the knobs of all spaces in order.

    Args:
        source: The function. It is compiled once.
        spaces: Names of the spaces. Spaces without knobs are left out.

    Raises:
        UsageError: No space has knobs.
    """

    def __init__(
        self, source: ProgramSource, spaces: Sequence[str], facts: dict[str, str] | None = None
    ) -> None:
        import jax

        self.name = source.name
        if set(spaces) != {"options"}:
            check_jaxlib(source.name)
        self._function, self._arguments, self._lowered = lower_program(source)
        self._is_file = source.module is not None
        # Layouts and fusion edit this module. The one of a file has its names and its order.
        self.message = source.module() if source.module else dump_module(self.name, self._lowered)
        if source.redraw and (share := share_finite(self._default(*self._arguments))) < 1:
            other = jax.device_put(source.redraw())
            if share_finite(self._default(*other)) > share:
                self._arguments = other
        digests = {"function": digest_of(self._lowered), "arguments": shapes_of(self._arguments)}
        if self._is_file:
            digests["values"] = values_digest(self._arguments)
        self._facts = {**(facts or {}), **digests}
        self._fusible, self.nodes = fusible(self.message), configurable_nodes(self.message)
        self.options = [node_options(node) for node in self.nodes]
        kept_apart = node_positions(self.message, self._fusible)
        shapes = [(op.opcode, *op.shape.dimensions) for op in self._fusible]
        knobs = {
            "options": Knobs(N_OPTIONS, np.arange(len(N_OPTIONS)), np.full(len(N_OPTIONS), -1)),
            "layouts": Knobs(
                np.array([len(rows) for rows in self.options], np.int64),
                node_groups(self.nodes),
                np.array([node.position for node in self.nodes], np.int64),
            ),
            "fusion": Knobs(np.full(len(kept_apart), 2), numbered(shapes), kept_apart),
        }
        self._knobs = {space: knobs[space] for space in spaces if len(knobs[space].nodes)}
        if not self._knobs:
            reason = undecided(self.name, spaces, ())
            raise UsageError(f"{reason}; expected options, which every function has")
        self._config_ids = self._knobs.get("layouts", knobs["fusion"]).nodes

    def describe(self) -> Description:
        """Return the graph of the program and the knobs of all spaces."""
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
        """Return config features as the dataset has them, for the first of three spaces.

        Layouts come first, (c, k, 18). Fusion comes second, (c, k, 18): the first value of a node
        is 0 if the node has a barrier. Options come last, (c, 24): the option of each knob.

        Args:
            settings: Options of the knobs, (c, g).
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
        """Compile for one setting and run it once.

        Args:
            setting: Option of each knob, (g,).
        """
        import jax

        decided, edited = self._decide(setting)
        lowered, arguments = self._lowered, self._arguments
        if edited is not None:
            exported = with_module(self.name, self._signature, edited)
            # An export takes and returns the arrays of the function's trees.
            arguments = jax.tree.leaves(arguments)
            lowered = jax.jit(exported.call, keep_unused=True).lower(*arguments)
        compiled = self._compile(lowered, decided.get("options", {})) if decided else self._default

        def run() -> Any:
            return jax.block_until_ready(compiled(*arguments))

        run()
        return Loaded(run, code_of(compiled.runtime_executable()))

    @cached_property
    def _default(self) -> Any:
        return self._compile(self._lowered, {})

    @cached_property
    def _signature(self) -> Any:
        return export_flat(self.name, self._function, self._arguments)

    @cached_property
    def _artifact(self) -> bytes:
        return self._artifact_of(self.message.SerializeToString())

    def _artifact_of(self, module: bytes) -> bytes:
        return bytes(with_module(self.name, self._signature, module).serialize())

    def _compile(self, lowered: Any, options: Options) -> Any:
        try:
            return lowered.compile(compiler_options=dict(options))
        except Exception as error:
            line = f"{self.name}: the compiler refuses: {one_line(error)}"
            raise PipelineError(line) from error

    def describe_setting(self, setting: NDArray[np.int64]) -> Decisions:
        """Return the decisions of one setting. Nodes have the names of their instructions.

        Args:
            setting: Option of each knob, (g,).
        """
        decided, module = self._decide(setting)
        if module is not None:
            return Decisions(decided, self._artifact_of(module))
        return Decisions(decided, self._artifact if self._is_file else None)

    def _decide(self, setting: NDArray[np.int64]) -> tuple[dict[str, Any], bytes | None]:
        """Return the decisions of a setting, and its edited HLO module if there is one."""
        parts = self._parts(setting)
        chosen = options_of(parts["options"]) if "options" in parts else {}
        knobs = parts.get("fusion", np.zeros(len(self._fusible)))
        kept_apart = [op for op, one in zip(self._fusible, knobs, strict=True) if one]
        if kept_apart:
            chosen = joined(chosen, KEEP_BARRIERS)
        rows = spell_choices(self.options, parts["layouts"][None])[0] if "layouts" in parts else ()
        laid_out = [
            (node.instruction, read_row(row))
            # Without the space of layouts there are no rows.
            for node, row in zip(self.nodes, rows, strict=False)
            if (row >= 0).any()
        ]
        decisions = {
            "options": chosen,
            "layouts": {op.name: _named_layouts(orders) for op, orders in laid_out},
            "kept_apart": [op.name for op in kept_apart],
        }
        decided = {kind: value for kind, value in decisions.items() if value}
        if not laid_out and not kept_apart:
            return decided, None
        orders = {op.id: orders for op, orders in laid_out}
        module = edited_module(self.message, orders, {op.id for op in kept_apart})
        return decided, module.SerializeToString()

    def _parts(self, settings: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        ends = np.cumsum([len(own.nodes) for own in self._knobs.values()])
        return dict(zip(self._knobs, np.split(settings, ends[:-1], axis=-1), strict=True))


def _named_layouts(orders: Orders) -> dict[str, list[int]]:
    """Return minor-to-major orders by tensor."""
    named = zip(("output", "input", "kernel"), orders, strict=True)
    return {tensor: list(order[::-1]) for tensor, order in named if order}
