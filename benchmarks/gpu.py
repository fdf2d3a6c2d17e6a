"""Time the networks on a GPU: training steps and rankings, also in plain PyG.

`make gpu` writes docs/results/gpu.md and runs/gpu/steps.json, which `plan` reads. It needs a CUDA
GPU. Each part has a process of its own with a time limit. After each part, runs/gpu/gpu.md has the
page so far. A stopped call resumes. With `--dry` every part runs on the CPU in a tiny size, and no
file is written. The only heavy packages are torch, Triton and PyTorch Geometric.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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
from common.reproducibility import revision
from data.synthetic.graphs import GraphSize
from models.config.recipe import load_recipe
from models.training.device import precision_on
from pipeline.planning.costs import MEASURED_HERE, MeasuredStep, StepTimes

LAYOUT = "cross_config_sage"
RECIPE, SMALL = "leaderboard", "leaderboard-small"
PARTS_HERE = MEASURED_HERE.with_name("parts.json")
# Nodes of mean graphs of layout:xla and layout:nlp after pruning.
XLA_NODES, NLP_NODES = 3_349, 1_494
KERNEL = GraphSize(40, 0, 1_842)
TINY = GraphSize(60, 10, 20)
# The steps are timed together: training does not wait for the GPU after each step either. The
# first of them have their host time, because a full queue makes the host wait.
N_STEPS, N_WARM_STEPS, N_HOST_STEPS = 20, 6, 3
PART_LIMIT_S = 240.0

Row = dict[str, Any]


class Part(NamedTuple):
    """A network of a recipe, and a graph or kernels to train or rank it on.

    Attributes:
        in_recipes: Whether recipes have such steps, so that `plan` reads their times.
    """

    model: str
    recipe: str
    size: GraphSize
    settings: tuple[str, ...] = ()
    recorded: bool = True
    in_recipes: bool = True

    def workload(self, device: torch.device) -> SyntheticWorkload:
        """Return the network with its graphs. Both are tiny on a CPU."""
        size, settings = self.size, list(self.settings)
        if device.type == "cpu":
            size, settings = TINY, [*settings, f"{self.model}.hidden=16"]
            if self.model == LAYOUT:
                settings.append(f"{LAYOUT}.configs_per_step=8")
        return make_workload(load_recipe(self.recipe, settings), self.model, size)


def graph(n_nodes: int, n_configs: int = 1_000) -> GraphSize:
    return GraphSize(n_nodes, int(CONFIGURABLE_SHARE * n_nodes), n_configs)


def parts() -> Mapping[str, Part]:
    """Return the training steps to time by name, the most important first."""
    exact, plain = f"{LAYOUT}.training.precision=float32", f"{LAYOUT}.fused=false"
    large, nlp = graph(5_000), graph(NLP_NODES, 60_000)
    sage, small = Part(LAYOUT, RECIPE, large), Part(LAYOUT, SMALL, large)
    steps = {
        "5,000 nodes": sage,
        f"{NLP_NODES:,} nodes, 60,000 configs": sage._replace(size=nlp),
        "5,000 nodes, not recorded": sage._replace(recorded=False),
        "5,000 nodes, float16": sage._replace(
            settings=(f"{LAYOUT}.training.precision=float16",), in_recipes=False
        ),
    }
    for n_nodes in (5_000, XLA_NODES, NLP_NODES, 300):
        steps[f"{n_nodes:,} nodes, small"] = small._replace(size=graph(n_nodes))
    for n_nodes in (5_000, NLP_NODES):
        size = graph(n_nodes)
        steps[f"{n_nodes:,} nodes, small, not recorded"] = small._replace(size=size, recorded=False)
    for name, settings in {
        "not fused": (plain,),
        "float32": (exact,),
        "float32, not fused": (exact, plain),
        "plain PyG": (),
    }.items():
        steps[f"{name}, small"] = small._replace(settings=settings, in_recipes=False)
    others = {"segment_sage": large, "late_fusion_sage": KERNEL, "early_fusion_sage": KERNEL}
    steps["tgraph"] = Part("tgraph", "reference", large)
    return steps | {name: Part(name, SMALL, size) for name, size in others.items()}


STEPS = parts()
RANKED = {f"rank: {name}": STEPS[name] for name in ("5,000 nodes, small", "tgraph")}
CEILINGS = "ceilings"
NAMES = (CEILINGS, *STEPS, *RANKED)


def measured(name: str, device: torch.device) -> Row:
    """Measure one of `NAMES`, and return the cells of its row on the page."""
    if name == CEILINGS:
        return {"cells": [copy_gb_per_s(device), matmul_tflop_per_s(device)]}
    if name in RANKED:
        return {"cells": ranking_cells(RANKED[name].workload(device), device)}
    part = STEPS[name]
    workload = part.workload(device)
    if name.startswith("plain PyG"):
        workload = replace(workload, network=PlainLayoutModel(workload.config))
    n_bytes = step_bytes(workload, device)
    reset_memory(device)
    ms, host_ms = timed_steps(workload, device, recorded=part.recorded)
    cells = [f"{ms:.2f}", f"{host_ms:.2f}", f"{n_bytes / 1e9:.2f}", *speed(n_bytes, ms, device)]
    step = measured_step(part, workload, device, ms=ms, host_ms=host_ms)
    row: Row = {"cells": [part.model, part.recipe, *cells, f"{peak_gib(device):.2f}"]}
    return row | {"step": step.model_dump()} if part.in_recipes else row


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed_steps(
    workload: SyntheticWorkload, device: torch.device, *, recorded: bool
) -> tuple[float, float]:
    """Return the mean time of a training step, and its launch by the host, in milliseconds."""
    ends_s = list[float]()

    def after(step: int) -> None:
        if step in (N_WARM_STEPS, N_WARM_STEPS + N_STEPS):
            wait_for(device)
        ends_s.append(time.perf_counter())

    # The last step saves a checkpoint, so it is not timed.
    train_steps(workload, device, N_WARM_STEPS + N_STEPS + 1, after, recorded=recorded)
    timed_s = np.array(ends_s[N_WARM_STEPS - 1 : -1])
    host_s = np.median(np.diff(timed_s)[:N_HOST_STEPS])
    return 1e3 * (timed_s[-1] - timed_s[0]) / N_STEPS, 1e3 * float(host_s)


def step_bytes(workload: SyntheticWorkload, device: torch.device) -> int:
    """Return the bytes that a training step moves, from its loss to the optimiser."""
    counts = [0]
    with moved_bytes() as counter:
        train_steps(workload, device, 3, lambda _: counts.append(counter.total), recorded=False)
    return counts[2] - counts[1]


def measured_step(
    part: Part, workload: SyntheticWorkload, device: torch.device, *, ms: float, host_ms: float
) -> MeasuredStep:
    config = workload.config
    n_configs = getattr(config, "configs_per_step", 0) or config.configs_per_kernel
    n_nodes = sum(len(inputs.opcode) for inputs in workload.graphs if hasattr(inputs, "opcode"))
    precision = str(precision_on(device, config.training.precision)).removeprefix("torch.")
    return MeasuredStep(
        model=part.model,
        nodes=n_nodes or part.size.n_nodes,
        configs=n_configs,
        hidden=config.hidden,
        precision=precision,
        step_ms=round(ms, 3),
        host_ms=round(host_ms, 3),
        recorded=part.recorded and getattr(workload.network, "is_recordable", False),
    )


def ranking_cells(workload: SyntheticWorkload, device: torch.device) -> list[str]:
    ready = on_device(workload, device)
    rank_configs(ready)
    reset_memory(device)
    began = time.perf_counter()
    rank_configs(ready)
    return [f"{1e3 * (time.perf_counter() - began):.0f}", f"{peak_gib(device):.2f}"]


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


def measured_apart(name: str, limit_s: float) -> Row:
    """Measure a part in a process of its own. A row with `fault` has no cells."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name]
    try:
        done = subprocess.run(  # noqa: S603
            command, check=False, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return {"fault": f"not done after {limit_s:.0f} s"}
    lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines() or ["no output"]
    return dict(json.loads(lines[-1])) if done.returncode == 0 else {"fault": lines[-1][:200]}


def rows_of(names: Mapping[str, Part], rows: Mapping[str, Row]) -> Iterator[list[str]]:
    for name in names:
        if name in rows:
            yield [name.removeprefix("rank: "), *rows[name].get("cells", [rows[name].get("fault")])]


def write_results(facts: Mapping[str, str], rows: Mapping[str, Row]) -> None:
    """Write the parts that were measured so far, the step times for `plan`, and the page."""
    header = {"revision": revision(), "versions": facts}
    write_text(PARTS_HERE, json.dumps(header | {"rows": rows}, indent=1) + "\n")
    steps = [MeasuredStep(**row["step"]) for row in rows.values() if "step" in row]
    times = StepTimes(card=facts["card"], steps=tuple(steps))
    write_text(MEASURED_HERE, times.model_dump_json(indent=1) + "\n")
    tables = {"steps": list(rows_of(STEPS, rows)), "ranking": list(rows_of(RANKED, rows))}
    ceilings = rows.get(CEILINGS, {}).get("cells")
    # A page in `PAGES` changes the checkout, and with it the revision that later parts name.
    folder = PAGES if rows.keys() == {*NAMES} else PARTS_HERE.parent
    write_page("gpu", folder, versions=facts, ceilings=ceilings, **tables)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each part, and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dry",
        action="store_true",
        help="run in a tiny size on the CPU, and write no file; it needs TRITON_INTERPRET=1",
    )
    parser.add_argument("--part", choices=NAMES, help="measure one part, and print it as JSON")
    parser.add_argument("--part-limit-s", type=float, default=PART_LIMIT_S, metavar="S")
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(True)
    if options.dry:
        for name in NAMES:
            print(name, measured(name, torch.device("cpu")), flush=True)  # noqa: T201
        return
    if not torch.cuda.is_available():
        raise UsageError(
            "make gpu: torch finds no CUDA GPU on this machine; expected one; "
            "`make gpu DRY=1` runs each part in a tiny size on the CPU"
        )
    if options.part:
        print(json.dumps(measured(options.part, torch.device("cuda", 0))))  # noqa: T201
        return
    facts, rows = versions(), dict[str, Row]()
    if PARTS_HERE.is_file():
        earlier = json.loads(PARTS_HERE.read_text(encoding="utf-8"))
        if (earlier["revision"], earlier["versions"]) == (revision(), facts):
            rows = {name: row for name, row in earlier["rows"].items() if "cells" in row}
    for name in NAMES:
        if name not in rows:
            rows[name] = measured_apart(name, options.part_limit_s)
            print(name, rows[name], flush=True)  # noqa: T201
            write_results(facts, rows)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
