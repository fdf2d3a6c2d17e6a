"""Test claims of papers and of strong solutions, and write docs/results/claims.md.

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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import TEMPLATES, errors_in_one_line, go, interval_text, segments, write_page
from benchmarks.accuracy.cells import Cell, run_cell
from benchmarks.accuracy.report import CellResult, Estimate, estimate, value_text
from benchmarks.accuracy.tasks import TASKS, Sources, why_no_data
from benchmarks.segments import Job, Key, Training, train_cell
from common.files import alone_in
from common.metrics import METRICS, family_interval
from common.settings import SAMPLE, read_toml
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import distinct_configs, group_means
from data.manifest import read_manifest
from data.official.published import official_sizes
from data.tree import COLLECTIONS, file_from_path, npz_root
from ensembles.blend import choice_file, read_choice
from ensembles.ranking.configs import default_row

REPRODUCED, OPEN = "reproduced", "not reproduced: open"
OPPOSITE, NOT_TRIED = "not reproduced: the opposite", "cannot be tried here"
NAMES = {"kendall_tau": "tau", "tile_score": "tile score"}
NETWORK = "cross_config_sage"
# Who used each pruning rule. The first one is the rival.
RULES = {"none": "", "hops-1": " (1st place)", "hops-2": "", "hops-3": " (16th place)"}
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
    figure: str = ""
    verdict: str = NOT_TRIED


def verdict(low: float, high: float, bound: float = 0.0) -> str:
    """Return the verdict on a claim that a number is above a bound. The interval may be nan."""
    if low > bound:
        return REPRODUCED
    return OPPOSITE if high < bound else OPEN


def compared(
    row: Row,
    cells: Sequence[CellResult],
    rivals: Sequence[CellResult],
    metric: str = "kendall_tau",
    *,
    bound: float = 0.0,
    part: str = "",
) -> Row:
    """Return the row of a claim with the difference of two sides, which have the same seeds.

    Few families widen the interval (common.metrics). A part is a collection.
    """
    graphs = {k: graph for k, graph in cells[0]["graphs"].items() if k.startswith(part)}
    sides = np.array(
        [[[c["graphs"][k][metric] for c in side] for k in graphs] for side in (cells, rivals)]
    )  # (2, g, seeds)
    gaps, families = sides[0] - sides[1], [graph["family"] for graph in graphs.values()]
    lead = estimate(gaps, families)
    if len(set(families)) > 1:
        lead = Estimate(lead.mean, *family_interval(gaps, families))
    means = " and ".join(value_text(Estimate(side.mean()), metric) for side in sides)
    return row._replace(
        tried=f"{row.tried} (graphs: {len(gaps)}, seeds: {len(cells)})",
        figure=f"{NAMES[metric]} {means}, difference {value_text(lead, metric, '+')}",
        verdict=verdict(lead.low, lead.high, bound),
    )


def sides_of(entry: Mapping[str, Any], task: str, seeds: Sequence[int]) -> list[list[Cell]]:
    """Return the cells of a model and of its rival."""
    names = ("model", "keys"), ("rival", "rival_keys")
    sides = [(entry[model], tuple(entry.get(keys, ()))) for model, keys in names]
    return [[Cell(task, name, seed, keys) for seed in seeds] for name, keys in sides]


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
        claim = f"Pruning to {rule} keeps tau and saves time and memory{RULES[rule]}"
        row = compared(Row(claim, "solutions", task), pruned, whole, bound=-EQUAL_TAU)
        cpu_s, mib = (
            [float(np.mean([c[key] for c in side])) for side in (pruned, whole)]
            for key in ("cpu_s", "mib")
        )
        costs = "{:.1f} and {:.1f} CPU s, {:,.0f} and {:,.0f} MiB".format(*cpu_s, *mib)
        is_cheaper = cpu_s[0] < cpu_s[1] and mib[0] < mib[1]
        result = row.verdict if is_cheaper else OPEN
        yield row._replace(figure=f"{row.figure}; {costs}", verdict=result)


def segment_rows(cells: Sequence[segments.Cell]) -> Iterator[Row]:
    """Yield the rows on Graph Segment Training."""
    live, exact = "two live segments", "all segments"
    steps = {(c["name"], c["seed"]): c for c in cells if c["task"] == segments.STEP}
    small, large = segments.STEP_NODES[0], segments.STEP_NODES[-1]
    ratio = steps[live, large]["mib"] / steps[live, small]["mib"]
    claim, tried = "The memory of a step is constant", f"a step, {small:,} to {large:,} nodes"
    text = f"{ratio:.2f} times the memory for {large / small:.1f} times the nodes"
    yield Row(claim, "GST", tried, text, REPRODUCED if ratio < CONSTANT_RATIO else OPEN)
    speedup = steps[exact, large]["s"] / steps[live, large]["s"]
    claim, tried = "Training is 3 times faster than with all segments", f"a step, {large:,} nodes"
    result = REPRODUCED if speedup >= SPEEDUP else OPEN
    yield Row(claim, "GST", tried, f"{speedup:.1f} times", result)
    claim = "Training ranks slightly better than 200 steps on whole graphs"
    for task, n_steps in product(segments.SEGMENT_NODES, segments.STEPS[live]):
        chosen, rivals = (
            [c for c in cells if (c["task"], c["name"]) == (task, name)]
            for name in (f"{live}, {n_steps} steps", "whole graph, 200 steps")
        )
        if chosen:
            yield compared(Row(claim, "GST", f"{task}, {n_steps} steps"), chosen, rivals)


def go_rows(results: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows on GO and on XLA's fusion, from the results of benchmarks.go."""
    n_programs = sum(float(row[2]) < go.MAX_RATIO for row in results["programs"])
    claims = {
        "tries at random": "The policy orders barriers of unseen programs better than chance",
        "tries of the ridge": "The policy orders them better than a ridge regression (control)",
    }
    for rival, claim in claims.items():
        mean, low, high = results["means"][f"tries of GO - {rival}"]
        means = (results["means"][name][0] for name in ("tries of GO", rival))
        text = "measured barriers {:.2f} and {:.2f}, difference ".format(*means)
        text += interval_text(mean, low, high)
        yield Row(claim, "GO", f"programs: {n_programs}", text, verdict(-high, -low))
    for name, ratio in results["cartpole"].items():
        environments, variant = name.split(", ", 1)
        if variant != "the same again":
            claim = f"Cartpole is faster: {variant} (up to 10.56 times with all changes)"
            text = f"{interval_text(*ratio)} of the time"
            result = verdict(-ratio[2], -ratio[1], -1)
            yield Row(claim, "fusion", f"{environments} environments", text, result)


