"""Time the networks on a GPU: training steps and rankings, also in plain PyG.

`make gpu` writes docs/results/gpu.md and runs/gpu/steps.json, which `plan` reads. It needs a CUDA
GPU. With `--dry` every part runs on the CPU in a tiny size, and no file is written. The only heavy
packages are torch, Triton and PyTorch Geometric.
"""

import argparse
import os
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks import PAGES, errors_in_one_line, write_page
from benchmarks.gpu_measures import (
    copy_gb_per_s,
    matmul_tflop_per_s,
    moved_bytes,
    peak_gib,
    reset_memory,
    speed,
)
from benchmarks.plain_pyg import PlainLayoutModel
from benchmarks.workloads import (
    CONFIGURABLE_SHARE,
    SyntheticWorkload,
    make_workload,
    on_device,
    rank_configs,
    train_steps,
)
from common.errors import UsageError
from common.files import write_text
from data.synthetic.graphs import GraphSize
from models.config.recipe import load_recipe
from models.training.device import precision_on
from pipeline.planning.costs import MEASURED_HERE, MeasuredStep, StepTimes

LAYOUT = "cross_config_sage"
# Ends of the names of workloads that `plan` does not need, because no recipe has them.
NOT_IN_RECIPES = "not fused", "float32", "plain PyG"
GRAPH = GraphSize(5_000, 1_200, 1_000)
# Nodes of a mean graph of layout:nlp after pruning.
NLP_NODES = 1_494
KERNEL = GraphSize(40, 0, 1_842)
TINY = GraphSize(60, 10, 20)
N_STEPS, N_WARM_STEPS = 16, 6
N_TOP_KERNELS = 20


def workloads(device: torch.device) -> Iterator[tuple[str, SyntheticWorkload, bool]]:
    """Yield each workload: its name, its network with graphs, and whether steps are recorded."""
    exact, plain = f"{LAYOUT}.training.precision=float32", f"{LAYOUT}.fused=false"
    for nodes in (5_000, 3_349, NLP_NODES, 300):
        yield f"{LAYOUT}, {nodes:,} nodes", layout_workload(device, nodes), True
    for nodes in (5_000, NLP_NODES):
        yield f"{LAYOUT}, {nodes:,} nodes, not recorded", layout_workload(device, nodes), False
    for name, settings in (
        ("not fused", [plain]),
        ("float32", [exact]),
        ("float32, not fused", [exact, plain]),
    ):
        yield f"{LAYOUT}, {name}", layout_workload(device, GRAPH.n_nodes, *settings), True
    pyg = layout_workload(device, GRAPH.n_nodes)
    yield "plain PyG", replace(pyg, network=PlainLayoutModel(pyg.config)), True
    for name, recipe, size in (
        ("tgraph", "reference", GRAPH),
        ("segment_sage", "leaderboard-small", GRAPH),
        ("late_fusion_sage", "leaderboard-small", KERNEL),
        ("early_fusion_sage", "leaderboard-small", KERNEL),
    ):
        yield name, sized_workload(device, name, recipe, size), True


def sized_workload(
    device: torch.device, model: str, recipe: str, size: GraphSize, *settings: str
) -> SyntheticWorkload:
    """Return a network of a recipe with a graph. Both are tiny on a CPU."""
    if device.type == "cpu":
        size, settings = TINY, (*settings, f"{model}.hidden=16")
    return make_workload(load_recipe(recipe, list(settings)), model, size)


def layout_workload(device: torch.device, nodes: int, *settings: str) -> SyntheticWorkload:
    """Return the layout network of the recipe `leaderboard-small` with a graph."""
    size = GraphSize(nodes, int(CONFIGURABLE_SHARE * nodes), GRAPH.n_configs)
    if device.type == "cpu":
        settings = (*settings, f"{LAYOUT}.configs_per_step=8")
    return sized_workload(device, LAYOUT, "leaderboard-small", size, *settings)


def timed_steps(
    workload: SyntheticWorkload, device: torch.device, *, recorded: bool
) -> tuple[float, float]:
    """Return the median time of a training step, and of its launch by the host, in milliseconds."""
    ends_s, host_s = [0.0], []

    def after(_: int) -> None:
        host_s.append(time.perf_counter() - ends_s[-1])
        if device.type == "cuda":
            torch.cuda.synchronize()
        ends_s.append(time.perf_counter())

    train_steps(workload, device, N_STEPS, after, recorded=recorded)
    step_s = np.diff(ends_s)[N_WARM_STEPS:-1]
    return 1e3 * float(np.median(step_s)), 1e3 * statistics.median(host_s[N_WARM_STEPS:-1])


def step_bytes(workload: SyntheticWorkload, device: torch.device) -> int:
    """Return the bytes that a training step moves, from its loss to the optimiser."""
    counts = [0]
    with moved_bytes() as counter:
        train_steps(workload, device, 3, lambda _: counts.append(counter.total), recorded=False)
    return counts[2] - counts[1]


