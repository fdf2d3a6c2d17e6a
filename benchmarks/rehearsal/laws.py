"""Laws of cost from the rehearsal's cases: what one unit of each stage takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.rehearsal.cases import BASE_CONFIGS, BASE_NODES, GNNS, TREES
from pipeline.planning.laws import PowerLaw, fit_law

Found = Mapping[str, Any]  # what a case's process printed, with its name and axes
MIB = 2**20
CONFIGS_PER_KERNEL = 64  # of a step: the recipe's default
SAME_SHARE = 0.5  # of the smallest peak: about what is the same at every size
SMALLEST = 1e-4  # seconds, or MiB: below, a measurement says nothing


def stage_s(found: Found, prefix: str, table: str = "cpu_seconds") -> float:
    """Return what the stages that begin with `prefix` took together."""
    return float(sum(value for name, value in found[table].items() if name.startswith(prefix)))


def trained_s(found: Found, model: str) -> float:
    """Return the processor seconds of a model's training."""
    return sum(
        float(value)
        for name, value in found["cpu_seconds"].items()
        if name.startswith("train ") and f" {model}-seed" in name
    )


def trained_mib(found: Found, model: str) -> float:
    """Return by how much a training raised the peak above the libraries."""
    peaks = [peak for name, peak in found["peak_mib"].items() if f" {model}-seed" in name]
    return max(peaks) - float(found["libraries_mib"])


def judging_s(found: Found) -> float:
    """Return what blending, the floor and the report took, per graph that was ranked."""
    members = sum(found["predict_s"].values())
    rest = stage_s(found, "predict ") - members
    return rest + stage_s(found, "rank without") + stage_s(found, "score")


def layout_sizes(found: Found) -> dict[str, float]:
    """Return what laws of layouts depend on."""
    axes, shape = found["axes"], found["shape"]
    sampled = min(axes["configs_per_graph"], shape["configs"])
    return {
        **shape,
        "hidden": axes["hidden"],
        "configs_per_step": axes["configs_per_step"],
        "sampled": sampled,
        "rows": sampled * axes["graphs"],
    }


def tile_sizes(found: Found) -> dict[str, float]:
    """Return what laws of tiles depend on."""
    axes = found["axes"]
    return {
        "configs": axes["configs"],
        "hidden": axes["hidden"],
        "pairs": axes["kernels_per_step"] * CONFIGS_PER_KERNEL,
        "rows": axes["graphs"] * min(500, axes["configs"]),
    }


def ranked_s(found: Found, model: str) -> float:
    """Return the processor seconds in which a model ranked all graphs."""
    return float(sum(s for name, s in found["predict_s"].items() if name.endswith(f" {model}")))


def _ranked(model: str, n_graphs: Callable[[Found], float]) -> Callable[[Found], float]:
    return lambda found: ranked_s(found, model) / n_graphs(found)


def _step(model: str) -> Callable[[Found], float]:
    return lambda found: float(found["step_s"][model])


def _trained_mib(model: str) -> Callable[[Found], float]:
    return lambda found: trained_mib(found, model)


def _beyond_smallest(model: str, grid: Sequence[Found]) -> Callable[[Found], float]:
    same = SAME_SHARE * min(trained_mib(found, model) for found in grid)
    return lambda found: trained_mib(found, model) - same


def _per_round(trees: str, linear: str) -> Callable[[Found], float]:
    return lambda found: (
        (trained_s(found, trees) - trained_s(found, linear)) / found["axes"]["rounds"]
    )


def _score_mib(found: Found, rows: float) -> float:
    members = len({name.split()[1] for name in found["predict_s"]})
    return float(found["bytes"]["run"]) / MIB / rows / (members + 2)


def graphs_of(found: Found) -> float:
    """Return how many graphs a layout case has: those to learn from, and the one to rank."""
    return float(found["axes"]["graphs"]) + 1


# What each stage without a network takes of one graph, and what that depends on.
LAYOUT_STAGES: Mapping[str, tuple[tuple[str, ...], Callable[[Found], float]]] = {
    "layout prepare": (
        ("nodes", "configs"),
        lambda found: stage_s(found, "prepare") / graphs_of(found),
    ),
    "layout statistics": (
        ("nodes", "sampled"),
        lambda found: trained_s(found, "layout_linear") / found["axes"]["graphs"],
    ),
    "layout score": (("nodes", "distinct"), judging_s),
    **{f"rank {model}": (("nodes", "distinct"), partial(ranked_s, model=model)) for model in TREES},
}


def _no_smaller_than_base(found: Found) -> bool:
    axes = found["axes"]
    return bool(axes["nodes"] >= BASE_NODES and axes["configs"] >= BASE_CONFIGS)


