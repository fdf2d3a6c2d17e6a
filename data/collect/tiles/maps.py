"""Families of tile kernels that map, reduce, normalise or move elements."""

from data.collect.tiles import blocks
from data.collect.tiles.family import Extents, Family, map_kernel
from data.collect.tiles.kernel import Operand, TileKernel

_PLANES = [(640, 384), (1500, 200), (192, 2560), (768, 768), (300, 1000), (2048, 128)]
_PLANES_2 = [(512, 640), (1200, 250), (160, 2048), (900, 400), (2560, 96), (384, 1152)]
_ROWS = [(8, 96, 320), (16, 60, 256), (4, 400, 160), (12, 72, 288), (32, 40, 200), (5, 150, 180)]
_ROWS_2 = [(6, 128, 256), (24, 48, 240), (4, 300, 128), (7, 90, 300), (12, 100, 192), (20, 64, 150)]
_MAPS = [
    (4, 24, 24, 64),
    (1, 56, 56, 48),
    (16, 10, 10, 128),
    (2, 40, 40, 32),
    (8, 16, 16, 96),
    (3, 30, 20, 80),
]
_MIDDLE = [(8, 96, 256), (32, 64, 96), (4, 150, 200), (16, 128, 128), (2, 256, 384), (64, 40, 64)]
_SMALL_MAPS = [
    (16, 10, 10, 128),
    (8, 16, 16, 96),
    (4, 20, 20, 64),
    (32, 8, 8, 80),
    (6, 14, 14, 112),
]


