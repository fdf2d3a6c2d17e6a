"""Training steps and ranking of each network, timed on the GPU of this machine.

`make gpu` writes docs/results/gpu.md.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks import PAGES, render, write_page
from benchmarks.speed import in_turn
from benchmarks.speed.layout_model import PlainLayoutModel
from common.errors import PipelineError
from common.reproducibility import revision
from models.config.recipe import load_recipe
from pipeline.planning.synthetic_graphs import (
    GraphSize,
    SyntheticWorkload,
    make_workload,
    on_device,
    rank_configs,
    step_seconds,
)

GRAPH = GraphSize(nodes=5_000, edges=8_500, configurable=1_400, configs=1_000)
KERNEL = GraphSize(nodes=40, edges=66, configurable=0, configs=1_842)
ROUNDS = 2


@dataclass(frozen=True)
class GpuWorkload:
    """A network of a recipe, on the graphs or kernels of one step.

    Attributes:
        network: Name of the network.
        recipe: Recipe with the network.
        settings: Keys of the recipe that differ.
        plain: Whether to take PyTorch Geometric's layers with the same equations and widths.
    """

    network: str
    recipe: str = "leaderboard"
    settings: tuple[str, ...] = ()
    plain: bool = False

    def build(self) -> SyntheticWorkload:
        size = KERNEL if self.network.endswith("fusion_sage") else GRAPH
        workload = make_workload(load_recipe(self.recipe, self.settings), self.network, size)
        network = PlainLayoutModel(workload.config) if self.plain else workload.network
        return replace(workload, network=network)


LAYOUT = "cross_config_sage"
EXACT = f"{LAYOUT}.training.precision=float32"
WORKLOADS = {
    LAYOUT: GpuWorkload(LAYOUT),
    f"{LAYOUT}, float32": GpuWorkload(LAYOUT, settings=(EXACT,)),
    f"{LAYOUT}, float32, not fused": GpuWorkload(LAYOUT, settings=(EXACT, f"{LAYOUT}.fused=false")),
    "plain PyG": GpuWorkload(LAYOUT, plain=True),
    "segment_sage": GpuWorkload("segment_sage"),
    "tgraph": GpuWorkload("tgraph", "reference"),
    "baseline_gcn": GpuWorkload("baseline_gcn", "reference"),
    "late_fusion_sage": GpuWorkload("late_fusion_sage"),
    "early_fusion_sage": GpuWorkload("early_fusion_sage"),
}


def time_all(device: torch.device) -> list[list[str]]:
    """Return a row for each network: ms of a step, peak GiB, ms of ranking a graph."""
    rows = []
    for name, workload in WORKLOADS.items():
        torch.cuda.reset_peak_memory_stats()
        step_ms = 1e3 * step_seconds(workload.build(), device)
        peak_gib = torch.cuda.max_memory_allocated() / 2**30
        rank = partial(rank_configs, on_device(workload.build(), device))
        rank_ms = 1e3 * statistics.median(in_turn({"rank": rank}, ROUNDS)["rank"])
        rows.append([name, f"{step_ms:.2f}", f"{peak_gib:.2f}", f"{rank_ms:.2f}"])
    return rows


def page(card: str, rows: Sequence[Sequence[str]]) -> str:
    return render("gpu", graph=GRAPH, kernel=KERNEL, card=card, rows=rows, revision=revision())


def main() -> None:
    """Time all networks and write the page; PipelineError: there is no GPU."""
    if not torch.cuda.is_available():
        raise PipelineError("make gpu: torch finds no CUDA GPU on this machine")
    rows = time_all(torch.device("cuda", 0))
    write_page(PAGES / "gpu.md", page(torch.cuda.get_device_name(), rows))


if __name__ == "__main__":
    main()