def step_rows(device: torch.device) -> tuple[list[list[str]], list[MeasuredStep]]:
    """Return the rows of the page on training steps, and the step times for `plan`."""
    rows, step_times = [], []
    for name, workload, recorded in workloads(device):
        n_bytes = step_bytes(workload, device)
        reset_memory(device)
        ms, host_ms = timed_steps(workload, device, recorded=recorded)
        gib = peak_gib(device)
        cells = [f"{ms:.2f}", f"{host_ms:.2f}", f"{n_bytes / 1e9:.2f}", *speed(n_bytes, ms, device)]
        rows.append([name, *cells, f"{gib:.2f}"])
        print("  ".join(rows[-1]), flush=True)  # noqa: T201
        if not name.endswith(NOT_IN_RECIPES):
            step_times.append(measured_step(name, workload, device, ms, host_ms))
    return rows, step_times


def measured_step(
    name: str, workload: SyntheticWorkload, device: torch.device, ms: float, host_ms: float
) -> MeasuredStep:
    config = workload.config
    n_configs = getattr(config, "configs_per_step", 0) or config.configs_per_kernel
    n_nodes = sum(len(graph.opcode) for graph in workload.graphs if hasattr(graph, "opcode"))
    precision = str(precision_on(device, config.training.precision)).removeprefix("torch.")
    is_recordable = getattr(workload.network, "is_recordable", False)
    return MeasuredStep(
        model=name.split(",", maxsplit=1)[0],
        nodes=n_nodes or GRAPH.n_nodes,
        configs=n_configs,
        hidden=config.hidden,
        precision=precision,
        step_ms=round(ms, 3),
        host_ms=round(host_ms, 3),
        recorded=is_recordable and not name.endswith("not recorded"),
    )


def top_kernels(device: torch.device) -> list[list[str]]:
    """Return name, milliseconds and calls of the slowest kernels of a step, after their sum."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    kind = DeviceType.CUDA if device.type == "cuda" else DeviceType.CPU
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + (device.type == "cuda")]
    profiler = profile(activities=activities)

    def after(step: int) -> None:
        if step in (4, 7) and device.type == "cuda":
            torch.cuda.synchronize()
        if step == 4:
            profiler.__enter__()
        if step == 7:
            profiler.__exit__(None, None, None)

    train_steps(layout_workload(device, GRAPH.n_nodes), device, 8, after, recorded=False)
    spent_ms, calls = Counter[str](), Counter[str]()
    for event in profiler.key_averages():
        if event.device_type == kind and "#" not in event.key:
            name = event.key.removeprefix("void ").replace("at::native::", "")[:70]
            spent_ms[name] += event.self_device_time_total / 3e3
            calls[name] += event.count / 3
    total = [["all kernels", f"{sum(spent_ms.values()):.2f}", f"{sum(calls.values()):.0f}"]]
    return total + [
        [f"`{name}`", f"{ms:.3f}", f"{calls[name]:.0f}"]
        for name, ms in spent_ms.most_common(N_TOP_KERNELS)
    ]


def ranking_rows(device: torch.device) -> list[list[str]]:
    rows = []
    for name, recipe in ((LAYOUT, "leaderboard-small"), ("tgraph", "reference")):
        workload = on_device(sized_workload(device, name, recipe, GRAPH), device)
        rank_configs(workload)
        reset_memory(device)
        began = time.perf_counter()
        rank_configs(workload)
        rows.append([name, f"{1e3 * (time.perf_counter() - began):.0f}", f"{peak_gib(device):.2f}"])
    return rows


def versions() -> dict[str, str]:
    from importlib.metadata import version

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.check_output(query, text=True, timeout=30).split()[0]  # noqa: S603
    card = torch.cuda.get_device_properties(0)
    return {
        "card": card.name,
        "memory": f"{card.total_memory / 2**30:.0f} GiB",
        "driver": driver,
        "CUDA": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": version("triton"),
        "processors": str(os.cpu_count()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print each part, and write the page and the step times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dry",
        action="store_true",
        help="run in a tiny size on the CPU, and write no file; it needs TRITON_INTERPRET=1",
    )
    is_dry = parser.parse_args(arguments).dry
    if not is_dry and not torch.cuda.is_available():
        raise UsageError(
            "make gpu: torch finds no CUDA GPU on this machine; expected one; "
            "`make gpu DRY=1` runs each part in a tiny size on the CPU"
        )
    device = torch.device("cpu") if is_dry else torch.device("cuda", 0)
    torch.set_grad_enabled(True)
    parts: dict[str, Any] = {}
    for name, part in (
        ("ceilings", lambda: [copy_gb_per_s(device), matmul_tflop_per_s(device)]),
        ("steps", lambda: step_rows(device)),
        ("ranking", lambda: ranking_rows(device)),
        ("top", lambda: top_kernels(device)),
    ):
        began = time.perf_counter()
        parts[name] = part()
        print(f"{name}: {time.perf_counter() - began:.0f} s", *parts[name], sep="\n", flush=True)  # noqa: T201
    if is_dry:
        return
    parts["steps"], step_times = parts["steps"]
    facts = versions()
    content = StepTimes(card=facts["card"], steps=tuple(step_times)).model_dump_json(indent=1)
    write_text(MEASURED_HERE, content + "\n")
    write_page("gpu", PAGES, versions=facts, **parts)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
