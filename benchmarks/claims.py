"""Test claims of papers and of the competition's winners, and write docs/results/claims.md.

`python -m benchmarks.claims --out runs --real ../shared/tpugraphs` trains and measures what is
missing in runs/accuracy, runs/segments, runs/go and runs/claims, and writes the page. The same
command resumes. The claims and their models are in pages/claims.toml.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import TEMPLATES, errors_in_one_line, go, interval_text, segments, write_page
from benchmarks.accuracy.cells import Cell, run_cell
from benchmarks.accuracy.report import CellResult, Estimate, difference, estimate_of, value_text
from benchmarks.accuracy.tasks import TASKS, Sources, why_no_data
from common.files import alone_in
from common.metrics import METRICS
from common.settings import SAMPLE, read_toml
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import distinct_configs, group_means
from data.manifest import read_manifest
from data.official.published import official_sizes
from data.tree import COLLECTIONS, file_from_path, npz_root
from ensembles.blend import choice_file, read_choice
from ensembles.ranking.configs import default_row
from models.run_folder import DONE

VERDICTS = ("reproduced", "not reproduced", "cannot be tried here")
REPRODUCED, NOT_REPRODUCED, NOT_TRIED = VERDICTS
NETWORK, RULES = "cross_config_sage", ("none", "hops-1", "hops-2", "hops-3")
# Steps of a network on pruned graphs, and the recipe, by task.
PRUNED = {"unet3d": ("within_graph", 200), "large": ("cpu", 200)}
# A loss of tau that counts as none, and a growth of memory that counts as constant.
EQUAL_TAU, CONSTANT_RATIO, SPEEDUP = 0.02, 1.5, 3.0
# The blog on TpuGraphs: the best layouts are up to 32 % faster than the compiler's default.
LAYOUT_GAIN, CLAIMED_PAIRS = 1.32, {"layout": 31e6, "tile": 13e6}


class Row(NamedTuple):
    """A row of the page. `tried` is the data and its amount."""

    claim: str
    source: str
    tried: str
    figure: str
    verdict: str


def verdict(is_true: bool) -> str:
    """Return the verdict on a claim that was tried."""
    return REPRODUCED if is_true else NOT_REPRODUCED


def compare(
    cells: Sequence[CellResult], rivals: Sequence[CellResult], metric: str
) -> tuple[Estimate, str]:
    """Return the difference between two sides, and a text with both means."""
    lead = difference(cells, rivals, metric) or Estimate(np.nan)
    by_side = (Estimate(estimate_of(side, metric).mean) for side in (cells, rivals))
    means = " − ".join(value_text(mean, metric) for mean in by_side)
    return lead, f"{metric} {means} = {value_text(lead, metric, '+')}"


def tried_text(place: str, n_graphs: int, n_seeds: int) -> str:
    return f"{place} (graphs: {n_graphs}, seeds: {n_seeds})"


def comparison_rows(
    comparison: Mapping[str, Any], cells: Sequence[CellResult], rivals: Sequence[CellResult]
) -> Iterator[Row]:
    """Yield the row of a comparison, or one for each part. A part is a collection."""
    metric = METRICS[TASKS[comparison["task"]].kind]
    for part in comparison.get("parts", [""]):
        chosen = [
            [
                cell | {"graphs": {k: v for k, v in cell["graphs"].items() if k.startswith(part)}}
                for cell in side
            ]
            for side in (cells, rivals)
        ]
        lead, figure = compare(chosen[0], chosen[1], metric)
        place, n_graphs = part or TASKS[comparison["task"]].title, len(chosen[0][0]["graphs"])
        tried = tried_text(place, n_graphs, len(cells))
        yield Row(comparison["claim"], comparison["source"], tried, figure, verdict(lead.low > 0))


def run_cells(cells: Sequence[Cell], sources: Sources, out: Path) -> list[CellResult]:
    """Train the missing cells of a contender, and return all."""
    keys = cells[0].overrides
    folder = out / "claims" / " ".join((cells[0].name, *keys)) if keys else out / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        for cell in cells:
            run_cell(cell, sources, folder)
    return [json.loads(cell.path(folder).read_text("utf-8")) for cell in cells]


def pruning_rows(cells: Sequence[segments.Cell], task: str) -> Iterator[Row]:
    """Yield a row per pruning rule against whole graphs: tau, time and memory."""
    by_rule = {rule: [c for c in cells if (c["task"], c["name"]) == (task, rule)] for rule in RULES}
    whole = by_rule.pop("none")
    for rule, pruned in by_rule.items():
        lead, text = compare(pruned, whole, "kendall_tau")
        cpu_s, mib = (
            [float(np.mean([c[key] for c in side])) for side in (pruned, whole)]
            for key in ("cpu_s", "mib")
        )
        costs = "{:.1f} of {:.1f} CPU s; {:,.0f} of {:,.0f} MiB".format(*cpu_s, *mib)
        is_true = lead.low > -EQUAL_TAU and cpu_s[0] < cpu_s[1] and mib[0] < mib[1]
        claim = f"Pruning to {rule} keeps the order and saves time and memory"
        tried = tried_text(task, len(pruned[0]["graphs"]), len(pruned))
        yield Row(claim, "winners", tried, f"{text}; {costs}", verdict(is_true))


def segment_rows(cells: Sequence[segments.Cell]) -> Iterator[Row]:
    """Yield the rows on Graph Segment Training."""
    steps = {(c["name"], c["seed"]): c for c in cells if c["task"] == segments.STEP}
    small, large = segments.STEP_NODES[0], segments.STEP_NODES[-1]
    sizes = f"a step, {small:,} to {large:,} nodes"
    for name in [*segments.MODES][1:]:
        ratio = steps[name, large]["mib"] / steps[name, small]["mib"]
        speedup = steps["whole graph", large]["s"] / steps[name, large]["s"]
        claim = f"Training with {name} needs constant memory"
        text = f"memory × {ratio:.2f}, nodes × {large / small:.1f}"
        yield Row(claim, "GST", sizes, text, verdict(ratio < CONSTANT_RATIO))
        claim, text = f"A step with {name} is {SPEEDUP:g} times faster", f"{speedup:.1f} times"
        yield Row(claim, "GST", f"a step, {large:,} nodes", text, verdict(speedup >= SPEEDUP))
    for task in segments.SEGMENT_NODES:
        whole, *others = (
            [c for c in cells if (c["task"], c["name"]) == (task, f"{name}, 200 steps")]
            for name in segments.MODES
        )
        for name, chosen in zip([*segments.MODES][1:], others, strict=True):
            if chosen:
                lead, text = compare(chosen, whole, "kendall_tau")
                claim = f"Training with {name} loses no accuracy at equal steps"
                tried = tried_text(task, len(chosen[0]["graphs"]), len(chosen))
                yield Row(claim, "GST", tried, text, verdict(lead.low > -EQUAL_TAU))


def go_rows(results: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows on GO and on XLA's fusion, from the results of benchmarks.go."""
    orders = {
        "tries of GO - tries at random": (0, "GO's policy orders edits of unseen programs"),
        "tries of GO - tries of the ridge": (0, "GO's policy is better than a regression"),
        go.OVER_MENU: (1, "GO's policy is better than the order of experts"),
    }
    tried = f"{len(results['programs'])} programs"
    for name, (bound, claim) in orders.items():
        values = results["means"][name]
        text = f"{name}: {interval_text(*values)}"
        yield Row(claim, "GO", tried, text, verdict(values[2] < bound))
    for name, values in results["cartpole"].items():
        environments, variant = name.split(", ", 1)
        if variant != "the same again":
            claim = f"A loop of Cartpole is faster: {variant}"
            tried, text = f"{environments} environments", f"time × {interval_text(*values)}"
            yield Row(claim, "fusion", tried, text, verdict(values[2] < 1))


