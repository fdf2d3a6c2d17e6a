"""The catalogues of programs and kernels, and those of users."""

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from autotune.job import SAMPLE_TILES, make_job
from autotune.programs.catalogue import catalogue
from autotune.programs.files import load_program
from autotune.tiles.catalogue import catalogue as kernels
from autotune.tiles.catalogue import families, find_kernel, make_kernel
from autotune.tiles.kernel import (
    MAX_BLOCK_BYTES,
    MAX_STEPS,
    Operand,
    TileKernel,
    TileProgram,
    tiled_function,
)
from common.errors import PipelineError

OWN_PROGRAM = """
import numpy as np

FAMILY = "toy"
SOURCE = "nlp"

def step(weights, x):
    return x @ weights["w"]

def step_arguments():
    return {"w": np.ones((3, 4), np.float32)}, np.ones((2, 3), np.float32)

def other(x):
    return x.T @ x

def example_arguments():
    return (np.ones((2, 3), np.float32),)

def wrong(x):
    return x

def wrong_arguments():
    return [1]

def failing(x):
    return x

def failing_arguments():
    raise OSError("no\\ndata")
"""
EXTENTS = {"n": 2, "h": 6, "w": 5, "c": 4, "o": 6, "b": 3, "s": 5, "d": 8, "m": 5, "k": 8}
EXTENTS |= {"e": 6, "q": 7, "a": 6, "t": 3, "v": 4, "p": 2}


