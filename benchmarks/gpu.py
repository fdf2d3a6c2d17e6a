"""What networks ask of a GPU, counted without one, and what a GPU at hand makes of it.

`make gpu` writes docs/results/gpu.md, with `--counts` without timing anything. Counted are a
training step, and below `ranked_chunk` the ranking of as many configs in one chunk.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from benchmarks import PAGES, render, write_page
from benchmarks.speed import in_turn
from benchmarks.speed.layout_model import PlainLayoutModel
from common.reproducibility import revision
from models.config.recipe import load_recipe
from pipeline.planning.cards import card_named
from pipeline.planning.counts import Counts
from pipeline.planning.made_up import (
    Case,
    Size,
    count_ranking,
    count_step,
    make_case,
    on_device,
    rank,
    step_seconds,
)

GRAPH = Size(nodes=5_000, edges=8_500, configurable=1_400, configs=1_000)
KERNEL = Size(nodes=40, edges=66, configurable=0, configs=1_842)
ONE_CHUNK_MIB = 1 << 20
RANKED = 2  # times, after one that does not count
KEYS = ("kernels", "byte_units", "host_syncs", "half_share")


@dataclass(frozen=True)
class Work:
    """A network of a recipe, on a step's graphs or kernels."""

    network: str  # the name of its table in the recipe
    recipe: str = "leaderboard"
    settings: tuple[str, ...] = ()
    plain: bool = False
    # Of a step, the most that it may take; of `half_share` the least.
    goals: Mapping[str, float] = field(default_factory=dict)

    def case(self, *, n_configs: int | None = None, in_one_chunk: bool = False) -> Case:
        own = self.settings
        if in_one_chunk and self.network not in ("tgraph", "late_fusion_sage"):
            own = (*own, f"{self.network}.inference_tensor_mib={ONE_CHUNK_MIB}")
        size = KERNEL if self.network.endswith("fusion_sage") else GRAPH
        recipe = load_recipe(self.recipe, own)
        made = make_case(recipe, self.network, replace(size, configs=n_configs or size.configs))
        return replace(made, network=PlainLayoutModel(made.config)) if self.plain else made

    @cached_property
    def n_configs(self) -> int:
        """Return how many configs of a graph a step takes, or of a kernel."""
        config = self.case(n_configs=2).config
        return int(getattr(config, "configs_per_step", 0) or config.configs_per_kernel)

    def step(self) -> dict[str, float]:
        case = self.case()
        found = figures(count_step(case), case.tensor_bytes(self.n_configs))
        return {"graphs": len(case.graphs), **found}

    def ranked_chunk(self) -> dict[str, float]:
        """Count the ranking of as many configs of one graph in one chunk."""
        case = self.case(n_configs=self.n_configs, in_one_chunk=True)
        return figures(count_ranking(case), case.tensor_bytes(self.n_configs))


LAYOUT, PLAIN = "cross_config_sage", "plain PyG"
EXACT = f"{LAYOUT}.training.precision=float32"
# Each by the recipe that ships it, or by the defaults; plain PyG has the first one's equations and
# widths.
WORKS = {
    LAYOUT: Work(LAYOUT, goals={"byte_units": 75, "host_syncs": 0, "half_share": 0.9}),
    f"{LAYOUT}, float32": Work(LAYOUT, settings=(EXACT,), goals={"byte_units": 150}),
    f"{LAYOUT}, float32, not fused": Work(
        LAYOUT, settings=(EXACT, f"{LAYOUT}.fused=false"), goals={"byte_units": 220}
    ),
    PLAIN: Work(LAYOUT, plain=True),
    "segment_sage": Work("segment_sage"),
    "tgraph": Work("tgraph", "reference"),
    "baseline_gcn": Work("baseline_gcn", "reference"),
    "late_fusion_sage": Work("late_fusion_sage", goals={"kernels": 300}),
    "early_fusion_sage": Work("early_fusion_sage", goals={"kernels": 300}),
}


def figures(counts: Counts, unit_bytes: int) -> dict[str, float]:
    """Return what is told of counts; units are float32 (nodes, configs, channels) of one graph."""
    return {
        "kernels": counts.kernels,
        "byte_units": round(counts.bytes / unit_bytes, 1),
        "host_syncs": counts.host_syncs,
        "half_share": round(counts.half_share, 3),
        "peak_units": round(counts.peak_bytes / unit_bytes, 1),
        "unit_mb": round(unit_bytes / 1e6, 1),
        "gflop": round(counts.flops / 1e9, 1),
    }


def count_all() -> dict[str, Any]:
    return {k: {**one.step(), "ranked_chunk": one.ranked_chunk()} for k, one in WORKS.items()}


def time_all(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Time networks: ms of a step, GB/s, times the roofline, peak GiB, ms of ranking a graph."""
    card, device, lines = card_named(torch.cuda.get_device_name()), torch.device("cuda", 0), []
    for name, counts in found.items():
        work = WORKS[name]
        torch.cuda.reset_peak_memory_stats()
        seconds = step_seconds(work.case(), device)
        peak_gib = torch.cuda.max_memory_allocated() / 2**30
        moved = counts["byte_units"] * counts["unit_mb"] * 1e6
        times_roofline = f"{seconds * card.bytes_per_s / moved:.2f}" if card else ""
        step = [f"{1e3 * seconds:.2f}", f"{moved / seconds / 1e9:.0f}", times_roofline]
        ranked = on_device(work.case(), device)
        taken = in_turn({"rank": partial(rank, ranked)}, RANKED)["rank"]  # scores reach the host
        lines.append([name, *step, f"{peak_gib:.2f}", f"{1e3 * statistics.median(taken):.2f}"])
    return lines


def page(found: Mapping[str, Any], timed: Sequence[Sequence[str]]) -> str:
    """Return the page of what was counted, and timed where there was a GPU."""
    rows = []
    for name, of_step in found.items():
        told = [_with_goal(of_step, key, WORKS[name].goals) for key in KEYS]
        told += [f"{of_step['ranked_chunk'][key]:,g}" for key in KEYS]
        rest = (f"{of_step[key]:,g}" for key in ("peak_units", "unit_mb", "gflop"))
        rows.append([name, str(of_step["graphs"]), *told, *rest])
    what = ("kernels", "units moved", "host syncs", "half")
    header = ("network", "graphs", *(f"{of}: {one}" for of in ("step", "chunk") for one in what))
    return render(
        "gpu",
        graph=GRAPH,
        kernel=KERNEL,
        rows=rows,
        header=(*header, "peak units", "unit, MB", "GFLOP"),
        card=torch.cuda.get_device_name() if timed else None,
        timed=timed,
        revision=revision(),
    )


def _with_goal(found: Mapping[str, Any], key: str, goals: Mapping[str, float]) -> str:
    sign = ">=" if key == "half_share" else "<="
    return f"{found[key]:,g}" + (f" ({sign} {goals[key]:g})" if key in goals else "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, time where there is a GPU, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", action="store_true", help="time nothing, GPU or not")
    given = parser.parse_args(arguments)
    found = count_all()
    timed = time_all(found) if torch.cuda.is_available() and not given.counts else []
    write_page(PAGES / "gpu.md", page(found, timed))


if __name__ == "__main__":
    main()
