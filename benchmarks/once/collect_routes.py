"""Compare the two ways of realising layouts on this machine: `python -m
benchmarks.once.collect_routes`.

It takes some minutes and needs JAX (`make setup-collect`), so it is no part of `make bench`, and
writes a file of its own, benchmarks/COLLECT_ROUTES.md.

For each program and route, in a process of its own pinned to one core: random configs that choose
layouts for a random share of the nodes, beside the default; CPU time of the process, minimum over
repeats and interleaved passes, twice.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from common.atomic import write_text

PROGRAMS = ("residual_b2", "attention_b8", "mlp_train_b32")
ROUTES = ("constraints", "physical")
N_CONFIGS = 60
PASSES = 4  # over all configs in each visit: a noisy second then spoils no minimum
REPEATS = 10
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
HEADINGS = (
    "program | route | nodes | k | default ms | fastest ms | slowest/fastest | default/fastest"
    " | faster than default | repeat tau | compile CPU s"
)


RESULTS = Path(__file__).with_name("COLLECT_ROUTES.md")
INTRODUCTION = """# Two ways to realise layouts on a CPU

Written by `python -m benchmarks.once.collect_routes`. `constraints` sets layouts in the HLO module,
`physical` stores every value in the chosen order. Of 60 random configs: the spread from slowest to
fastest, how many are more than 2 % faster than the compiler's default, and the Kendall tau between
two measurements.
"""


@dataclass(frozen=True)
class Outcome:
    """One row of the table; `n_faster` counts configs over 2 % faster than the default."""

    program: str
    route: str
    n_nodes: int
    n_configurable: int
    default_ms: float
    fastest_ms: float
    spread: float
    default_slowdown: float
    n_faster: int
    repeat_tau: float
    compile_s: float

    def row(self) -> str:
        """Return the row in Markdown."""
        cells: list[object] = [
            *(self.program, self.route, self.n_nodes, self.n_configurable),
            *(f"{self.default_ms:.3f}", f"{self.fastest_ms:.3f}", f"{self.spread:.2f}"),
            *(f"{self.default_slowdown:.2f}", self.n_faster, f"{self.repeat_tau:.2f}"),
            f"{self.compile_s:.2f}",
        ]
        return "| " + " | ".join(map(str, cells)) + " |"


def random_configs(
    options: list[NDArray[np.int8]], n_configs: int, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Draw (c, k, 18) configs; row 0 is the default, each other sets a random share of nodes.

    Small shares are drawn more often: what beats the default differs from it in few nodes.
    """
    drawn = []
    for index in range(n_configs):
        share = rng.random() ** 2 if index else 0.0
        rows = [
            of_node[rng.integers(len(of_node)) if rng.random() < share else 0]
            for of_node in options
        ]
        drawn.append(np.stack(rows))
    return np.stack(drawn)


def fastest_ns(runs: Sequence[Callable[[], None]]) -> NDArray[np.float64]:
    """Return each program's (c,) least CPU time over passes that take turns, in ns."""
    fastest = np.full(len(runs), np.inf)
    for _ in range(PASSES):
        for index, run in enumerate(runs):
            for _ in range(REPEATS):
                begun = time.process_time_ns()
                run()
                fastest[index] = min(fastest[index], time.process_time_ns() - begun)
    return fastest


def measure(name: str, route: str) -> Outcome:
    """Measure one program by one route in this process, which is pinned to its last core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = ONE_THREAD
    from data.collect.layouts.constraints import load_constrained
    from data.collect.physical.module import load_physical
    from data.collect.programs import load_program

    load = load_constrained if route == "constraints" else load_physical
    program = load(load_program(name))
    configs = random_configs(list(program.options), N_CONFIGS, np.random.default_rng(0))
    started = time.process_time()
    runs = [program.compile(config) for config in configs]
    compile_s = (time.process_time() - started) / len(runs)
    visits = [fastest_ns(runs), fastest_ns(runs)]
    best_ms = np.minimum(*visits) / 1e6
    return Outcome(
        program=name,
        route=route,
        n_nodes=len(program.graph["node_opcode"]),
        n_configurable=len(program.options),
        default_ms=float(best_ms[0]),
        fastest_ms=float(best_ms.min()),
        spread=float(best_ms.max() / best_ms.min()),
        default_slowdown=float(best_ms[0] / best_ms.min()),
        n_faster=int((best_ms < 0.98 * best_ms[0]).sum()),
        repeat_tau=float(kendalltau(visits[0], visits[1]).statistic),
        compile_s=compile_s,
    )


def main() -> None:
    """Write the table; with a program and a route as arguments, print one outcome as JSON."""
    if len(sys.argv) == 3:
        print(json.dumps(asdict(measure(*sys.argv[1:]))))  # noqa: T201
        return
    columns = HEADINGS.split(" | ")
    lines = [INTRODUCTION, f"| {HEADINGS} |", f"|{'---|' * len(columns)}"]
    for name in PROGRAMS:
        for route in ROUTES:
            command = [sys.executable, "-m", "benchmarks.once.collect_routes", name, route]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
            lines.append(Outcome(**json.loads(done.stdout)).row())
            print(lines[-1], flush=True)  # noqa: T201
    write_text(RESULTS, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