def default_rows(sources: Sources) -> Iterator[Row]:
    """Yield how much the best layouts gain over the compiler's default, by data."""
    claim = "The best layouts are up to 32 % faster than the compiler's default (Google's blog)"
    ratios: dict[str, list[float]] = {}
    for name, facts in read_manifest(sources.sample)["graphs"].items():
        if name.startswith("layout:"):
            ratios.setdefault("sample", []).append(facts["default_over_fastest"])
    for path in sorted(npz_root(sources.real).rglob("layout/**/*.npz")) if sources.real else ():
        graph = read_layout(file_from_path(path))
        distinct, group = distinct_configs(graph)
        if graph.is_labelled and len(distinct) > 1:
            runtime = group_means(graph.runtime_ns, group)
            ratio = float(runtime[group[default_row(graph)]] / runtime.min())
            ratios.setdefault("TPU", []).append(ratio)
    for place, gains in ratios.items():
        n_above = sum(gain >= LAYOUT_GAIN for gain in gains)
        text = f"times as fast: median {np.median(gains):.3f}, at most {max(gains):.3f}"
        text += f", {LAYOUT_GAIN} or more in {n_above}"
        result = REPRODUCED if n_above else OPEN
        yield Row(claim, "TpuGraphs", f"{place} (graphs: {len(gains)})", text, result)


