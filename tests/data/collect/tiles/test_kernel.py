"""Tiled kernels compute what whole kernels do; bounds follow the tile; tiles end to end."""

import math
from dataclasses import replace

import numpy as np
import pytest

from common.errors import PipelineError
from data.collect.tiles.catalogue import catalogue, families, make_kernel
from data.collect.tiles.kernel import MAX_BLOCK_BYTES, MAX_STEPS, TileKernel, tiled_function

EXTENTS = {"n": 2, "h": 6, "w": 5, "c": 4, "o": 6, "b": 3, "s": 5, "d": 8, "m": 5, "k": 8}
EXTENTS |= {"e": 6, "q": 7, "a": 6, "t": 3, "v": 4, "p": 2}


def small_kernel(family: str) -> TileKernel:
    extents = {axis: EXTENTS[axis] for axis in families()[family]["axes"]}
    if family == "max_pool":
        extents["q"] = 2  # here the width of a window
    return make_kernel(family, extents, f"{family}_small")


def test_tiles_are_distinct_fit_the_scratchpad_and_start_with_the_fewest_steps() -> None:
    kernel = catalogue()["matmul_m100_k300_n500"]
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
    kernel = catalogue()["softmax_h8_q128_s128"]
    tiny = replace(kernel, extents={"h": 1, "q": 1, "s": 8})
    with pytest.raises(PipelineError, match="0 tiles of hq are legal; expected 2 or more"):
        _ = tiny.tiles


def test_config_feat_holds_kernel_output_and_input_bounds() -> None:
    kernel = catalogue()["conv3x3_relu_n1_h56_w56_c32_o32"]
    (row,) = kernel.config_feat(np.array([[8, 14, 16, 4]]))  # h, w, o, c
    assert row[:8].tolist() == [3, 3, 4, 16, 0, 0, 26, 576]
    assert row[8:16].tolist() == [1, 8, 14, 16, 0, 0, 39, 1792]
    assert row[16:].tolist() == [1, 10, 16, 4, 0, 0, 31, 640]
    kernel = catalogue()["softmax_h8_q128_s128"]  # without weights
    (row,) = kernel.config_feat(np.array([[2, 32]]))
    assert not row[:8].any()
    assert row[8:16].tolist() == [2, 32, 128, 0, 0, 0, 162, 8192]
    assert row[16:].tolist() == row[8:16].tolist()


@pytest.mark.parametrize("family", families())
def test_every_tile_gives_the_whole_kernels_output(family: str) -> None:
    jax = pytest.importorskip("jax")
    kernel = small_kernel(family)
    arguments = kernel.arguments()
    whole = np.asarray(jax.jit(kernel.whole)(*arguments))
    assert whole.shape == tuple(kernel.extents[axis] for axis in kernel.output)
    rng = np.random.default_rng(0)
    for row in rng.permutation(np.arange(1, len(kernel.tiles)))[:3].tolist():
        tile = kernel.tiles[row].tolist()
        tiled = np.asarray(jax.jit(tiled_function(kernel, tile))(*arguments))
        np.testing.assert_allclose(tiled, whole, rtol=1e-4, atol=1e-5, err_msg=str(tile))
