"""rehearsal.md and rehearsal.json from the rehearsal's cases."""

import json
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import PAGES
from benchmarks.rehearsal.cases import (
    BASE_CONFIGS,
    BASE_NODES,
    FEW_STEPS,
    GNNS,
    NODES_PER_CONFIGURABLE,
    RANKED_CONFIGS,
    SHAPES,
    TREES,
)
from benchmarks.rehearsal.laws import (
    LAYOUT_STAGES,
    Found,
    laws_of,
    layout_sizes,
    ranked_s,
    stage_s,
    trained_mib,
    trained_s,
)
from benchmarks.speed.stages import growth_exponent
from common.atomic import write_text
from common.git import revision
from common.settings import ROOT
from pipeline.planning.laws import PowerLaw

PAGE = PAGES / "rehearsal.md"
LAWS = ROOT / "benchmarks" / "rehearsal.json"

COPIED_MIB, COPIES = 256, 5
Stage = Callable[[Found], float]

HEAD = """# A rehearsal at full size

Written by `make rehearsal`: `run` with every stage, on synthetic graphs, one thread. CPU seconds
are those of all its processes, {minutes} minutes in all without making the graphs; wall seconds are
longer where other work is on the machine. `benchmarks/rehearsal.json` holds the fitted laws, from
which `python -m pipeline plan` computes what a recipe costs.

## The largest graphs

One graph of each layout collection's largest shape, as far as the table below has it:

{shapes}

The number of configurable nodes of `nlp` is that of the real graph of 21,918 nodes. *trees*: the
whole graph to learn from and again to rank, all configs, by boosting and the linear ranker, in the
recipe `cpu`. *networks*: the whole graph to learn from, 3 steps of 64 configs at width 32; ranked
are {ranked} configs of it, twice, since networks would rank all of them for hours on one thread;
how that grows with configs says the grid below. Tiles: 128 kernels of 40 nodes and one of 400 to
learn from, 32 and one in each other split, 1,842 configs each.

Large files are packed in processes of their own, whose time the CPU column has and whose memory
the last one lacks: it stands in packing_largest.md. A case that is not in the table was not run.
"""

GROWTH = """
## How cost grows

CPU seconds around a graph of {nodes} nodes, one in {per} of them configurable, and {configs}
configs, with another like it to rank; networks of width 16, {steps} steps of 32 configs; 100 rounds
on 500 configs per graph. The exponent b is that of cost = a · size^b, by least squares on
logarithms. Expected is about 1, less where parts of a stage are the same at every size.

By nodes (pruning keeps {kept} of them):
"""

AFTER = """
Where an exponent is far from 1: `prepare and audit` inflates what repeats in a file without packing
it again. A step takes so many configs of a graph and trees learn from 500 of them, however many
there are, so neither grows with configs. Nor does a step grow with graphs: it takes one. A single
graph is ranked and judged, so these do not grow with train graphs either.

## The laws

Cost of one unit (packing a graph, a step, a round, ranking a graph) as a product of powers, fitted
to the grid; steps of layouts to the largest graphs too. A small graph hides how stages of layouts
without a network grow: they are fitted to what is no smaller than the base, and to the largest
graphs. `distinct` counts different configs. `rank`, `train` under MiB are peaks beyond the
interpreter and its libraries:
"""

FOOT = """
Measured on {processor}, {threads} thread, which copies {copies_gb_per_s} GB/s in memory (bytes read
and bytes written); no GPU at hand. Revision {revision}."""


def write_results(results: Sequence[Found]) -> list[Path]:
    """Write the page and the laws; return both."""
    laws = laws_of(results)
    machine = {
        "processor": processor(),
        "threads": 1,
        "copies_gb_per_s": round(copied_gb_per_s(), 1),
        "revision": revision(),
    }
    libraries = sorted(float(found["libraries_mib"]) for found in results)[len(results) // 2]
    content = {"machine": machine, "libraries_mib": round(libraries), "laws": laws}
    write_text(LAWS, json.dumps(content, indent=1) + "\n")
    write_text(PAGE, "\n".join(page(results, laws, machine)) + "\n")
    return [PAGE, LAWS]


def processor() -> str:
    """Return the processor's name, as the system has it."""
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def copied_gb_per_s() -> float:
    """Return how many GB one thread reads and writes in a second, at best."""
    source = np.ones(COPIED_MIB << 17)
    target = np.empty_like(source)
    times = []
    for _ in range(COPIES):
        start = time.process_time()
        np.copyto(target, source)
        times.append(time.process_time() - start)
    return 2 * source.nbytes / min(times) / 1e9


def _step(model: str) -> Stage:
    return lambda found: float(found["step_s"][model])


def _trained(model: str) -> Stage:
    return lambda found: trained_s(found, model)


STAGES: dict[str, Stage] = {
    "prepare and audit": lambda found: stage_s(found, "prepare"),
    **{f"a step of {model}": _step(model) for model in GNNS},
    **{f"train {model}": _trained(model) for model in TREES},
    **{f"rank by {model}": partial(ranked_s, model=model) for model in (*GNNS, *TREES)},
    "rank without training": lambda found: stage_s(found, "rank without"),
    "score, report": lambda found: stage_s(found, "score"),
    "store, MB": lambda found: found["bytes"]["store"] / 1e6,
}


def along(results: Sequence[Found], axis: str) -> list[Found]:
    """Return the grid's cases that differ from its base in one axis alone, smallest first."""
    grid = [found for found in results if found["name"].startswith("grid")]
    base = {**grid[0]["axes"]}
    same = [
        found
        for found in grid
        if all(found["axes"][key] == base[key] for key in base if key != axis)
    ]
    return sorted(same, key=lambda found: found["axes"][axis])


def growth_table(results: Sequence[Found], axis: str) -> list[str]:
    """Return the table of how each stage grows along one axis."""
    cases = along(results, axis)
    lengths = [found["axes"][axis] for found in cases]
    lines = [
        f"| stage | {' | '.join(f'{length:,}' for length in lengths)} | exponent |",
        "|---|" + "---:|" * (len(cases) + 1),
    ]
    for name, cost in STAGES.items():
        values = [cost(found) for found in cases]
        exponent = "" if min(values) <= 0 else f"{growth_exponent(lengths, values):.2f}"
        cells = " | ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {name} | {cells} | {exponent} |")
    return lines


