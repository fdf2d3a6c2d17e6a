"""Physical orders: the rewritten module and the rules it is rewritten by."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from data.collect.layouts.options import spell_row
from data.collect.physical.reshape_order import reshaped_order

pytest.importorskip("jax", reason="jax is not installed: pip install -r requirements-collect.txt")

from data.collect.layouts.realise import ProgramSource
from data.collect.physical.module import load_physical, physical_module
from data.collect.programs import catalogue
from tests.data.collect.layout_programs import (
    BUILDERS,
    assert_same_outputs,
    opened,
    random_config,
)


def opcodes(module) -> Counter[str]:
    return Counter(i.opcode for c in module.computations for i in c.instructions)


@pytest.mark.parametrize("name", BUILDERS)
def test_default_leaves_the_program_as_it_is(name: str) -> None:
    program = opened("physical", name)
    rewritten = opcodes(physical_module(program.dumped, program.default).message)
    written = opcodes(program.dumped.message)
    # A constant that is broadcast to no purpose is not written again.
    assert rewritten["transpose"] == written["transpose"]
    assert rewritten["opt-barrier"] == 0
    assert {key: n for key, n in rewritten.items() if key not in ("broadcast", "iota")} == {
        key: n for key, n in written.items() if key not in ("broadcast", "iota")
    }


def matrix_product() -> ProgramSource:
    rng = np.random.default_rng(0)
    arguments = tuple(rng.standard_normal(s, dtype=np.float32) for s in ((3, 4), (4, 5)))
    return ProgramSource("product", "product", "xla", lambda: ((lambda x, w: x @ w), arguments))


def test_a_dot_alone_needs_no_transpose_in_any_order() -> None:
    program = load_physical(matrix_product())
    for orders in ((o, x, w) for o in _two() for x in _two() for w in _two()):
        config = np.array([spell_row(orders)], np.int8)
        module = physical_module(program.dumped, config)
        assert opcodes(module.message)["transpose"] == 0
        assert module.parameters == [orders[1], orders[2]]
        assert module.outputs == [orders[0]]
        assert_same_outputs(program, config)


def _two() -> list[tuple[int, int]]:
    return [(0, 1), (1, 0)]


def test_one_transpose_stands_where_producer_and_consumer_differ() -> None:
    rng = np.random.default_rng(0)
    arguments = tuple(rng.standard_normal(s, dtype=np.float32) for s in ((3, 4), (4, 5), (5, 6)))

    def build():
        import jax.numpy as jnp

        return (lambda x, v, w: jnp.tanh(x @ v) @ w), arguments

    program = load_physical(ProgramSource("chain", "chain", "xla", build))
    plain, turned = (0, 1), (1, 0)
    for produced, consumed, n_transposes in (
        (plain, plain, 0),
        (turned, turned, 0),
        (plain, turned, 1),
        (turned, plain, 1),
    ):
        rows = [spell_row([produced, (), ()]), spell_row([(), consumed, ()])]
        config = np.array(rows, np.int8)
        assert opcodes(physical_module(program.dumped, config).message)["transpose"] == n_transposes
        assert_same_outputs(program, config)


def test_loop_bodies_are_rewritten() -> None:
    program = opened("physical", "scanned")
    entry = program.dumped.message.entry_computation_id
    entry_starts = sum(
        len(c.instructions) for c in program.dumped.message.computations if c.id != entry
    )
    assert (program.graph["node_config_ids"] < entry_starts).any()


@pytest.mark.parametrize(
    ("shape", "new_shape"),
    [
        ((2, 3, 4), (2, 12)),
        ((2, 3, 4), (6, 4)),
        ((2, 12), (2, 3, 4)),
        ((2, 1, 3), (1, 2, 3)),
        ((1, 6), (2, 3, 1)),
        ((4, 6), (6, 4)),
        ((2, 3), (2, 3)),
        ((1, 1), (1,)),
    ],
)
def test_reshaping_in_place_moves_nothing(shape: tuple[int, ...], new_shape: tuple[int, ...]):
    values = np.arange(np.prod(shape)).reshape(shape)
    n_found = 0
    for order in permutations(range(len(shape))):
        new_order = reshaped_order(shape, new_shape, order)
        if new_order is None:
            continue
        n_found += 1
        in_memory = values.transpose(order).ravel()
        expected = values.reshape(new_shape).transpose(new_order).ravel()
        np.testing.assert_array_equal(in_memory, expected)
    assert n_found >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [p.name for p in catalogue()])
def test_every_program_of_the_catalogue_computes_the_same(name: str) -> None:
    source = next(p for p in catalogue() if p.name == name)
    program = load_physical(source)
    for seed in range(2):
        assert_same_outputs(program, random_config(program, seed))