def _layout_laws(
    grid: Sequence[Found],
    trees: Sequence[Found],
    largest_trees: Sequence[Found],
    largest_networks: Sequence[Found],
) -> tuple[dict[str, PowerLaw], dict[str, PowerLaw]]:
    """Fit the laws of layouts.

    Of a small graph a stage without a network takes what it takes of any graph, which hides how it
    grows: those stages are fitted to cases no smaller than the base, and to the largest graphs.
    Steps are fitted to the grid and the largest graphs, of which not all fits into caches.
    """

    def law(
        names: Sequence[str], cost: Callable[[Found], float], cases: Sequence[Found] = grid
    ) -> PowerLaw:
        values = [max(cost(found), SMALLEST) for found in cases]
        return fit_law([layout_sizes(found) for found in cases], values, names)

    large = [*filter(_no_smaller_than_base, grid), *largest_trees]
    seconds = {name: law(names, cost, large) for name, (names, cost) in LAYOUT_STAGES.items()}
    seconds["round layout_boosting"] = law(
        ["rows"], _per_round("layout_boosting", "layout_linear"), trees
    )
    mib = {
        "layout raw": law(
            ["nodes", "configs"], lambda found: found["bytes"]["raw"] / MIB / graphs_of(found)
        ),
        "layout store": law(
            ["nodes", "configs"], lambda found: found["bytes"]["store"] / MIB / graphs_of(found)
        ),
        "layout scores of a config": _median_law(
            [_score_mib(found, found["shape"]["configs"]) for found in grid]
        ),
    }
    for model in GNNS:
        step = ["kept", "configs_per_step", "hidden"]
        seconds[f"step {model}"] = law(step, _step(model), [*grid, *largest_networks])
        seconds[f"rank {model}"] = law(
            ["kept", "distinct", "hidden"], partial(ranked_s, model=model)
        )
        mib[f"train {model}"] = law(step, _beyond_smallest(model, grid))
        mib[f"rank {model}"] = law(
            ["kept", "configs"],
            lambda found: stage_s(found, "predict", "peak_mib") - found["libraries_mib"],
        )
    return seconds, mib


def _tile_laws(grid: Sequence[Found]) -> tuple[dict[str, PowerLaw], dict[str, PowerLaw]]:
    def law(names: Sequence[str], cost: Callable[[Found], float]) -> PowerLaw:
        values = [max(cost(found), SMALLEST) for found in grid]
        return fit_law([tile_sizes(found) for found in grid], values, names)

    def ranked(found: Found) -> float:
        return float(found["axes"]["graphs"]) / 2  # a quarter of them in each of two splits

    def all_kernels(found: Found) -> float:
        return float(found["axes"]["graphs"]) * 1.5

    seconds = {
        "tile prepare": law(
            ["configs"], lambda found: stage_s(found, "prepare") / all_kernels(found)
        ),
        "tile statistics": law(
            ["configs"],
            lambda found: trained_s(found, "tile_linear") / found["axes"]["graphs"],
        ),
        "round tile_boosting": law(  # with its statistics, which differ from the linear ranker's
            ["rows"], lambda found: trained_s(found, "tile_boosting") / found["axes"]["rounds"]
        ),
        "tile score": law(["configs"], lambda found: judging_s(found) / ranked(found)),
    }
    for model in ("tile_boosting", "tile_linear"):
        seconds[f"rank {model}"] = law(["configs"], _ranked(model, ranked))
    mib = {
        "tile raw": law(
            ["configs"], lambda found: found["bytes"]["raw"] / MIB / all_kernels(found)
        ),
        "tile store": law(
            ["configs"], lambda found: found["bytes"]["store"] / MIB / all_kernels(found)
        ),
        "tile scores of a config": _median_law(
            [_score_mib(found, found["axes"]["configs"] * ranked(found)) for found in grid]
        ),
    }
    for model in ("late_fusion_sage", "early_fusion_sage"):
        seconds[f"step {model}"] = law(["pairs", "hidden"], _step(model))
        seconds[f"rank {model}"] = law(["configs", "hidden"], _ranked(model, ranked))
        mib[f"train {model}"] = law(["pairs", "hidden"], _trained_mib(model))
    return seconds, mib


def _median_law(values: Sequence[float]) -> PowerLaw:
    return PowerLaw(sorted(values)[len(values) // 2], {})


def laws_of(results: Sequence[Found]) -> dict[str, dict[str, dict[str, Any]]]:
    """Fit all laws; return them as rehearsal.json holds them, by "seconds" and "mib"."""
    layout = _layout_laws(
        [found for found in results if found["name"].startswith("grid")],
        [found for found in results if found["name"].startswith("trees")],
        [found for found in results if found["name"].startswith("largest trees")],
        [found for found in results if found["name"].startswith("largest networks")],
    )
    tile = _tile_laws([found for found in results if found["name"].startswith("tile-")])
    return {
        kind: {name: asdict(law) for name, law in {**layout[index], **tile[index]}.items()}
        for index, kind in enumerate(("seconds", "mib"))
    }