def largest_table(results: Sequence[Found]) -> list[str]:
    """Return what each stage of the largest cases took."""
    lines = [
        "| case | stage | CPU s | wall s | peak MiB |",
        "|---|---|---:|---:|---:|",
    ]
    for found in results:
        if not found["name"].startswith("largest"):
            continue
        for stage, wall_s in found["seconds"].items():
            peak = found["peak_mib"][stage]
            cpu_s = found["cpu_seconds"][stage]
            short = re.sub(r" (layout|tile):\S+", "", stage).replace("-seed0", "")
            lines.append(
                f"| {found['name'].removeprefix('largest ')} | {short} "
                f"| {cpu_s:.1f} | {wall_s:.1f} | {peak:.0f} |"
            )
    return lines


def check_table(results: Sequence[Found], laws: Mapping[str, Any]) -> list[str]:
    """Return how the grid's laws foretell the largest graphs."""
    lines = ["| case | what | measured, s | by the law | ratio |", "|---|---|---:|---:|---:|"]
    for found in results:
        if not found["name"].startswith("largest networks"):
            continue
        sizes = layout_sizes(found)
        ranked = {**sizes, "distinct": found["ranked_shape"]["distinct"]}
        for model in GNNS:
            mib = PowerLaw(**laws["mib"][f"train {model}"])(**sizes)
            lines.append(_checked(found, f"train {model}, MiB", trained_mib(found, model), mib))
            law = PowerLaw(**laws["seconds"][f"rank {model}"])
            taken_s = found["predict_s"][f"valid {model}"]
            lines.append(_checked(found, f"rank {model}", taken_s, law(**ranked)))
    return lines


def fitted_table(results: Sequence[Found], laws: Mapping[str, Any]) -> list[str]:
    """Return how laws in whose fit the largest graphs took part agree with these."""
    lines = ["| case | what | measured, s | by the law | ratio |", "|---|---|---:|---:|---:|"]
    steps = {f"step {model}": _step(model) for model in GNNS}
    stages = {name: cost for name, (_, cost) in LAYOUT_STAGES.items()}
    for beginning, costs in (("largest networks", steps), ("largest trees", stages)):
        for found in results:
            if found["name"].startswith(beginning):
                for name, cost in costs.items():
                    law = PowerLaw(**laws["seconds"][name])
                    lines.append(_checked(found, name, cost(found), law(**layout_sizes(found))))
    return lines


def _checked(found: Found, what: str, measured: float, expected: float) -> str:
    name = found["name"].split()[-1]
    return f"| {name} | {what} | {measured:.2f} | {expected:.2f} | {measured / expected:.2f} |"


def law_table(laws: Mapping[str, Any]) -> list[str]:
    """Return the laws themselves."""
    lines = ["| cost | of one | exponents |", "|---|---:|---|"]
    for kind, unit in (("seconds", "s"), ("mib", "MiB")):
        for name, law in laws[kind].items():
            exponents = ", ".join(f"{key} {value:.2f}" for key, value in law["exponents"].items())
            lines.append(f"| {name} | {law['coefficient']:.3g} {unit} | {exponents} |")
    return lines


def page(
    results: Sequence[Found], laws: Mapping[str, Any], machine: Mapping[str, Any]
) -> list[str]:
    """Return the page."""
    kept = [layout_sizes(found)["kept"] for found in along(results, "nodes")]
    cpu_s = sum(sum(found["cpu_seconds"].values()) for found in results)
    return [
        *_prose(HEAD, minutes=f"{cpu_s / 60:.0f}", ranked=RANKED_CONFIGS, shapes=_shapes()),
        *largest_table(results),
        *_prose(
            GROWTH,
            nodes=f"{BASE_NODES:,}",
            configs=f"{BASE_CONFIGS:,}",
            per=NODES_PER_CONFIGURABLE,
            steps=FEW_STEPS,
            kept=", ".join(f"{value:,.0f}" for value in kept),
        ),
        *growth_table(results, "nodes"),
        *_prose("\nBy configs per graph:\n"),
        *growth_table(results, "configs"),
        *_prose("\nBy train graphs (one graph is ranked, whatever they are):\n"),
        *growth_table(results, "graphs"),
        *_prose(AFTER),
        *law_table(laws),
        *_prose("\nOn the largest graphs, to which they were not fitted:\n"),
        *check_table(results, laws),
        *_prose("\nOn the largest graphs, which took part in their fit:\n"),
        *fitted_table(results, laws),
        *_prose(FOOT, **machine),
    ]


def _prose(text: str, **values: Any) -> list[str]:
    return text.format(**values).split("\n")


def _shapes() -> str:
    return "\n".join(
        f"- {name}: {size.n_nodes:,} nodes, {size.n_configurable:,} configurable, "
        f"{size.n_configs:,} configs"
        for name, size in SHAPES.items()
    )
