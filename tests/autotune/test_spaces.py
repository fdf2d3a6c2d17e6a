"""Decisions on a real program are applied and described, and do not change its outputs."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import spaces
from autotune.collect import program_digest
from autotune.edits import edited_module, fusible, fusible_in_bodies
from autotune.measure.program import Decisions, Description, Knobs, Loaded
from autotune.measure.worker import Session
from autotune.optimize.strategies import menu
from autotune.programs.catalogue import ProgramSource, rows
from autotune.programs.files import load_program
from autotune.same_outputs import SameOutputs
from autotune.spaces import DecidedProgram, open_program
from common.errors import PipelineError, UsageError
from data.hlo.compiler_options import GENES, extra_flag, joined
from data.hlo.layouts import CONFIGURABLE, read_row

jax = pytest.importorskip("jax", reason="pip install -r requirements-collect.txt")


def source_of(function, *given, name="mine"):  # type: ignore[no-untyped-def]
    return ProgramSource(name, name, "xla", lambda: (function, given))


def network(x, w):  # type: ignore[no-untyped-def]
    from jax import numpy as jnp

    hidden = jnp.tanh(x @ w) * 2
    return {"out": (hidden - hidden.mean(0)) @ w.T, "norm": jnp.exp(hidden).sum()}


def arguments() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(8, 16)).astype(np.float32), rng.normal(size=(16, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def program() -> DecidedProgram:
    return DecidedProgram(source_of(network, *arguments()), ("options", "layouts", "fusion"))


def choice_of(program: DecidedProgram, **knobs: object) -> NDArray[np.int64]:
    """A setting with some knobs of a space set, by name: an array, or 1 for all."""
    description = program.describe()
    setting = np.zeros(len(description.n_options), np.int64)
    for space, value in knobs.items():
        setting[description.slices[space]] = value
    return setting


def test_every_space_has_its_knobs(program: DecidedProgram) -> None:
    description, able = program.describe(), fusible(program.message)
    assert list(description.knobs) == ["options", "layouts", "fusion"]
    assert [*description.slices.values()][-1].stop == len(description.n_options)
    assert len(description.knobs["fusion"].nodes) == len(able) > 5
    assert (description.n_options >= 1).all()
    whole, laid_out, kept_apart = (knobs.nodes.tolist() for knobs in description.knobs.values())
    names = [given.opcode for c in program.message.computations for given in c.instructions]
    assert set(whole) == {-1}
    assert {names[node] for node in laid_out} <= set(CONFIGURABLE)
    assert [names[node] for node in kept_apart] == [op.opcode for op in able]


def test_the_usual_choice_names_what_the_compiler_does_by_itself(program: DecidedProgram) -> None:
    usual = program.describe().usual
    assert usual is not None and usual.any()
    config = program.spell(usual[None])[0]
    orders = [order for row in config for order in read_row(row)]
    assert all(order == tuple(range(len(order))) for order in orders)
    # Most nodes have the layouts of several tensors.
    assert sum(map(bool, orders)) > len(config)
    told = program.describe_setting(usual).decisions
    assert told.keys() == {"layouts"}


@pytest.mark.parametrize("space", ["options", "fusion"])
def test_settings_are_spelled_as_the_dataset_has_configs(space: str) -> None:
    program = DecidedProgram(source_of(network, *arguments()), (space,))
    n_knobs = len(program.describe().knobs[space].nodes)
    settings = np.zeros((2, n_knobs), np.int64)
    settings[1, -1] = 1
    configs = program.spell(settings)
    assert configs.shape == ((2, 24) if space == "options" else (2, n_knobs, 18))
    (changed,) = np.argwhere(configs[1] != configs[0]).tolist()
    assert changed == ([n_knobs - 1] if space == "options" else [n_knobs - 1, 0])
    ids = program.describe().arrays["node_config_ids"]
    assert space == "options" or (len(ids) == n_knobs and (np.diff(ids) > 0).all())


def test_each_space_leaves_the_outputs_as_they_are(program: DecidedProgram) -> None:
    checked = SameOutputs(program)
    for knobs in (
        {"options": menu()[0]},
        {"layouts": 1},
        {"fusion": 1},
        {"options": menu()[-1], "layouts": 1, "fusion": 1},
    ):
        setting = choice_of(program, **knobs)
        checked.load(np.minimum(setting, program.describe().n_options - 1)).run()


def test_a_choice_is_described_by_name(program: DecidedProgram) -> None:
    assert program.describe_setting(choice_of(program)) == Decisions({}, None)
    library = (np.array([*GENES]) == "library").astype(np.int64)
    told = program.describe_setting(choice_of(program, options=library))
    assert told == Decisions({"options": {"xla_disable_hlo_passes": "dot-library-rewriter"}}, None)
    kept = np.zeros(len(program.describe().knobs["fusion"].nodes), np.int64)
    kept[2] = 1
    told = program.describe_setting(choice_of(program, options=library, fusion=kept))
    assert told.decisions["kept_apart"] == [fusible(program.message)[2].name]
    disabled = told.decisions["options"]["xla_disable_hlo_passes"]
    assert disabled == "dot-library-rewriter,cse_barrier_expander"
    assert told.program is not None
    layouts = program.describe_setting(choice_of(program, layouts=1)).decisions["layouts"]
    assert all(
        sorted(order) == list(range(len(order))) for o in layouts.values() for order in o.values()
    )
    assert layouts.keys() <= {
        given.name for c in program.message.computations for given in c.instructions
    }


def test_an_option_without_effect_gives_the_same_code_and_another_function_does_not() -> None:
    """The functions have no dot, so the option `library` changes nothing on any CPU."""
    x = arguments()[0]
    plain, other = (
        DecidedProgram(source_of(function, x), ("options",))
        for function in (lambda x: 2 * x + x[::-1], lambda x: 3 * x + x[::-1])
    )
    nothing, library = np.zeros((2, len(GENES)), np.int64)
    library[[*GENES].index("library")] = 1
    assert plain.load(library).code == plain.load(nothing).code != other.load(nothing).code


def test_options_with_lists_are_joined_and_others_are_replaced() -> None:
    first = {"xla_disable_hlo_passes": "a", "xla_backend_extra_options": "b=1", "level": "1"}
    second = {"xla_backend_extra_options": "c", "level": "2"}
    both = {"xla_disable_hlo_passes": "a", "xla_backend_extra_options": "b=1,c", "level": "2"}
    assert joined(first, second) == both


def test_barriers_stand_between_a_node_and_all_that_use_it(program: DecidedProgram) -> None:
    ids = frozenset(given.id for given in fusible(program.message)[1:4])
    edited = edited_module(program.message, {}, ids)
    entry = next(c for c in edited.computations if c.id == edited.entry_computation_id)
    barriers = {given.id: given for given in entry.instructions if given.opcode == "opt-barrier"}
    assert {given.operand_ids[0] for given in barriers.values()} == ids
    for given in entry.instructions:
        assert given.id in barriers or not ids & set(given.operand_ids)
    assert len({given.id for given in entry.instructions}) == len(entry.instructions)
    before = next(c for c in program.message.computations if c.id == edited.entry_computation_id)
    assert len(before.instructions) == len(entry.instructions) - 3  # is left alone


def looped(x, w):  # type: ignore[no-untyped-def]
    def step(carry, _):  # type: ignore[no-untyped-def]
        return jax.numpy.tanh(carry @ w) * 2 - 1, carry.sum()

    return jax.lax.scan(step, x, length=64)


def test_barrier_in_the_body_of_a_loop_changes_the_code_and_not_the_outputs() -> None:
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    program = DecidedProgram(source_of(looped, x, x), ("fusion",))
    in_body = {op.name for op in fusible_in_bodies(program.message)}
    nodes, names = program.describe().knobs["fusion"].nodes, program.describe().names
    is_in_body = np.array([names[node] in in_body for node in nodes]).astype(np.int64)
    assert 0 < is_in_body.sum() == len(in_body) and (np.diff(nodes) > 0).all()
    checked, setting = SameOutputs(program), choice_of(program, fusion=is_in_body)
    code = program.load(setting).code  # by other calls
    assert code == checked.load(setting).code != checked.load(choice_of(program)).code
    assert {*program.describe_setting(setting).decisions["kept_apart"]} == in_body
    # XLA compiles a small loop as one function, and refuses barriers there.
    small = DecidedProgram(source_of(looped, x[:4, :4], x[:4, :4]), ("fusion",))
    assert len(small.describe().knobs["fusion"].nodes) == len(fusible(small.message))
    SameOutputs(small).load(choice_of(small, fusion=1))


def test_extra_options_and_xla_flags_give_the_same_code_which_is_not_the_default() -> None:
    opened = partial(open_program, "gru_b8", ("options",))
    codes = []
    extra = "xla_cpu_disable_loop_unrolling"
    for flags in ("", extra_flag(extra)):
        with Session(opened, timeout_s=60.0, flags=flags) as session:
            n_options = session.describe().n_options
            setting = (np.array([*GENES]) == "loop unrolling").astype(np.int64)
            if n_options[setting.argmax()] == 1:
                pytest.skip("this jax has no extra options")
            codes.append([session.code(setting * times) for times in (0, 1)])
    (default, alone), (of_flags, left_to_flags) = codes
    assert default != alone == of_flags == left_to_flags


NAMES = ("attention_b2", "gru_b8", "plain_b2")  # batched dots, a loop, convolutions


@pytest.fixture(scope="module", params=NAMES)
def laid_out(request: pytest.FixtureRequest) -> DecidedProgram:
    return DecidedProgram(load_program(request.param), ["layouts"])


def drawn_choice(program: DecidedProgram, seed: int) -> NDArray[np.int64]:
    """A setting that sets the layouts of most nodes."""
    rng, n_options = np.random.default_rng(seed), program.describe().n_options
    return rng.integers(n_options) * (rng.random(len(n_options)) < 0.7)


def test_a_worker_of_one_thread_and_one_of_all_cores_open_the_same_program() -> None:
    """XLA makes other modules for other numbers of threads, of attention for example."""
    opened = partial(open_program, "attention_b2", ("layouts",), has_checks=False)
    found = []
    for on_all_cores in (False, True):
        with Session(opened, timeout_s=60.0, on_all_cores=on_all_cores) as session:
            found.append(session.describe())
    assert program_digest(found[0]) == program_digest(found[1])
    assert found[0].facts["function"] == found[1].facts["function"]
    assert found[0].facts["xla_flags"] != found[1].facts["xla_flags"]


def test_layouts_drawn_at_random_compute_the_same(laid_out: DecidedProgram) -> None:
    checked = SameOutputs(laid_out)
    for seed in range(3):
        checked.load(drawn_choice(laid_out, seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", [row["program"] for row in rows() if row["plan"] == "sample"])
def test_every_program_of_the_catalogue_computes_the_same(name: str) -> None:
    program = DecidedProgram(load_program(name), ["layouts"])
    checked = SameOutputs(program)
    for seed in range(2):
        checked.load(drawn_choice(program, seed))


def test_each_chosen_tensor_gets_one_constraint_of_its_layout(laid_out: DecidedProgram) -> None:
    config = laid_out.spell(drawn_choice(laid_out, 5)[None])[0]
    rows = zip(laid_out.nodes, map(read_row, config), strict=True)
    orders = {node.instruction.id: row for node, row in rows}
    found = [
        tuple(instruction.shape.layout.minor_to_major)
        for computation in edited_module(laid_out.message, orders, set()).computations
        for instruction in computation.instructions
        if instruction.custom_call_target == "LayoutConstraint"
    ]
    expected = [order[::-1] for row in config for order in read_row(row) if order]
    assert sorted(found) == sorted(expected)


def fails() -> None:
    raise ValueError("first line\nsecond line")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails, r"^mine: cannot be compiled: ValueError: first line second"),
        (lambda: sys.exit(3), r"^mine: cannot be compiled: SystemExit: 3"),
        *((lambda value=value: value, "^mine: returns no array") for value in (None, 3, {"a": ""})),
    ],
)
def test_program_that_cannot_be_opened_is_named_in_one_line(
    function: Callable[[], object], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        DecidedProgram(source_of(function), ("options",))


def test_options_that_the_compiler_lacks_are_left_out_with_a_note(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_removed = {**GENES, "LLVM": ({"xla_removed": "1"},)}
    monkeypatch.setattr(spaces, "GENES", with_removed)
    spaces.known_options.cache_clear()
    description = DecidedProgram(source_of(network, *arguments()), ("options",)).describe()
    spaces.known_options.cache_clear()
    assert description.n_options[[*GENES].index("LLVM")] == 1
    assert description.n_options[[*GENES].index("library")] == 2
    with caplog.at_level("INFO", logger="fast_or_slow"):
        spaces.note_unknown_options(replace(description, facts={"jaxlib": "0.99"}))
    (note,) = caplog.messages
    assert note.startswith("note: left out, because the XLA of jaxlib 0.99 lacks them: xla_")
    assert "xla_removed" in note


class Drifting:
    """Its outputs are off by `setting` thousandths."""

    def describe(self) -> Description:
        return Description({"any": Knobs(np.array([9]), *np.zeros((2, 1), np.int64))}, {}, {})

    def spell(self, settings: NDArray[np.int64]) -> NDArray[np.int64]:
        return settings

    def describe_setting(self, setting: NDArray[np.int64]) -> Decisions:
        return Decisions({})

    def load(self, setting: NDArray[np.int64]):  # type: ignore[no-untyped-def]
        off = np.float32(1e-3 * setting[0])
        values = np.array([1, -2, np.inf], np.float32) * (1 + off)
        return Loaded(lambda: [values, np.arange(3) + (setting[0] == 8)], "")


class Varying(Drifting):
    """Each call has the next of some outputs."""

    def __init__(self, *outputs: float) -> None:
        self._outputs = iter(outputs)

    def load(self, setting: NDArray[np.int64]) -> Loaded:
        return Loaded(lambda: [np.full(1, next(self._outputs))], "")


def test_other_outputs_are_refused() -> None:
    checked = SameOutputs(Drifting())
    checked.load(np.array([0]))
    with pytest.raises(PipelineError, match=r"0 differs from the default's by 0\.001 .* 0\.0001"):
        checked.load(np.array([1]))
    unknown = SameOutputs(Varying(np.nan, np.nan))
    for _ in range(2):
        with pytest.raises(PipelineError, match="no number of the outputs is finite"):
            unknown.load(np.array([0]))
    with pytest.raises(PipelineError, match="output 0 differs from its own of another call by 1 "):
        SameOutputs(Varying(1.0, 2.0)).load(np.array([0]))


def test_keys_of_random_numbers_are_arguments_and_results() -> None:
    def noisy(key, x):  # type: ignore[no-untyped-def]
        return jax.random.split(key)[0], jax.random.normal(key, x.shape) + jax.numpy.tanh(x) * 2

    source = source_of(noisy, jax.random.key(0), np.ones((4, 4), np.float32))
    program = DecidedProgram(source, ["options", "fusion"])
    SameOutputs(program).load(choice_of(program, fusion=1))
    assert program.describe_setting(choice_of(program, fusion=1)).program


def test_spaces_without_a_decision_are_left_out() -> None:
    source = source_of(lambda x: x + 1, np.ones(4, np.float32), name="tiny")
    assert list(DecidedProgram(source, ("options", "layouts")).describe().knobs) == ["options"]
    with pytest.raises(UsageError, match=r"^layouts: tiny has no dot, .*; expected options"):
        DecidedProgram(source, ("layouts",))
