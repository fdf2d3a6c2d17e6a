"""What activations are stored in."""

import pytest
import torch

from common.errors import UsageError
from models.training.precision import by_own_types, computing, precision_on, storage_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")
T4, A100 = (7, 5), (8, 0)


def test_auto_is_what_the_device_computes() -> None:
    assert precision_on(CPU, "auto") == torch.float32
    assert precision_on(GPU, "auto", version=T4) == torch.float16
    assert precision_on(GPU, "auto", version=A100) == torch.bfloat16
    assert precision_on(GPU, "float32", version=A100) == torch.float32


def test_a_gpu_without_bfloat16_refuses_it() -> None:
    with pytest.raises(UsageError, match=r"this GPU, of compute capability 7\.5"):
        precision_on(GPU, "bfloat16", version=T4)


def test_half_precision_ends_with_the_block() -> None:
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    with computing(CPU, "bfloat16"):
        assert layer(x).dtype == storage_dtype(CPU) == torch.bfloat16
        assert by_own_types(layer.forward)(x).dtype == torch.float32
        with computing(CPU, "float32"):
            assert layer(x).dtype == storage_dtype(CPU) == torch.float32
    assert layer(x).dtype == torch.float32