def _rotary(name: str, family: str, extents: Extents) -> TileKernel:
    operands = (Operand("bshd"), Operand("se"))
    halves = extents | {"e": extents["d"] // 2}
    return TileKernel(name, family, halves, operands, "bshd", "bsh", blocks.rotate)


NORMALISATIONS = {
    "softmax": Family(
        "hqs",
        [(8, 128, 128), (4, 256, 256), (12, 64, 512), (16, 100, 100)],
        map_kernel("hqs", "hqs", "hq", blocks.softmax),
    ),
    "masked_softmax": Family(
        "hqs", _ROWS_2, map_kernel("hqs,qs", "hqs", "hq", blocks.masked_softmax)
    ),
    "log_softmax": Family("bsd", _ROWS, map_kernel("bsd", "bsd", "bs", blocks.log_softmax)),
    "middle_softmax": Family("tab", _MIDDLE, map_kernel("tab", "tab", "tb", blocks.middle_softmax)),
    "layernorm": Family(
        "bsd",
        [(8, 128, 256), (32, 50, 192), (4, 512, 128), (16, 64, 768)],
        map_kernel("bsd,d,d", "bsd", "bs", blocks.layernorm),
    ),
    "residual_rmsnorm": Family(
        "bsd",
        [(8, 128, 192), (16, 64, 512), (4, 256, 320)],
        map_kernel("bsd,bsd,d", "bsd", "bs", blocks.residual_rmsnorm),
    ),
    "l2_normalize": Family("bsd", _ROWS, map_kernel("bsd", "bsd", "bs", blocks.l2_normalize)),
    "instance_norm": Family(
        "nhwc", _SMALL_MAPS, map_kernel("nhwc", "nhwc", "nc", blocks.instance_norm)
    ),
    "batchnorm_relu": Family(
        "nhwc", _MAPS, map_kernel("nhwc,c,c,c,c", "nhwc", "nhwc", blocks.batchnorm_relu)
    ),
}
REDUCTIONS = {
    "column_sum": Family(
        "ab",
        [(2048, 256), (512, 1024), (8192, 64)],
        map_kernel("ab", "b", "ba", blocks.column_sum),
    ),
    "row_sum": Family(
        "tab",
        [(16, 64, 512), (4, 512, 256), (8, 96, 1024)],
        map_kernel("tab", "ta", "tab", blocks.row_sum),
    ),
    "middle_sum": Family(
        "tab",
        _MIDDLE,
        map_kernel("tab", "tb", "tba", blocks.middle_sum),
    ),
    "max_pool": Family(
        "nhpwqc",
        [(4, 28, 2, 28, 2, 64), (8, 14, 2, 14, 2, 96), (2, 56, 2, 56, 2, 32)],
        map_kernel("nhpwqc", "nhwc", "nhwc", blocks.max_pool),
    ),
    "average_pool": Family(
        "nhpwqc",
        [
            (4, 12, 3, 12, 3, 64),
            (2, 20, 2, 20, 4, 48),
            (1, 28, 4, 28, 2, 64),
            (8, 8, 3, 10, 2, 80),
            (1, 40, 2, 40, 2, 50),
        ],
        map_kernel("nhpwqc", "nhwc", "nhwc", blocks.average_pool),
    ),
    "mean_pool": Family(
        "nhwc",
        [(16, 14, 14, 128), (8, 28, 28, 64), (32, 8, 8, 256)],
        map_kernel("nhwc", "nc", "nch", blocks.mean_pool),
    ),
    "logsumexp": Family(
        "tab",
        [(16, 64, 512), (4, 256, 384), (32, 32, 1000)],
        map_kernel("tab", "ta", "ta", blocks.logsumexp),
    ),
    "row_variance": Family("tab", _ROWS, map_kernel("tab", "ta", "ta", blocks.row_variance)),
    "squared_error": Family("ab", _PLANES_2, map_kernel("ab,ab", "a", "ab", blocks.squared_error)),
    "cross_entropy": Family(
        "tab", _ROWS_2, map_kernel("tab,tab", "ta", "ta", blocks.cross_entropy)
    ),
    "channel_max": Family("nhwc", _MAPS, map_kernel("nhwc", "nhw", "nhw", blocks.channel_max)),
}
MOVES = {
    "scale_transpose": Family(
        "ab",
        [(512, 512), (256, 2048), (1024, 384), (720, 480)],
        map_kernel("ab,b", "ba", "ab", blocks.scale_transpose),
    ),
    "channels_first": Family(
        "nhwc",
        [(8, 28, 28, 64), (2, 56, 56, 48), (16, 14, 14, 128)],
        map_kernel("nhwc,c", "nchw", "nhc", blocks.to_channels_first),
    ),
    "swap_heads": Family(
        "bshd",
        [
            (4, 96, 8, 64),
            (8, 64, 12, 32),
            (2, 200, 6, 80),
            (1, 512, 4, 96),
            (6, 50, 10, 48),
            (16, 32, 8, 40),
        ],
        map_kernel("bshd,d", "bhsd", "bshd", blocks.swap_heads),
    ),
    "rotate_axes": Family(
        "abc",
        [(64, 96, 48), (16, 256, 80), (128, 32, 100), (200, 20, 64), (32, 128, 96), (8, 300, 150)],
        map_kernel("abc", "cab", "abc", blocks.rotate_axes),
    ),
    "depth_to_space": Family(
        "nhwpqc",
        [
            (4, 14, 14, 2, 2, 64),
            (1, 28, 28, 2, 2, 64),
            (2, 20, 20, 3, 3, 24),
            (8, 10, 10, 2, 4, 40),
            (1, 40, 30, 2, 2, 32),
        ],
        map_kernel("nhwpqc", "nhpwqc", "nhwc", blocks.depth_to_space),
    ),
    "upsample": Family(
        "nhwpqc",
        [
            (4, 14, 14, 2, 2, 48),
            (1, 28, 28, 2, 2, 64),
            (2, 16, 16, 3, 3, 32),
            (8, 8, 8, 2, 4, 40),
            (1, 40, 30, 2, 2, 32),
        ],
        map_kernel("nhwc,pq", "nhpwqc", "nhwc", blocks.upsample),
    ),
}
ELEMENTWISE = {
    "gelu_gate": Family(
        "ab",
        [(512, 512), (2048, 192), (128, 3072)],
        map_kernel("ab,ab", "ab", "ab", blocks.gelu_gate),
    ),
    "rotary": Family("bshd", [(4, 128, 8, 64), (8, 96, 4, 64), (2, 256, 12, 32)], _rotary),
    "add_relu": Family("tab", _ROWS, map_kernel("tab,tab", "tab", "tab", blocks.add_relu)),
    "adam_update": Family("ab", _PLANES, map_kernel("ab,ab,ab", "ab", "ab", blocks.adam_update)),
    "tanh_scale": Family("tab", _ROWS_2, map_kernel("tab,b", "tab", "tab", blocks.tanh_scale)),
    "masked_fill": Family("hqs", _ROWS, map_kernel("hqs,qs", "hqs", "hqs", blocks.masked_fill)),
    "pairwise_sums": Family("ab", _PLANES_2, map_kernel("a,b", "ab", "ab", blocks.pairwise_sums)),
    "squeeze_excite": Family(
        "nhwc", _MAPS, map_kernel("nhwc,nc", "nhwc", "nhwc", blocks.squeeze_excite)
    ),
}
STENCILS = {
    "laplace": Family(
        "hw",
        [(512, 512), (1024, 300), (200, 1536), (700, 500), (384, 900)],
        map_kernel("hw", "hw", "hw", blocks.laplace, halo={"h": 2, "w": 2}),
    ),
    "blur_rows": Family(
        "nhwc",
        [(2, 32, 48, 64), (1, 60, 60, 40), (8, 16, 24, 64), (4, 40, 20, 48), (1, 100, 30, 64)],
        map_kernel("nhwc", "nhwc", "nhwc", blocks.blur_rows, halo={"w": 4}),
    ),
    "finite_differences": Family(
        "tab",
        [(64, 64, 96), (16, 128, 160), (150, 40, 64), (8, 256, 200), (100, 100, 40)],
        map_kernel("tab", "tab", "tab", blocks.finite_differences, halo={"t": 1, "a": 1, "b": 1}),
    ),
}
