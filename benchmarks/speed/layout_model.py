"""The layout GNN beside a plain version of the same equations.

`python -m benchmarks.speed.layout_model --nodes 500 --nodes 2000 --configs 64` prints the section.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.speed.memory import peak_mib
from benchmarks.speed.plain_layout_model import plain_copy, plain_gradients, plain_inputs
from benchmarks.speed.stages import write_graph
from data.read import read_layout
from data.synthetic import GraphSize
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import layout_inputs
from models.training.loop import prepare_torch
from models.training.losses import pairwise_hinge

RULE = "hops-1"
# Pruning keeps about this many nodes for each configurable one; the real graphs are alike.
KEPT_PER_CONFIGURABLE = 2.76
NODES_PER_CONFIGURABLE = 20
NAMES = ("ours", "plain")
MIN_FORWARD, MIN_STEP, MAX_MEMORY = 1.8, 1.6, 0.7
MAX_SCORE_DIFFERENCE, MAX_GRADIENT_DIFFERENCE = 1e-4, 1e-3
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Setting:
    """One line of the table: `precision` is that of matrix products, for both models."""

    n_nodes: int
    n_configs: int
    hidden: int = 64
    threads: int = 1
    forward_only: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"


FURTHER = (
    Setting(2_000, 128),
    Setting(500, 1_000, forward_only=True),
    Setting(2_000, 64, hidden=256),
    Setting(500, 64, precision="bfloat16"),
)


@dataclass(frozen=True)
class Case:
    """Both models with the same weights, on the same configs of one graph.

    Attributes:
        models: by name, each with its inputs and its configs: ours as (c,) positions, plain as
            (c, k, 18) values.
        runtime_ns: (c,) float64.
        n_nodes: n after pruning.
        precision: of matrix products, "float32" or "bfloat16".
    """

    models: dict[str, tuple[nn.Module, object, object]]
    runtime_ns: Tensor
    n_nodes: int
    precision: str = "float32"

    @torch.inference_mode()
    def forward(self, name: str) -> Tensor:
        """Return the scores, (c,)."""
        return self._scores(name)

    def step(self, name: str) -> None:
        """Take the gradients of the pairwise hinge loss."""
        self.models[name][0].zero_grad()
        pairwise_hinge(self._scores(name), self.runtime_ns).backward()

    def _scores(self, name: str) -> Tensor:
        model, inputs, configs = self.models[name]
        is_half = self.precision == "bfloat16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            scores: Tensor = model(inputs, configs)
        return scores.float()


def make_case(setting: Setting) -> Case:
    """Make a graph of about `n_nodes` kept nodes, and both models."""
    prepare_torch(seed=0, threads=setting.threads)
    k = max(4, round(setting.n_nodes / KEPT_PER_CONFIGURABLE))
    with tempfile.TemporaryDirectory() as name:
        size = GraphSize(NODES_PER_CONFIGURABLE * k, k, 2 * setting.n_configs)
        graph = read_layout(write_graph(Path(name), size))
        scaler = fit_node_scaler([graph.node_feat], scaling="log1p-standardise")
        inputs = layout_inputs(graph, rule=RULE, scaler=scaler)
        sample = np.arange(setting.n_configs)
        symbols = inputs.symbols(sample)
        config = CrossConfigSageConfig(hidden=setting.hidden)
        ours = CrossConfigSage(config)
        plain = plain_copy(ours, config), plain_inputs(inputs, graph, rule=RULE), symbols
        with_inputs = ours, inputs, sample
    runtime_ns = torch.from_numpy(inputs.runtime_ns[sample])
    models = {"ours": with_inputs, "plain": plain}
    return Case(models, runtime_ns, len(inputs.opcode), setting.precision)


@dataclass(frozen=True)
class Row:
    """What one case costs; seconds by name, one per round.

    `gradient_differences` is relative: of all gradients as one vector, and the worst parameter's.
    """

    setting: Setting
    n_nodes: int
    forward: Seconds
    step: Seconds
    peak_mib: dict[str, float]
    score_difference: float
    gradient_differences: tuple[float, float] | None


def measure(setting: Setting, *, rounds: int) -> Row:
    """Measure one case; without backward passes and memory if `forward_only`."""
    case = make_case(setting)
    difference = (case.forward("ours") - case.forward("plain")).abs().max()
    peaks = dict[str, float]()
    if not setting.forward_only:
        for name in NAMES:
            case.step(name)
            peaks[name] = step_mib(name, setting)
    return Row(
        setting=setting,
        n_nodes=case.n_nodes,
        forward=in_turn(case.forward, rounds),
        step=in_turn(case.step, 0 if setting.forward_only else rounds),
        peak_mib=peaks,
        score_difference=float(difference),
        gradient_differences=None if setting.forward_only else gradient_differences(case),
    )


def in_turn(work: Callable[[str], object], rounds: int, *, names: Sequence[str] = NAMES) -> Seconds:
    """Return each name's seconds over rounds that take turns, so a slow spell hits all."""
    seconds: Seconds = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            start = time.perf_counter()
            work(name)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def step_mib(name: str, setting: Setting) -> float:
    """Return what a forward and backward pass adds to the peak memory of a fresh process."""
    imported = "from benchmarks.speed.layout_model import Setting, make_case"
    setup = f"{imported}\ncase = make_case({setting!r})"
    return peak_mib(setup, f"case.step({name!r})")


