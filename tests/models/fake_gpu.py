"""The device that is none, of pipeline/planning/counts.py, as the GPU that commands find."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from models.training import device
from models.training.dataset import LRUCache
from pipeline.planning.counts import FAKE_GPU, Counts, counted


@contextmanager
def fake_gpu() -> Iterator[Counts]:
    """Let training and ranking find a GPU, compute what they ask of it, and count that."""
    without = torch.backends.mkldnn.flags(enabled=False)  # its gelu writes past a strided `out`
    with pytest.MonkeyPatch.context() as patch, without, counted(with_values=True) as counts:
        patch.setattr(device, "GPU", FAKE_GPU)
        answers = {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "get_rng_state": lambda *_: torch.zeros(0),
            "set_rng_state": lambda *_: None,
        }
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)
        # It is there in this thread alone.
        patch.setattr(LRUCache, "prefetch", lambda cache, files: None)
        yield counts