def test_programs_of_every_family_trace_and_equal_builds_give_equal_arguments() -> None:
    """All programs, of other sizes, are compiled in a slow test of test_spaces.py."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    programs = {p.family: p for p in sorted(catalogue(), key=lambda p: "_train_" in p.name)}
    for place, program in enumerate(programs.values()):
        function, arguments = program.build()
        assert jax.tree.leaves(jax.eval_shape(function, *arguments))
        leaves = jax.tree.leaves(arguments)
        assert sum(leaf.size for leaf in leaves) < 10_000_000
        if place % 8 == 0:
            again = jax.tree.leaves(program.build()[1])
            assert all(map(np.array_equal, leaves, again)) and len(leaves) == len(again)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_layout_program.py").write_text(OWN_PROGRAM)
    (tmp_path / "raises_two_lines.py").write_text('raise ValueError("one\\ntwo")')
    (tmp_path / "ends_the_process.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_layout_program"


def test_a_users_function_is_loaded_with_its_arguments_or_those_of_all(own_module: str) -> None:
    program = load_program(f"{own_module}:step")
    assert (program.name, program.family, program.source) == (f"{own_module}.step", "toy", "nlp")
    function, arguments = program.build()
    np.testing.assert_array_equal(function(*arguments), np.full((2, 4), 3))
    function, arguments = load_program(f"{own_module}:other").build()
    assert np.shape(function(*arguments)) == (3, 3)
    with pytest.raises(PipelineError, match="are a list; expected a tuple"):
        load_program(f"{own_module}:wrong").build()
    with pytest.raises(
        PipelineError, match=r"failing: failing_arguments\(\) fails: OSError: no data"
    ):
        load_program(f"{own_module}:failing").build()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_program", "not in the catalogue, which `collect --list` prints"),
        ("no.such.module:step", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raises_two_lines:step", "cannot be imported: ValueError: one two;"),
        ("ends_the_process:step", "cannot be imported: SystemExit: 3"),
        ("own_layout_program:absent", "holds no 'absent'; it has .*step"),
        (
            "json:dumps",
            r"has no dumps_arguments\(\) nor example_arguments\(\).* a TileKernel is of",
        ),
        ("json:codecs", "is a module; expected a function; a TileKernel is of --space tiles"),
    ],
)
def test_programs_that_cannot_be_loaded_are_one_line_errors(
    own_module: str, name: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        load_program(name)
    assert "\n" not in str(caught.value)


def small_kernel(family: str) -> TileKernel:
    extents = {axis: EXTENTS[axis] for axis in families()[family]["axes"]}
    if family == "max_pool":
        extents["q"] = 2  # here the width of a window
    return make_kernel(family, extents, f"{family}_small")


def test_tiles_are_distinct_fit_the_scratchpad_and_start_with_the_fewest_steps() -> None:
    kernel = kernels()["matmul_m100_k300_n500"]
    tiles = kernel.tiles
    assert len(np.unique(tiles, axis=0)) == len(tiles)
    n_steps = [math.ceil(100 / m) * math.ceil(500 / n) * 300 // k for m, n, k in tiles.tolist()]
    for (m, n, k), steps in zip(tiles.tolist(), n_steps, strict=True):
        assert (m <= 100, n <= 500, 300 % k) == (True, True, 0)
        assert 4 * (m * k + k * n + m * n) <= MAX_BLOCK_BYTES
        assert 2 <= steps <= MAX_STEPS
    assert n_steps[0] == min(n_steps)
    assert [100, 500, 300] not in tiles.tolist()  # the whole array has no loop


def test_a_kernel_that_cannot_be_tiled_is_one_line() -> None:
    kernel = kernels()["softmax_h8_q128_s128"]
    tiny = replace(kernel, extents={"h": 1, "q": 1, "s": 8})
    with pytest.raises(PipelineError, match="0 tiles of hq are legal; expected 2 or more"):
        _ = tiny.tiles


def test_what_is_wrong_in_a_kernel_of_ones_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    kernel = replace(kernels()["softmax_h8_q128_s128"], name="mine")
    for change, told in (
        ({"operands": (Operand("hqk"),)}, "operands has the axis k (hqk)"),
        ({"extras": (Operand("z"),)}, "extras has the axis z (z)"),
        ({"tiled": "hx"}, "tiled has the axis x (hx)"),
        ({"output": "hqy"}, "output has the axis y (hqy)"),
    ):
        monkeypatch.setattr("tests.own_kernel", partial(replace, kernel, **change), raising=False)
        with pytest.raises(PipelineError) as refused:
            find_kernel("tests:own_kernel")
        expected = f"TileKernel mine: {told}, which extents lacks; expected one of h, q, s"
        assert str(refused.value) == expected
    for change, told in (
        ({"name": "mine/mm"}, "'mine/mm': expected a name of letters"),
        ({"name": "../x"}, "'../x': expected a name of letters"),
        ({"extents": {"h": 8, "q": -3, "s": 8}}, "extents has -3 for q; expected 1 or more"),
    ):
        with pytest.raises(PipelineError, match=f"^TileKernel .*{re.escape(told)}"):
            replace(kernel, **change)
    for wrong in ({"combine": lambda x: x[:2, :3] + x}, {"epilogue": lambda block: block.nosuch}):
        message = r"^mine: combine or epilogue of tile \[.*\]: (TypeError|AttributeError): "
        with pytest.raises(PipelineError, match=message):
            TileProgram(replace(kernel, **wrong), {})


def test_tiles_that_compute_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    kernel = TileKernel(
        **{"name": "squares", "family": "squares", "extents": {"m": 64, "n": 64, "k": 128}},
        **{"operands": (Operand("mk"), Operand("kn")), "output": "mn", "tiled": "mnk"},
        combine=lambda x, w: (x @ w) ** 2,  # the squares of parts do not add up to the whole's
    )
    monkeypatch.setattr("tests.own_kernel", kernel, raising=False)
    job = make_job("tests:own_kernel", kind="tile", device="cpu", effort=SAMPLE_TILES)
    subject = job.open_measurable()
    (whole, *_), (parts, *_) = (
        np.flatnonzero((kernel.tiles[:, 2] == 128) == is_whole) for is_whole in (True, False)
    )
    subject.load(np.array([whole]))
    with pytest.raises(PipelineError, match="output 0 differs from the whole kernel's by"):
        subject.load(np.array([parts]))


def test_config_feat_holds_kernel_output_and_input_bounds() -> None:
    kernel = kernels()["conv3x3_relu_n1_h56_w56_c32_o32"]
    (row,) = kernel.config_feat(np.array([[8, 14, 16, 4]]))  # h, w, o, c
    assert row[:8].tolist() == [3, 3, 4, 16, 0, 0, 26, 576]
    assert row[8:16].tolist() == [1, 8, 14, 16, 0, 0, 39, 1792]
    assert row[16:].tolist() == [1, 10, 16, 4, 0, 0, 31, 640]
    kernel = kernels()["softmax_h8_q128_s128"]  # without weights
    (row,) = kernel.config_feat(np.array([[2, 32]]))
    assert not row[:8].any()
    assert row[8:16].tolist() == [2, 32, 128, 0, 0, 0, 162, 8192]
    assert row[16:].tolist() == row[8:16].tolist()


@pytest.mark.parametrize("family", families())
def test_every_tile_gives_the_whole_kernels_output(family: str) -> None:
    jax = pytest.importorskip("jax")
    kernel = small_kernel(family)
    arguments = kernel.arguments()
    quickly = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    whole = np.asarray(quickly(kernel.whole)(*arguments))
    assert whole.shape == tuple(kernel.extents[axis] for axis in kernel.output)
    rng = np.random.default_rng(0)
    for row in rng.permutation(np.arange(1, len(kernel.tiles)))[:2].tolist():
        tile = kernel.tiles[row].tolist()
        tiled = np.asarray(quickly(tiled_function(kernel, tile))(*arguments))
        np.testing.assert_allclose(tiled, whole, rtol=1e-4, atol=1e-5, err_msg=str(tile))


def test_a_tiled_kernel_refuses_other_shapes_and_types() -> None:
    pytest.importorskip("jax")
    kernel = find_kernel("softmax_h8_q128_s128")
    first, *others = kernel.arguments()
    step = tiled_function(kernel, kernel.tiles[0].tolist())
    other = first.astype(np.float16)  # measured was float32, of which the loop's output is
    for wrong in ([first[:-1], *others], others, [other, *others], [first.tolist(), *others]):
        with pytest.raises(
            PipelineError, match=r"softmax_h8_q128_s128: given arrays .*; expected float32"
        ):
            step(*wrong)