def default_rows(sources: Sources) -> Iterator[Row]:
    """Yield how much the best layouts gain over the compiler's default, by data."""
    claim = "The best layouts are up to 32 % faster than the compiler's default"
    ratios: dict[str, list[float]] = {}
    for name, facts in read_manifest(sources.sample)["graphs"].items():
        if name.startswith("layout:"):
            ratios.setdefault("sample", []).append(facts["default_over_fastest"])
    for path in sorted(npz_root(sources.real).rglob("layout/**/*.npz")) if sources.real else ():
        graph = read_layout(file_from_path(path))
        if graph.is_labelled:
            _, group = distinct_configs(graph)
            runtime = group_means(graph.runtime_ns, group)
            ratio = float(runtime[group[default_row(graph)]] / runtime.min())
            ratios.setdefault("TPU", []).append(ratio)
    for place, values in ratios.items():
        gains = 100 * (exp(np.mean(np.log(values))) - 1), 100 * (max(values) - 1)
        text = "{:.1f} % on average, {:.1f} % at most".format(*gains)
        is_true = max(values) >= LAYOUT_GAIN
        yield Row(claim, "TpuGraphs", f"{place}: {len(values)} graphs", text, verdict(is_true))


def size_rows() -> Iterator[Row]:
    """Yield the number of configs of the dataset, from data/official."""
    for kind, claimed in CLAIMED_PAIRS.items():
        count = sum(size.graphs * size.configs for size in official_sizes() if size.kind == kind)
        claim = f"The dataset has {claimed / 1e6:.0f} million {kind} configs"
        is_true = abs(count / claimed - 1) < 0.1
        text = f"{count / 1e6:.1f} million"
        yield Row(claim, "TpuGraphs", "published sizes of its parts", text, verdict(is_true))


