"""Layout constraints in the HLO module, and by JAX's public means."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed: pip install -r requirements-collect.txt")

from common.errors import PipelineError
from data.collect.layouts import constraints, executable
from data.collect.layouts.options import read_row, spell_row
from data.collect.layouts.realise import CompileRefused, ProgramSource
from data.collect.layouts.traced import load_traced
from data.collect.programs import catalogue, load_program
from data.graphs.node_columns import OPCODES, SHAPE_DIMENSIONS
from tests.data.collect.layout_programs import (
    BUILDERS,
    assert_same_outputs,
    opened,
    random_config,
    source,
)

all_programs = pytest.mark.parametrize("name", BUILDERS)


@all_programs
def test_random_configs_compute_the_same(name: str) -> None:
    program = opened(name)
    for seed in range(3):
        assert_same_outputs(program, random_config(program, seed))


@all_programs
def test_configurable_nodes_are_convolutions_dots_and_reshapes(name: str) -> None:
    graph = opened(name).graph
    opcodes = set(graph["node_opcode"][graph["node_config_ids"]].tolist())
    assert opcodes <= {OPCODES["convolution"], OPCODES["dot"], OPCODES["reshape"]}
    assert OPCODES["dot"] in opcodes


@all_programs
def test_graph_has_the_official_shapes(name: str) -> None:
    program = opened(name)
    graph = program.graph
    n_nodes = len(graph["node_opcode"])
    assert graph["node_feat"].shape == (n_nodes, 140)
    assert graph["node_feat"].dtype == np.float32
    assert graph["node_opcode"].dtype == np.uint8
    assert graph["node_splits"][0, -1] == n_nodes
    assert len(graph["node_config_ids"]) == len(program.options) == len(program.groups)
    assert (graph["edge_index"][:, 0] > graph["edge_index"][:, 1]).all()


@all_programs
def test_options_order_the_dimensions_of_their_tensors(name: str) -> None:
    program = opened(name)
    graph = program.graph
    for node, options in zip(graph["node_config_ids"], program.options, strict=True):
        rank = int((graph["node_feat"][node, SHAPE_DIMENSIONS] > 0).sum())
        assert options.shape[1:] == (18,)
        assert options.dtype == np.int8
        assert len(np.unique(options, axis=0)) == len(options) > 1
        assert (options[0] == -1).all()
        for row in options:
            for order in read_row(row):
                assert sorted(order) == list(range(len(order)))
            assert len(read_row(row)[0]) in (0, rank)


@all_programs
def test_nodes_of_a_group_have_the_same_options(name: str) -> None:
    program = opened(name)
    first: dict[int, np.ndarray] = {}
    for group, options in zip(program.groups.tolist(), program.options, strict=True):
        np.testing.assert_array_equal(first.setdefault(group, options), options)


def test_rows_are_minor_to_major_and_read_back() -> None:
    row = spell_row([(0, 1, 2), (), (1, 0)])
    assert row == [2, 1, 0, -1, -1, -1, *[-1] * 6, 0, 1, -1, -1, -1, -1]
    assert read_row(np.array(row, np.int8)) == ((0, 1, 2), (), (1, 0))


def test_default_is_the_unconstrained_program() -> None:
    import jax

    function, arguments = BUILDERS["small_network"]()
    program = opened("small_network")
    assert (program.default == -1).all()
    for expected, found in zip(
        jax.jit(function)(*arguments), program.outputs(program.default), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_default_adds_no_constraint() -> None:
    program = opened("small_network")
    module = constraints.constrained_module(program.dumped, program.default)
    assert module == program.dumped.message


def test_each_chosen_tensor_gets_one_constraint_of_its_layout() -> None:
    program = opened("batched_dots")
    config = random_config(program, seed=5)
    module = constraints.constrained_module(program.dumped, config)
    found = [
        tuple(instruction.shape.layout.minor_to_major)
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.custom_call_target == "LayoutConstraint"
    ]
    expected = [order[::-1] for row in config for order in read_row(row) if order]
    assert sorted(found) == sorted(expected)


def test_compiled_program_runs() -> None:
    program = opened("small_network")
    run = program.compile(random_config(program, seed=1))
    assert run() is None


def test_what_the_compiler_refuses_is_said_in_one_line() -> None:
    program = constraints.load_constrained(source("small_network"))
    entry = program.dumped.message.computations[-1]
    next(i for i in entry.instructions if i.opcode == "tanh").opcode = "no-such-operation"
    with pytest.raises(CompileRefused, match=r"^small_network: the compiler refuses: ") as caught:
        program.compile(program.default)
    assert "\n" not in str(caught.value)


def test_config_outside_the_options_is_refused() -> None:
    program = opened("small_network")
    config = program.default
    config[0, :2] = 1
    with pytest.raises(PipelineError, match="configurable node 0 is given"):
        program.compile(config)
    with pytest.raises(PipelineError, match=r"expected \(\d+, 18\) int8"):
        program.compile(config[:-1])


def test_program_without_nodes_is_refused() -> None:
    def build():
        return (lambda x: x + 1), (np.ones((3, 4), np.float32),)

    with pytest.raises(PipelineError, match=r"plus_one: has no convolution, dot or reshape"):
        constraints.load_constrained(ProgramSource("plus_one", "plus_one", "xla", build))


def test_program_that_fails_is_named_in_one_line() -> None:
    def build():
        raise ValueError("first line\nsecond line")

    with pytest.raises(PipelineError, match=r"^broken: cannot be compiled: first line$"):
        constraints.load_constrained(ProgramSource("broken", "broken", "xla", build))


def test_untested_jaxlib_is_named_and_the_public_way_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executable, "TESTED_JAXLIB", ("0.1",))
    assert "was not tested" in str(executable.why_unavailable())
    program = constraints.load_constrained(source("small_network"))
    assert_same_outputs(program, random_config(program, seed=3))


def test_public_constraints_compute_the_same() -> None:
    program = load_traced(source("small_network"))
    opcodes = program.graph["node_opcode"][program.graph["node_config_ids"]]
    assert OPCODES["convolution"] in opcodes
    for seed in range(2):
        assert_same_outputs(program, random_config(program, seed))


def test_public_constraints_need_a_node_that_can_be_told_apart() -> None:
    with pytest.raises(PipelineError, match="batched_dots: none of its nodes can be constrained"):
        load_traced(source("batched_dots"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [program.name for program in catalogue()])
def test_every_program_of_the_catalogue_computes_the_same(name: str) -> None:
    program = constraints.load_constrained(load_program(name))
    for seed in range(2):
        assert_same_outputs(program, random_config(program, seed))
