"""A transform that draws some configs of each graph."""

import zlib

import numpy as np
import torch
from torch_geometric.transforms import BaseTransform

from common.errors import UsageError
from models.pyg.graphs import TpuGraph


class ConfigSampler(BaseTransform):
    """Draw `n_configs` configs of a graph, none twice, and unpack them alone.

    With a seed, what is drawn depends on it, the epoch and the graph alone, whatever worker draws;
    without one, torch's own generator is drawn from, as random transforms of PyG do.

    Args:
        n_configs: how many; a graph with fewer is filled up with repeats of infinite runtime, which
            no loss of models/training/losses.py counts.
        seed: None or at least 0.
        distinct: draw among distinct configs, each with its mean runtime; else among all
            measurements, of which one config may have several.

    Raises:
        UsageError: fewer than one config, or a seed below 0.
    """

    def __init__(self, n_configs: int, *, seed: int | None = None, distinct: bool = True) -> None:
        if n_configs < 1 or (seed is not None and seed < 0):
            raise UsageError(
                f"ConfigSampler: {n_configs} configs, seed {seed}; expected at least 1, and no "
                "seed below 0"
            )
        self.n_configs, self.seed, self.distinct = n_configs, seed, distinct
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Draw other configs from now on, in running workers too; for a sampler with a seed."""
        self._epoch.fill_(epoch)

    def forward(self, data: TpuGraph) -> TpuGraph:
        table = data.configs
        runtime = table.mean_runtime if self.distinct else table.runtime
        generator = self._generator(data)
        drawn = torch.randperm(len(runtime), generator=generator).numpy()[: self.n_configs]
        short = self.n_configs - len(drawn)
        rows, runtime = table.first[drawn] if self.distinct else drawn, runtime[drawn]
        if short:
            rows, runtime = np.pad(rows, (0, short), "edge"), np.r_[runtime, [np.inf] * short]
        return data.unpack(rows, runtime)  # `data` is a copy: transforms of PyG are given one

    def _generator(self, data: TpuGraph) -> torch.Generator | None:
        if self.seed is None:
            return None
        drawn_by = f"{self.seed}:{int(self._epoch)}:{data.collection}:{data.name}"
        return torch.Generator().manual_seed(zlib.crc32(drawn_by.encode()))