def size_rows() -> Iterator[Row]:
    """Yield the number of configs of the dataset, from data/official."""
    for kind, claimed in CLAIMED_PAIRS.items():
        count = sum(size.graphs * size.configs for size in official_sizes() if size.kind == kind)
        claim = f"The dataset has {claimed / 1e6:.0f} million {kind} configs"
        result = REPRODUCED if abs(count / claimed - 1) < 0.1 else OPEN
        yield Row(claim, "TpuGraphs", "published tables", f"{count / 1e6:.1f} million", result)


def weight_rows(out: Path, seeds: Sequence[int]) -> Iterator[Row]:
    """Yield rows on weights that runs on the sample fit to the valid split.

    The gain of a run is measured on families outside the fit.
    """
    records: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        folder = out / "claims" / f"weights-seed{seed}"
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
        claim = "Weights of the blend that fit held-out families are better than equal ones"
        tried = f"{place} (graphs: {choices[0]['n_graphs']}, seeds: {len(choices)})"
        text = f"{gain:+.4f} on average, above noise in {n_sure} runs"
        result = REPRODUCED if n_sure == len(choices) else OPEN
        yield Row(claim, "own", tried, text, result)


def pruning_jobs(sources: Mapping[str, Sources], seeds: Sequence[int]) -> dict[Key, Job]:
    """Return the trainings on pruned graphs."""
    jobs = dict[Key, Job]()
    for task, rule in product(sorted(sources.keys() & PRUNED), RULES):
        recipe, steps = PRUNED[task]
        keys = (f"features.prune={rule}", f"{NETWORK}.training.steps={steps}")
        for seed in seeds:
            training = Training(NETWORK, recipe, keys)
            jobs[task, rule, seed] = partial(train_cell, task, training, seed, sources[task])
    return jobs


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Train and measure what is missing, and write the page."""
    options = segments.options_parser(__doc__).parse_args(arguments)
    out, seeds = options.out, options.seeds
    by_task = segments.sources_of(options)
    sources = by_task.get("unet3d", by_task["sample"])
    claims, rows = read_toml(TEMPLATES / "claims.toml"), list[Row]()
    for entry in claims["comparison"]:
        for task in (name for name in entry["tasks"] if not why_no_data(TASKS[name], sources)):
            cells, rivals = (run_cells(side, sources, out) for side in sides_of(entry, task, seeds))
            for part in entry.get("parts", [""]):
                row = Row(entry["claim"], entry["source"], part or TASKS[task].title)
                rows.append(compared(row, cells, rivals, METRICS[TASKS[task].kind], part=part))
    pruned = segments.run_missing(out / "claims", pruning_jobs(by_task, seeds))
    for task in sorted(PRUNED.keys() & by_task):
        rows += pruning_rows(pruned, task)
    rows += weight_rows(out, seeds)
    rows += segment_rows(segments.run_missing(out / "segments", segments.jobs_of(by_task, seeds)))
    known = out / "go" / go.RESULTS
    results = json.loads(known.read_text("utf-8")) if known.exists() else go.measure(known.parent)
    rows += go_rows(results)
    rows += [*default_rows(sources), *size_rows()]
    rows += [Row(c["claim"], c["source"], "", c["reason"]) for c in claims["untried"]]
    verdicts, n_claims = [row.verdict for row in rows], len({row.claim for row in rows})
    counts = [verdicts.count(name) for name in (REPRODUCED, OPEN, OPPOSITE, NOT_TRIED)]
    facts = {"counts": counts, "n_claims": n_claims, "sources": claims["sources"]}
    write_page("claims", options.report, rows=rows, **facts)


if __name__ == "__main__":
    main()