def weight_rows(out: Path, seeds: Sequence[int]) -> Iterator[Row]:
    """Yield rows on weights that runs on the sample fit to the valid split.

    The gain of a run is measured on families outside the fit.
    """
    records: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        folder = out / "claims" / f"weights-seed{seed}"
        if not (folder / DONE).exists():
            sets = (f"seeds=[{seed}]", "threads=1", "blend.choose=true", "blend.weights={}")
            words = ["run", "--data", str(SAMPLE), "--out", str(folder), "--resume"]
            words += [word for key in sets for word in ("--set", key)]
            subprocess.run([sys.executable, "-m", "pipeline", *words], check=True)  # noqa: S603
        # Collections that choose together have equal records.
        found = (read_choice(choice_file(folder, collection)) or {} for collection in COLLECTIONS)
        fitted = {" and ".join(record["of"]): record for record in found if "gain" in record}
        for place, record in fitted.items():
            records.setdefault(place, []).append(record)
    for place, choices in records.items():
        n_sure = sum(choice["gain_ci99"][0] > 0 for choice in choices)
        gain = np.mean([choice["gain"] for choice in choices])
        claim = "Weights fitted to held-out families are better than equal ones"
        tried = tried_text(place, choices[0]["n_graphs"], len(choices))
        text = f"{gain:+.4f} on average, above noise in {n_sure} runs"
        yield Row(claim, "winners", tried, text, verdict(n_sure == len(choices)))


def pruning_jobs(
    sources: Mapping[str, Sources], seeds: Sequence[int]
) -> dict[segments.Key, segments.Job]:
    """Return the trainings on pruned graphs."""
    jobs = dict[segments.Key, segments.Job]()
    for task, rule in product(sorted(sources.keys() & PRUNED), RULES):
        recipe, steps = PRUNED[task]
        keys = (f"features.prune={rule}", f"{NETWORK}.training.steps={steps}")
        for seed in seeds:
            training = segments.Training(NETWORK, recipe, keys)
            jobs[task, rule, seed] = partial(
                segments.train_cell, task, training, seed, sources[task]
            )
    return jobs


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Train and measure what is missing, and write the page."""
    options = segments.options_parser(__doc__).parse_args(arguments)
    out, seeds = options.out, options.seeds
    by_task = segments.sources_of(options)
    sources = by_task.get("unet3d", by_task["sample"])
    claims, rows = read_toml(TEMPLATES / "claims.toml"), list[Row]()
    for comparison in claims["comparison"]:
        task = comparison["task"]
        if not why_no_data(TASKS[task], sources):
            sides = (
                [Cell(task, comparison[name], s, tuple(comparison.get(keys, ()))) for s in seeds]
                for name, keys in (("model", "keys"), ("rival", "rival_keys"))
            )
            rows += comparison_rows(comparison, *(run_cells(c, sources, out) for c in sides))
    pruned = segments.run_missing(out / "claims", pruning_jobs(by_task, seeds))
    for task in sorted(PRUNED.keys() & by_task):
        rows += pruning_rows(pruned, task)
    rows += weight_rows(out, seeds)
    rows += segment_rows(segments.run_missing(out / "segments", segments.jobs_of(by_task, seeds)))
    known = out / "go" / go.RESULTS
    rows += go_rows(
        json.loads(known.read_text("utf-8")) if known.exists() else go.measure(out / "go")
    )
    rows += [*default_rows(sources), *size_rows()]
    rows += [Row(c["claim"], c["source"], "", c["reason"], NOT_TRIED) for c in claims["untried"]]
    counts = {name: sum(row.verdict == name for row in rows) for name in VERDICTS}
    write_page("claims", options.report, rows=rows, counts=counts, sources=claims["sources"])


if __name__ == "__main__":
    main()
