"""Layouts chosen by constraints in the HLO module: legal options, equal outputs, clear refusals."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("jax", reason="jax is not installed: pip install -r requirements-collect.txt")

import jax
import jax.numpy as jnp
from jax import lax

from common.errors import PipelineError
from data.collect.layouts.options import read_row, spell_row
from data.collect.layouts.program import LayoutProgram
from data.collect.programs import compiled
from data.collect.programs.catalogue import ProgramSource, catalogue, load_program
from data.graphs.node_columns import OPCODES, SHAPE_DIMENSIONS


def default_of(program: LayoutProgram) -> NDArray[np.int8]:
    return program.spell(np.zeros((1, len(program.options)), np.int64))[0]


def small_network():
    rng = np.random.default_rng(0)
    shapes = ((2, 8, 8, 4), (3, 3, 4, 6), (96, 24), (24, 5))
    arguments = tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)

    def function(x, kernel, hidden, head):
        x = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jnp.pad(x, ((0, 0), (1, 0), (0, 2), (0, 0)))[:, 1:, :4, ::-1]
        x = jax.nn.relu(x - x.mean((1, 2), keepdims=True)).reshape(2, -1)
        hidden_state = jnp.tanh(x @ hidden)
        return hidden_state @ head, jnp.argmax(hidden_state, axis=-1)

    return function, arguments


NAMES = ("small_network", "attention_b2", "gru_b8")  # without loops, with batched dots, with a loop
all_programs = pytest.mark.parametrize("name", NAMES)


def load(name: str, build=small_network) -> LayoutProgram:
    return LayoutProgram(ProgramSource(name, name, "xla", build))


@cache
def opened(name: str) -> LayoutProgram:
    return load(name) if name == "small_network" else LayoutProgram(load_program(name))


def random_config(program: LayoutProgram, seed: int) -> NDArray[np.int8]:
    """A (k, 18) config that sets most of the nodes."""
    rng = np.random.default_rng(seed)
    return np.stack(
        [options[rng.integers(len(options)) * (rng.random() < 0.7)] for options in program.options]
    )


def assert_same_outputs(program: LayoutProgram, config: NDArray[np.int8]) -> None:
    pairs = zip(program.compile(default_of(program))(), program.compile(config)(), strict=True)
    for expected, found in pairs:
        assert found.dtype == expected.dtype
        if np.issubdtype(found.dtype, np.floating):
            scale = float(np.abs(expected).max()) + 1e-6
            tolerance = 200 * float(np.finfo(found.dtype).eps)
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(found, expected)


@all_programs
def test_random_configs_compute_the_same(name: str) -> None:
    for seed in range(3):
        assert_same_outputs(opened(name), random_config(opened(name), seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", [program.name for program in catalogue()])
def test_every_program_of_the_catalogue_computes_the_same(name: str) -> None:
    program = LayoutProgram(load_program(name))
    for seed in range(2):
        assert_same_outputs(program, random_config(program, seed))


@all_programs
def test_options_order_the_dimensions_of_their_tensors_alike_in_a_group(name: str) -> None:
    program = opened(name)
    graph = program.graph
    opcodes = set(graph["node_opcode"][graph["node_config_ids"]].tolist())
    assert OPCODES["dot"] in opcodes
    assert opcodes <= {OPCODES["convolution"], OPCODES["dot"], OPCODES["reshape"]}
    first: dict[int, NDArray[np.int8]] = {}
    for j, (node, options) in enumerate(
        zip(graph["node_config_ids"], program.options, strict=True)
    ):
        rank = int((graph["node_feat"][node, SHAPE_DIMENSIONS] > 0).sum())
        assert (options.shape[1:], options.dtype) == ((18,), np.int8)
        assert len(np.unique(options, axis=0)) == len(options) > 1
        assert (options[0] == -1).all()
        for row in options:
            for order in read_row(row):
                assert sorted(order) == list(range(len(order)))
            assert len(read_row(row)[0]) in (0, rank)
        np.testing.assert_array_equal(first.setdefault(int(program.groups[j]), options), options)


def test_rows_are_minor_to_major_and_read_back() -> None:
    row = spell_row([(0, 1, 2), (), (1, 0)])
    assert row == [2, 1, 0, -1, -1, -1, *[-1] * 6, 0, 1, -1, -1, -1, -1]
    assert read_row(np.array(row, np.int8)) == ((0, 1, 2), (), (1, 0))


def test_default_is_the_unconstrained_program_and_runs() -> None:
    function, arguments = small_network()
    program = opened("small_network")
    assert (default_of(program) == -1).all()
    assert program.constrained_module(default_of(program)) == program.message
    found = program.compile(default_of(program))()
    for expected, output in zip(jax.jit(function)(*arguments), found, strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


def test_each_chosen_tensor_gets_one_constraint_of_its_layout() -> None:
    program = opened("attention_b2")
    config = random_config(program, seed=5)
    found = [
        tuple(instruction.shape.layout.minor_to_major)
        for computation in program.constrained_module(config).computations
        for instruction in computation.instructions
        if instruction.custom_call_target == "LayoutConstraint"
    ]
    expected = [order[::-1] for row in config for order in read_row(row) if order]
    assert sorted(found) == sorted(expected)


def test_what_the_compiler_refuses_is_said_in_one_line() -> None:
    program = load("small_network")
    entry = program.message.computations[-1]
    next(i for i in entry.instructions if i.opcode == "tanh").opcode = "no-such-operation"
    with pytest.raises(PipelineError, match=r"^small_network: the compiler refuses: ") as caught:
        program.compile(default_of(program))
    assert "\n" not in str(caught.value)


def test_programs_that_cannot_be_opened_are_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_nodes():
        return (lambda x: x + 1), (np.ones((3, 4), np.float32),)

    def fails():
        raise ValueError("first line\nsecond line")

    with pytest.raises(PipelineError, match=r"plus_one: has no convolution, dot or reshape"):
        load("plus_one", without_nodes)
    with pytest.raises(PipelineError, match=r"^broken: cannot be compiled: first line second"):
        load("broken", fails)
    monkeypatch.setattr(compiled, "TESTED_JAXLIB", ("0.1",))
    message = r"jaxlib .* was not tested.*; tested: 0\.1\.x; pip install -r requirements-collect"
    with pytest.raises(PipelineError, match=message):
        load("small_network")
