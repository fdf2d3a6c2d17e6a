"""The report of a run: the scores of its rankings on the valid split, and their origin."""

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import blame
from common.files import read_table, write_table, write_text
from common.metrics import TILE_PICKS, ranking_from_scores
from common.reproducibility import revision
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import LayoutGraph
from data.labels import Labels, read_labels_of
from data.manifest import platforms_of
from data.tree import COLLECTIONS, LAYOUTS, Collection, GraphFile, collection_named
from ensembles.blend import (
    BlendSpec,
    apply_blend,
    choice_file,
    read_choice,
    run_blend,
)
from ensembles.picks import TILE_ERROR, top_k_to_measure
from ensembles.scores import scores_path
from models.predict import read_scores
from models.run_folder import METRICS, REPORT, REPORT_PICTURE
from models.trees.boosting import read_importances
from pipeline.run.state import SUBMISSION, RunState
from submissions.check import by_graph
from submissions.report.charts import (
    CURVE_PICKS,
    RANKS_SCHEMA,
    rank_points,
    slowdown_curve,
    write_overview,
)
from submissions.report.page import write_graph_pages, write_report_page
from submissions.run_report import (
    CollectionReport,
    LearningCurve,
    LeftOut,
    ModelsReport,
    RunReport,
    SlowdownCurve,
)
from submissions.score import score_submission

REPORT_PAGE = "report.html"
RANKS = "valid-ranks.parquet"
# A picture cannot show more points of a curve.
MAX_POINTS = 60
REPORTED_PACKAGES = ("torch", "torch-geometric", "lightgbm", "numpy", "polars", "scikit-learn")

# By submission ID.
Files = Mapping[str, GraphFile]
Tables = Mapping[str, pl.DataFrame]


def build_report(state: RunState, data_dir: Path) -> RunReport:
    """Score the rankings of the valid split and describe the run, without the costs of its stages.

    `slowdown@K` is of configs sorted by score. `diversified_slowdown@5` is of the five configs to
    measure, as in a row of the submission. So are all values of tiles. The function also writes
    valid-ranks.parquet, the data of the pages of graphs.
    """
    files = {file.submission_id: file for file in state.files if file.split == "valid"}
    whole = {name: read_labels_of(file) for name, file in files.items()}
    blended: dict[str, pl.DataFrame] = {}
    for collection in {file.collection for file in files.values()}:
        blended |= _scores(state, collection, "blend")
    labels = {name: whole[name].only(table["config"].to_numpy()) for name, table in blended.items()}
    rows = state.rows
    scored = score_submission(
        _rankings(blended),
        labels,
        ceilings={row.file.submission_id: row.ceiling for row in rows if row.ceiling is not None},
        to_measure=_to_measure(files, blended, *_tile_errors(state)),
        n_configs={name: len(graph.runtime_ns) for name, graph in whole.items()},
    )
    unusable = [
        LeftOut(graph=item.file.submission_id, reason=item.reason) for item in state.unusable
    ]
    return RunReport(
        score=scored.score,
        collections=_with_evidence(state, scored.collections, labels, blended),
        left_out=scored.left_out,
        recipe=state.recipe.name,
        seeds=list(state.recipe.seeds),
        models={c.name: _models_of(state, c, labels) for c in state.ranked},
        left_out_of_training=unusable,
        missing_parts=state.missing,
        bad_files=[row.error for row in rows if row.error],
        data=str(data_dir),
        measured_on=platforms_of(data_dir),
        learning_curves=learning_curves(state.out),
        environment=environment(state.recipe.n_threads) | state.device,
        revision=revision(),
        config=state.config,
    )


def write_report(out: Path, report: RunReport) -> Path:
    """Write report.json and the files of `draw_report`, and return the path of the page."""
    write_text(out / REPORT, report.to_text())
    return draw_report(out, report)


def draw_report(out: Path, report: RunReport) -> Path:
    """Write the page of a report, its picture and the pages of graphs. Return the first path."""
    ranks = read_table(out / RANKS, RANKS_SCHEMA) if (out / RANKS).exists() else None
    write_report_page(report, out / REPORT_PAGE, ranks)
    write_overview(report, out / REPORT_PICTURE)
    if ranks is not None:
        write_graph_pages(out, report, ranks)
    return out / REPORT_PAGE