def gradient_differences(case: Case) -> tuple[float, float]:
    """Return |ours - plain| / |plain| of all gradients as one vector, and the worst parameter's."""
    ours, plain = case.models["ours"][0], case.models["plain"][0]
    assert isinstance(ours, CrossConfigSage)
    found = plain_gradients(ours)
    norms = []
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        norms.append([(found[name] - parameter.grad).norm(), parameter.grad.norm()])
    difference, size = torch.tensor(norms, dtype=torch.float64).T
    worst = (difference / size.clamp(min=1e-12)).max()
    return float(difference.norm() / size.norm()), float(worst)


def ratio_cells(seconds: Seconds) -> list[str]:
    """Return best seconds of ours and plain, and how many times faster ours is: best, median."""
    if not seconds["ours"]:
        return ["", "", "", ""]
    ours, plain = seconds["ours"], seconds["plain"]
    return [
        f"{min(ours):.2f}",
        f"{min(plain):.2f}",
        f"{min(plain) / min(ours):.2f}",
        f"{median(plain) / median(ours):.2f}",
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table: one line per case."""
    lines = [
        "| n, c | width | precision | threads "
        "| forward s: ours | plain | times faster: best | median "
        "| forward+backward s: ours | plain | times faster: best | median "
        "| peak MiB: ours | plain | ratio | scores differ by | gradients by | worst parameter's |",
        "|---|" + "---:|" * 17,
    ]
    for row in rows:
        memory = ["", "", ""]
        if row.peak_mib:
            ours, plain = row.peak_mib["ours"], row.peak_mib["plain"]
            memory = [f"{ours:,.0f}", f"{plain:,.0f}", f"{ours / max(plain, 1e-9):.2f}"]
        setting = row.setting
        cells = [f"{row.n_nodes:,}, {setting.n_configs:,}", f"{setting.hidden}"]
        cells += [setting.precision, f"{setting.threads}"]
        cells += [*ratio_cells(row.forward), *ratio_cells(row.step), *memory]
        gradients = [f"{value:.0e}" for value in row.gradient_differences or ()] or ["", ""]
        cells += [f"{row.score_difference:.0e}", *gradients]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def report(
    nodes: Sequence[int] = (500, 2_000, 5_000),
    configs: Sequence[int] = (64,),
    *,
    hidden: int = 64,
    threads: Sequence[int] = (1, 2),
    rounds: int = 3,
    forward_only: bool = False,
    further: Sequence[Setting] = (),
) -> list[str]:
    """Measure; return the section of speed.md."""
    settings = [
        Setting(n, c, hidden, t, forward_only) for t, n, c in product(threads, nodes, configs)
    ]
    rows = [measure(setting, rounds=rounds) for setting in (*settings, *further)]
    gpu = "a GPU is at hand, but these are the processor's figures"
    if not torch.cuda.is_available():
        gpu = "there was no GPU to measure on"
    return [
        "## The layout GNN beside a plain version of the same equations",
        "",
        "Plain: PyG's SAGEConv on (c, n, f), see benchmarks/speed/plain_layout_model.py; the same",
        "weights, 2 blocks, pruned synthetic graphs of n nodes, c configs at once.",
        f"{rounds} rounds in turn in one process after one that does not count;",
        "peak memory of a forward and backward pass in a process of its own. Goals at n = 2,000",
        f"and 5,000: forward {MIN_FORWARD} and forward+backward {MIN_STEP} times faster, memory at",
        f"most {MAX_MEMORY}, scores within {MAX_SCORE_DIFFERENCE:.0e}, gradients within",
        f"{MAX_GRADIENT_DIFFERENCE:.0e} of their norm (the worst parameter is one whose own",
        f"gradient nearly cancels, since the loss ignores shifts of all scores); {gpu}.",
        "With bfloat16 products, the models agree to that precision only, and a processor without",
        "instructions for it takes many times as long.",
        "",
        *table(rows),
    ]


def main() -> None:
    """Measure the sizes that are given; print the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("nodes", "configs", "threads"):
        parser.add_argument(f"--{name}", type=int, action="append", help="may be repeated")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forward-only", action="store_true")
    options = {name: value for name, value in vars(parser.parse_args()).items() if value}
    print("\n".join(report(**options)))  # noqa: T201


if __name__ == "__main__":
    main()
