"""Layout configs as small integers: symbols for embeddings, codes for comparing layouts."""

import numpy as np
from numpy.typing import NDArray

N_SYMBOLS = 7
N_TENSORS = 3
VALUES_PER_TENSOR = 6
N_CODES = N_SYMBOLS**2


def layout_symbols(values: NDArray[np.int8]) -> NDArray[np.int64]:
    """Map layout values -1..5 to embedding rows 0..6; any shape, int64."""
    return values.astype(np.int64) + 1


def minor_codes(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Pack the two minor dimensions of each layout into one number 0..48.

    The two minor dimensions decide how a tensor is cut into the TPU's 8 x 128 tiles, and configs
    often name no more of them. Code 0 stands for a layout left to the compiler.

    Args:
        values: (…, 6·t) int8 values -1..5 of t layouts side by side.

    Returns:
        (…, t) int8: 7·(first + 1) + (second + 1).
    """
    first = values[..., 0::VALUES_PER_TENSOR]
    second = values[..., 1::VALUES_PER_TENSOR]
    return (first + 1) * np.int8(N_SYMBOLS) + second + 1