def environment(threads: int) -> dict[str, Any]:
    """Return the versions and threads that a result depends on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": threads,
        **{name: version(name) for name in REPORTED_PACKAGES},
    }


def _models_of(
    state: RunState, collection: Collection, labels: Mapping[str, Labels]
) -> ModelsReport:
    source, members = state.sources[collection.name], state.members(collection)
    spec = _spec(state, collection)
    ranked, choice = _ranked(state, collection), read_choice(choice_file(state.out, collection))
    fallback = source.collection.name if source.collection else "baseline"
    folders: dict[str, list[Path]] = {}
    for member in members:
        folders.setdefault(member.model, []).append(member.folder)
    trees = {model: read_importances(seeds) for model, seeds in folders.items()}
    return ModelsReport(
        members=list(spec.weights),
        member_values={
            name: _value(state, collection, spec._replace(weights={name: 1.0}), labels)
            for name in spec.weights
        },
        unused=[name for name, graphs in ranked.items() if not graphs],
        method=spec.method,
        weights=blend_shares(spec.weights, ranked),
        importances={
            model: table.head(12).to_dicts() for model, table in trees.items() if table is not None
        },
        fallback_from=None if source.collection == collection else fallback,
        reason=source.reason,
        **({} if choice is None else {"blend": choice}),
    )


def _ranked(state: RunState, collection: Collection) -> dict[str, set[str]]:
    """Return the graphs of both splits that each member ranks."""
    ranked: dict[str, set[str]] = {}
    for split in (split for split in SUBMISSION if state.of(collection, split)):
        for name, table in state.scores(collection, split).items():
            graphs = {f"{split}/{graph}" for graph in table["graph"].unique()}
            ranked[name] = ranked.get(name, set()) | graphs
    return ranked


def blend_shares(weights: Mapping[str, float], ranked: Mapping[str, set[str]]) -> dict[str, float]:
    """Return the share of each member in the blend, as a mean over all ranked graphs."""
    shares = dict.fromkeys(weights, 0.0)
    graphs = sorted(set[str]().union(*ranked.values()))
    for graph in graphs:
        members = [name for name in weights if graph in ranked[name]]
        total = sum(weights[name] for name in members) or 1.0
        for name in members:
            shares[name] += weights[name] / total / len(graphs)
    return {name: round(share, 4) for name, share in shares.items()}


def _spec(state: RunState, collection: Collection) -> BlendSpec:
    names = [member.name for member in state.members(collection)]
    spec = run_blend(state.out, state.recipe.blend, collection, names)
    return spec._replace(weights={name: spec.weights[name] for name in names})


def _tile_errors(state: RunState) -> list[float]:
    return [_spec(state, place).tile_error for place in state.ranked if place.kind == "tile"]


def _with_evidence(
    state: RunState,
    parts: Mapping[str, CollectionReport],
    labels: Mapping[str, Labels],
    blended: Tables,
) -> dict[str, CollectionReport]:
    """Add the baseline, the slowdown curve and the seeds. Write valid-ranks.parquet."""
    points, reports = [pl.DataFrame(schema=RANKS_SCHEMA)], dict(parts)
    for name, part in parts.items():
        if part.value is None:
            continue
        collection = collection_named(name)
        keys = sorted(f"{name}:{graph}" for graph in part.per_graph)
        baseline = _scores(state, collection, "baseline")
        runtimes = [labels[key].runtime for key in keys]
        rankings = {"model": _rankings(blended), "baseline": _rankings(baseline)}
        curves = {
            scorer: slowdown_curve([ranked[key] for key in keys], runtimes)
            for scorer, ranked in rankings.items()
        }
        members = [_scores(state, collection, m.name) for m in state.members(collection)]
        for key in keys:
            scored = [blended[key], *(table.get(key) for table in members)]
            ranking, graph = rankings["model"][key], key.removeprefix(f"{name}:")
            points.append(rank_points(name, graph, ranking, labels[key], scored))
        values = _seed_values(state, collection, labels)
        reports[name] = part.changed(
            baseline=_judged(state, collection, baseline, labels),
            slowdown_curve=SlowdownCurve(k=list(CURVE_PICKS), **curves),
            seed_values=values,
            seed_sd=stdev(values.values()) if values else None,
        )
    write_table(state.out / RANKS, pl.concat(points))
    return reports


def _scores(state: RunState, collection: Collection, scorer: str) -> Tables:
    """Return the scores of a member, "blend" or "baseline" on the valid split, by submission ID."""
    return _by_id(collection, read_scores(scores_path(state.out, collection, scorer, "valid")))


def _by_id(collection: Collection, scores: pl.DataFrame) -> Tables:
    return {f"{collection.name}:{graph}": table for graph, table in by_graph(scores).items()}


def _value(
    state: RunState, collection: Collection, spec: BlendSpec, labels: Mapping[str, Labels]
) -> float | None:
    if not state.of(collection, "valid"):
        return None
    paths = {name: scores_path(state.out, collection, name, "valid") for name in spec.weights}
    tables = {name: read_scores(path) for name, path in paths.items()}
    return _judged(state, collection, _by_id(collection, apply_blend(tables, spec)), labels)


def _to_measure(
    files: Files, scores: Tables, tile_error: float = TILE_ERROR
) -> dict[str, NDArray[np.int64]]:
    """Return five configs to measure of each graph, as positions in its scores."""
    chosen = {}
    for name, table in scores.items():
        graph = read_graph(files[name])
        if isinstance(graph, LayoutGraph) and table.height < graph.n_configs:
            graph = graph.only(table["config"].to_numpy().astype(np.int64))
        chosen[name] = top_k_to_measure(table["score"].to_numpy(), graph, TILE_PICKS, tile_error)
    return chosen


def _judged(
    state: RunState, collection: Collection, scores: Tables, labels: Mapping[str, Labels]
) -> float | None:
    """Return the value of any scores, by the same five configs rule for all of them."""
    files = {file.submission_id: file for file in state.of(collection, "valid")}
    # A member alone is judged on the graphs that it ranks.
    ranked = {name: label for name, label in labels.items() if name in scores}
    error = _spec(state, collection).tile_error
    to_measure = _to_measure(files, scores, error) if collection.kind == "tile" else None
    report = score_submission(_rankings(scores), ranked, to_measure=to_measure)
    return report.collections[collection.name].value


def _rankings(scores: Tables) -> dict[str, NDArray[np.int64]]:
    return {name: ranking_from_scores(table["score"].to_numpy()) for name, table in scores.items()}


def _seed_values(
    state: RunState, collection: Collection, labels: Mapping[str, Labels]
) -> dict[str, float]:
    spec, names = _spec(state, collection), dict[int, list[str]]()
    by_model: dict[str, dict[int, str]] = {}
    for member in state.members(collection):
        by_model.setdefault(member.model, {})[member.seed] = member.name
    # A model without a seed has its first one there.
    for seed in sorted({seed for seeds in by_model.values() for seed in seeds}):
        names[seed] = [seeds.get(seed, next(iter(seeds.values()))) for seeds in by_model.values()]
    values = {}
    for seed, members in sorted(names.items()):
        weights = {name: spec.weights[name] for name in members}
        if any(weights.values()):
            values[str(seed)] = _value(state, collection, spec._replace(weights=weights), labels)
    return {seed: value for seed, value in values.items() if value is not None and len(values) > 1}


def learning_curves(run: Path) -> list[LearningCurve]:
    """Read the learning curves of a run's networks, each thinned to at most 60 points."""
    curves = []
    for place in (LAYOUTS, *COLLECTIONS):
        for path in sorted((run / "models" / place.slug).glob(f"*/{METRICS}")):
            with blame(path, "JSON objects with numbers as step, loss and held_out"):
                text = path.read_text(encoding="utf-8", errors="replace")
                lines = [json.loads(line) for line in text.splitlines()]
                step, loss = _thinned(lines, "loss")
                at, held_out = _thinned(lines, "held_out")
                if step:
                    curve = LearningCurve(
                        group=place.name,
                        member=path.parent.name,
                        step=step,
                        loss=loss,
                        held_out_step=at,
                        held_out=held_out,
                    )
                    curves.append(curve)
    return curves


def _thinned(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(line["step"], line[key]) for line in lines if key in line]
    if not points:
        return [], []
    parts = np.array_split(np.array(points, np.float64), min(len(points), MAX_POINTS))
    return [int(p[-1, 0]) for p in parts], [round(float(p[:, 1].mean()), 6) for p in parts]
