"""Families of tile kernels that contract axes: matrix products and convolutions."""

from data.collect.tiles import blocks
from data.collect.tiles.family import Family, convolution, einsum_kernel

_MATMUL = [(128, 256, 512), (256, 256, 256), (64, 768, 384), (512, 128, 256), (196, 192, 576)]
_MATMUL_2 = [(192, 320, 256), (48, 640, 512), (384, 96, 384), (150, 225, 300), (320, 256, 128)]
_IMAGES = [(1, 56, 56, 32, 32), (4, 14, 14, 128, 64), (8, 28, 28, 16, 32), (1, 28, 28, 64, 64)]
_IMAGES_2 = [(2, 32, 32, 24, 48), (1, 48, 48, 16, 64), (6, 16, 16, 64, 32), (1, 40, 40, 48, 24)]

PRODUCTS = {
    "matmul_bias_gelu": Family(
        "mkn",
        [*_MATMUL, (32, 512, 1024)],
        einsum_kernel(
            "mk,kn->mn", "mnk", epilogue=blocks.bias_gelu, extras=["n"], has_weights=True
        ),
    ),
    "matmul": Family(
        "mkn",
        [*_MATMUL[:4], (100, 300, 500), (384, 384, 192)],
        einsum_kernel("mk,kn->mn", "mnk", has_weights=True),
    ),
    "matmul_residual": Family(
        "mkn",
        [*_MATMUL_2, (256, 160, 224)],
        einsum_kernel(
            "mk,kn->mn", "mnk", epilogue=blocks.add_residual, extras=["n", "mn"], has_weights=True
        ),
    ),
    "matmul_transposed_weights": Family(
        "mkn",
        [*_MATMUL_2, (96, 512, 320)],
        einsum_kernel("mk,nk->mn", "mnk", has_weights=True),
    ),
    "matmul_transposed_input": Family(
        "mkn",
        [*_MATMUL_2, (224, 288, 192)],
        einsum_kernel("km,kn->mn", "mnk", epilogue=blocks.bias_relu, extras=["n"]),
    ),
    "gated_projection": Family(
        "mkn",
        [*_MATMUL_2, (64, 448, 448)],
        einsum_kernel("mk,kn->mn", "mnk", epilogue=blocks.gate, extras=["mn"], has_weights=True),
    ),
    "matvec": Family(
        "mk",
        [(2048, 512), (1024, 1024), (512, 3072), (4096, 192), (1536, 640), (768, 1536)],
        einsum_kernel("mk,k->m", "mk"),
    ),
    "outer_product": Family(
        "mn",
        [(1024, 512), (2048, 320), (600, 900), (256, 3072), (1536, 384), (768, 768)],
        einsum_kernel("m,n->mn", "mn", epilogue=blocks.add_residual_only, extras=["mn"]),
    ),
    "dense_3d_silu": Family(
        "bsdo",
        [
            (4, 64, 192, 256),
            (8, 48, 128, 192),
            (2, 128, 256, 128),
            (16, 20, 160, 160),
            (1, 256, 96, 320),
            (6, 50, 225, 150),
        ],
        einsum_kernel(
            "bsd,do->bso", "bsod", epilogue=blocks.bias_silu, extras=["o"], has_weights=True
        ),
    ),
    "mix_positions": Family(
        "bsdt",
        [
            (8, 64, 96, 64),
            (4, 128, 64, 128),
            (16, 49, 64, 49),
            (2, 196, 96, 98),
            (3, 96, 128, 144),
            (1, 160, 256, 160),
        ],
        einsum_kernel("bsd,ts->btd", "btds"),
    ),
    "batched_matmul": Family(
        "bmkn",
        [(8, 64, 64, 128), (4, 128, 128, 64), (16, 48, 96, 48), (2, 256, 96, 192)],
        einsum_kernel("bmk,bkn->bmn", "bmn", has_weights=True),
    ),
    "attention_scores": Family(
        "bqkd",
        [(8, 64, 64, 64), (4, 128, 128, 32), (12, 96, 96, 64), (2, 256, 256, 64)],
        einsum_kernel("bqd,bkd->bqk", "bqk", epilogue=blocks.scaled_masked, extras=["qk"]),
    ),
    "attention_values": Family(
        "bqkd",
        [(8, 64, 64, 64), (4, 128, 128, 64), (12, 96, 96, 32), (2, 256, 256, 64)],
        einsum_kernel("bqk,bkd->bqd", "bqd"),
    ),
    "linear_attention": Family(
        "bsde",
        [
            (8, 128, 64, 64),
            (4, 256, 48, 96),
            (12, 96, 64, 48),
            (2, 512, 96, 64),
            (16, 64, 32, 96),
            (3, 300, 80, 60),
        ],
        einsum_kernel("bsd,bse->bde", "bdes"),
    ),
    "split_heads": Family(
        "bshde",
        [
            (2, 96, 8, 64, 64),
            (4, 64, 4, 96, 64),
            (1, 256, 6, 64, 48),
            (8, 32, 12, 32, 64),
            (2, 128, 2, 128, 96),
            (3, 50, 10, 48, 60),
        ],
        einsum_kernel("bshd,hde->bhse", "bhse", has_weights=True),
    ),
    "merge_heads": Family(
        "bshdo",
        [
            (2, 96, 8, 32, 128),
            (4, 64, 4, 64, 192),
            (1, 200, 6, 48, 160),
            (8, 32, 12, 16, 256),
            (2, 128, 2, 96, 96),
            (3, 50, 10, 24, 240),
        ],
        einsum_kernel(
            "bshd,hdo->bso", "bsohd", epilogue=blocks.bias_relu, extras=["o"], has_weights=True
        ),
    ),
    "gram": Family(
        "nde",
        [(512, 128, 128), (2048, 64, 96), (256, 192, 256)],
        einsum_kernel("nd,ne->de", "den", has_weights=True),
    ),
    "distances": Family(
        "mnd",
        [(256, 256, 64), (128, 512, 128), (384, 320, 32)],
        einsum_kernel("md,nd->mn", "mn", epilogue=blocks.distance, extras=["m", "n"]),
    ),
    "kernel_matrix": Family(
        "mnd",
        [
            (192, 256, 48),
            (320, 128, 96),
            (512, 200, 16),
            (100, 600, 64),
            (256, 384, 24),
            (144, 144, 192),
        ],
        einsum_kernel("md,nd->mn", "mnd", epilogue=blocks.exponential, extras=["m", "n"]),
    ),
}
CONVOLUTIONS = {
    "conv3x3_relu": Family("nhwco", _IMAGES, convolution(3, 3, tiled="hwoc")),
    "conv1x1": Family(
        "nhwco",
        [*_IMAGES[:3], (2, 20, 20, 96, 96)],
        einsum_kernel(
            "nhwc,co->nhwo", "hwoc", epilogue=blocks.bias_relu, extras=["o"], has_weights=True
        ),
    ),
    "conv5x5_relu": Family(
        "nhwco",
        [(1, 32, 32, 16, 32), (4, 16, 16, 32, 32), (1, 48, 48, 8, 24)],
        convolution(5, 5, tiled="hwo"),
    ),
    "dilated_conv_relu": Family(
        "nhwco",
        [(1, 40, 40, 32, 32), (2, 24, 24, 48, 32), (1, 56, 56, 16, 48)],
        convolution(3, 3, dilation=2, tiled="hwo"),
    ),
    "depthwise_relu": Family(
        "nhwc",
        [(2, 28, 28, 64), (1, 56, 56, 32), (4, 14, 14, 96)],
        convolution(3, 3, depthwise=True, tiled="nhwc"),
    ),
    "conv1x7_relu": Family(
        "nhwco", [*_IMAGES_2, (1, 24, 64, 32, 32)], convolution(1, 7, tiled="nhwo")
    ),
    "conv3x1_relu": Family(
        "nhwco", [*_IMAGES_2, (2, 60, 20, 32, 40)], convolution(3, 1, tiled="hwoc")
    ),
    "conv2x2_relu": Family(
        "nhwco", [*_IMAGES_2, (3, 30, 30, 20, 30)], convolution(2, 2, tiled="nhwo")
    ),
    "depthwise5x5_relu": Family(
        "nhwc",
        [(2, 28, 28, 48), (1, 56, 56, 24), (4, 14, 14, 128), (1, 36, 36, 64), (3, 20, 40, 32)],
        convolution(5, 5, depthwise=True, tiled="hwc"),
    ),
    "conv_over_time": Family(
        "nhwco",
        [
            (4, 1, 128, 64, 64),
            (1, 1, 512, 32, 96),
            (8, 1, 64, 96, 64),
            (2, 1, 300, 48, 50),
            (1, 1, 1000, 24, 48),
        ],
        convolution(1, 5, tiled="nwoc"),
    ),
}
