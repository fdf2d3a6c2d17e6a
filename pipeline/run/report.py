"""A run's report: how good its rankings are on the valid split, and what they rest on."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.atomic import write_text
from common.checksums import read_table, write_table
from common.errors import PipelineError
from common.git import revision
from data.audit.rows import AuditRow
from data.tree import COLLECTIONS, LAYOUTS, Collection, GraphFile, collection_named
from ensembles.blend import Mixing, mix
from ensembles.choice.in_run import choice_file, mixing_record, read_choice, written_mixing
from ensembles.members import Member
from ensembles.scores import scores_path
from models.predict import read_scores
from models.run_folder import METRICS, REPORT, REPORT_PICTURE, is_done
from models.trees.boosting import read_importances
from pipeline.run.best_configs import best_configs
from pipeline.run.state import SUBMISSION, RunState
from submissions.labels import Labels, cut_to_samples, read_labels_of
from submissions.report.curves import (
    BEST_SCHEMA,
    CURVE_PICKS,
    RANKS_SCHEMA,
    rank_points,
    slowdown_curve,
)
from submissions.report.graph_pages import write_graph_pages
from submissions.report.page import write_report_page
from submissions.report.pictures import write_overview
from submissions.score import note_samples, score_submission
from submissions.write import read_submission, submission_rows

REPORT_PAGE = "report.html"
RANKS, BEST = "valid-ranks.parquet", "valid-best.parquet"
MAX_POINTS = 60  # of a curve; more than a picture can show
REPORTED_PACKAGES = ("torch", "torch-geometric", "lightgbm", "numpy", "polars", "scikit-learn")

OF_A_CALL = ("environment", "revision", "seconds", "cpu_seconds", "peak_mib")

Rankings = Mapping[str, NDArray[np.int64]]


def build_report(
    state: RunState, data_dir: Path, rows: Sequence[AuditRow], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Score the valid split's submission and say what the run did.

    valid-ranks.parquet and valid-best.parquet, on which graphs' pages rest, are written too.

    Of each collection: `floor` (what a count of copied bytes, or of
    steps, reaches without training), `noise_ceiling` (Kendall tau between two measurements),
    `slowdown_curve` (`k`, and the mean slowdown@k of `model` and of `floor`), `seed_values` (what
    each seed alone would have had; empty for one seed) and `seed_sd` (their standard deviation).
    Of the run: `config`, `models` (which members rank each collection, by what method and weights,
    what their trees rest on, any fallback, and under `blend` what was chosen, with its nested
    value), `left_out` (graphs that were not judged, and why), `left_out_of_training`,
    `missing_parts` (of the dataset), `bad_files` (skipped on request), `learning_curves`, and what
    each stage of this call took (`seconds`, `cpu_seconds`, `peak_mib`).
    """
    files = [file for file in state.files if file.split == "valid"]
    labels = {file.submission_id: read_labels_of(file) for file in files}
    rankings = read_submission(state.out / SUBMISSION["valid"]) if files else {}
    whole, (rankings, labels) = labels, cut_to_samples(files, rankings, labels)
    ceilings = {row.file.submission_id: row.ceiling for row in rows if row.ceiling is not None}
    scored = score_submission(rankings, labels, ceilings=ceilings)
    note_samples(scored, whole)
    _add_evidence(state, scored["collections"], labels, {f.submission_id: f for f in files})
    return {
        **scored,
        "recipe": state.recipe.name,
        "seeds": list(state.recipe.seeds),
        "models": {
            c.name: _models_of(state, c, labels) for c in COLLECTIONS if c.name in state.sources
        },
        "left_out_of_training": [
            {"graph": item.file.submission_id, "reason": item.reason} for item in state.unusable
        ],
        "missing_parts": state.missing,
        "bad_files": [row.error for row in rows if row.error],
        "data": str(data_dir),
        "learning_curves": learning_curves(state.out),
        "environment": environment(state.recipe.n_threads) | state.device,
        "revision": revision(),
        "config": dict(config),
        "seconds": state.costs.seconds,
        "cpu_seconds": state.costs.cpu_seconds,
        "peak_mib": state.costs.peak_mib,
    }


def as_first_made(out: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Return the report that a finished run has, if it says the same: what made it stays there."""
    path = out / REPORT
    if not is_done(out) or not path.exists():
        return report
    try:
        first: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # damaged: it is written anew
        return report
    new = json.loads(json.dumps(report)) | {key: first.get(key) for key in OF_A_CALL}
    return first if first == new else report


def write_report(out: Path, report: dict[str, Any]) -> Path:
    """Write report.json and what `draw_report` draws; return the page's path."""
    write_text(out / REPORT, json.dumps(report, indent=1, allow_nan=False) + "\n")
    return draw_report(out, report)


def draw_report(out: Path, report: dict[str, Any], *, alone: tuple[str, str] | None = None) -> Path:
    """Write a report's page, its picture and the graphs' pages; return the page's path.

    Args:
        alone: as `write_graph_pages`.

    Raises:
        PipelineError: a parquet file of the run is damaged, or a file cannot be written.
    """
    ranks, best = (
        read_table(out / name, schema) if (out / name).exists() else None
        for name, schema in ((RANKS, RANKS_SCHEMA), (BEST, BEST_SCHEMA))
    )
    write_report_page(report, out / REPORT_PAGE, ranks)
    write_overview(report, out / REPORT_PICTURE)
    if ranks is not None:
        write_graph_pages(out, report, ranks, best, alone=alone)
    return out / REPORT_PAGE


def environment(threads: int) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": threads,
        **{name: version(name) for name in REPORTED_PACKAGES},
    }


def importances_of(models: Sequence[tuple[str, Path]]) -> dict[str, list[dict[str, Any]]]:
    """Return, by model, what its trees rest on most; `models`: name and folder, one per seed."""
    importances = {}
    for name in dict.fromkeys(model for model, _ in models):
        table = read_importances([folder for model, folder in models if model == name])
        if table is not None:
            importances[name] = table.head(12).to_dicts()
    return importances


def _models_of(
    state: RunState, collection: Collection, labels: Mapping[str, Labels]
) -> dict[str, Any]:
    source, members = state.sources[collection.name], state.members(collection)
    mixing = _mixing(state, collection, members)
    total = sum(mixing.weights.values())
    shares = {name: round(weight / total, 4) for name, weight in mixing.weights.items()}
    choice = read_choice(choice_file(state.out, collection))
    fallback = source.collection.name if source.collection else "heuristic"
    return {
        "members": [member.name for member in members],
        "member_values": {
            m.name: _mixed_value(
                state, collection, [m], mixing._replace(weights={m.name: 1.0}), labels
            )
            for m in members
        },
        **mixing_record(mixing._replace(weights=shares)),
        "importances": importances_of([(m.model, m.folder) for m in members]),
        "fallback_from": None if source.collection == collection else fallback,
        "reason": source.reason,
        **({} if choice is None else {"blend": choice}),
    }


def _mixing(state: RunState, collection: Collection, members: Sequence[Member]) -> Mixing:
    names = [member.name for member in members]
    mixing = written_mixing(state.out, state.recipe.blend, collection, names)
    return mixing._replace(weights={name: mixing.weights[name] for name in names})


def _add_evidence(
    state: RunState,
    parts: Mapping[str, dict[str, Any]],
    labels: Mapping[str, Labels],
    files: Mapping[str, GraphFile],
) -> None:
    tables, best = [pl.DataFrame(schema=RANKS_SCHEMA)], []
    for name, part in parts.items():
        collection = collection_named(name)
        path = scores_path(state.out, collection, "floor", "valid")
        floor = _judge(collection, read_scores(path), labels) if path.exists() else None
        part |= {"floor": floor, "slowdown_curve": None, "seed_values": {}, "seed_sd": None}
        if part["value"] is None:
            continue
        judged = {key: labels[key] for key in (f"{name}:{graph}" for graph in part["per_graph"])}
        keys, ranked = sorted(judged), dict[str, Rankings]()
        for who, scorer in (("model", "blend"), ("floor", "floor")):
            scores = read_scores(scores_path(state.out, collection, scorer, "valid"))
            ranked[who] = _rankings(collection, scores)
        runtimes = [judged[key].runtime for key in keys]
        part["slowdown_curve"] = {"k": list(CURVE_PICKS)} | {
            who: slowdown_curve([own[key] for key in keys], runtimes) for who, own in ranked.items()
        }
        for key, own in _own_scores(state, collection, keys).items():
            ranking, graph = ranked["model"][key], key.removeprefix(f"{name}:")
            tables.append(rank_points(name, graph, ranking, judged[key], own))
            best.append(best_configs(files[key], own[0][ranking]))
        values = dict(_seed_values(state, collection, judged))
        part |= {"seed_values": values, "seed_sd": stdev(values.values()) if values else None}
    write_table(state.out / RANKS, pl.concat(tables))
    write_table(state.out / BEST, pl.DataFrame(best, schema=BEST_SCHEMA))


def _own_scores(
    state: RunState, collection: Collection, keys: Sequence[str]
) -> dict[str, list[pl.DataFrame]]:
    """Return by ID the scores of a graph's configs in their order: the blend's, each member's."""
    tables = []
    for scorer in ("blend", *(member.name for member in state.members(collection))):
        scores = read_scores(scores_path(state.out, collection, scorer, "valid"))
        by_graph = scores.sort("graph", "config", maintain_order=True).partition_by(
            "graph", as_dict=True
        )
        tables.append({f"{collection.name}:{graph}": own for (graph,), own in by_graph.items()})
    return {key: [table[key] for table in tables] for key in keys}


def _mixed_value(
    state: RunState,
    collection: Collection,
    members: Sequence[Member],
    mixing: Mixing,
    labels: Mapping[str, Labels],
) -> float | None:
    files = state.of(collection, "valid")
    if not files:
        return None
    paths = {m.name: scores_path(state.out, collection, m.name, "valid") for m in members}
    tables = {name: read_scores(path) for name, path in paths.items()}
    return _judge(collection, mix(tables, mixing, files), labels)


def _judge(
    collection: Collection, scores: pl.DataFrame, labels: Mapping[str, Labels]
) -> float | None:
    report = score_submission(_rankings(collection, scores), labels)
    value = report["collections"][collection.name]["value"]
    return None if value is None else float(value)


def _rankings(collection: Collection, scores: pl.DataFrame) -> Rankings:
    return {row.id: row.ranking for row in submission_rows([(collection, scores)])}


def _seed_values(
    state: RunState, collection: Collection, judged: Mapping[str, Labels]
) -> Iterator[tuple[str, float]]:
    members = state.members(collection)
    mixing = _mixing(state, collection, members)
    seeds = sorted({member.seed for member in members if mixing.weights[member.name] > 0})
    if len(seeds) < 2:
        return
    for seed in seeds:
        own = [member for member in members if member.seed == seed]
        value = _mixed_value(state, collection, own, mixing, judged)
        if value is not None:
            yield str(seed), value


def learning_curves(run: Path) -> list[dict[str, Any]]:
    """Read the learning curves of a run; models that log none (trees, linear) have none.

    Returns:
        For each: `group`, what it learned from, and `member`, the model's name and seed; `step` and
        `loss`, and `held_out_step` and `held_out` (the metric on what was held out of training;
        empty without `early_stop`). Losses are means over the steps since the one before; there are
        at most 60 of each.

    Raises:
        PipelineError: a damaged file.
    """
    curves = []
    places = {place.slug: place.name for place in (LAYOUTS, *COLLECTIONS)}
    for slug, group in places.items():
        for path in sorted((run / "models" / slug).glob(f"*/{METRICS}")):
            lines = list(_metric_lines(path))
            step, loss = _thinned(lines, "loss")
            if step:
                at, value = _thinned(lines, "held_out")
                curve = {"step": step, "loss": loss, "held_out_step": at, "held_out": value}
                curves.append({"group": group, "member": path.parent.name, **curve})
    return curves


def _metric_lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            point = json.loads(line)
            point["step"] + 0
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"{path}: line {number} cannot be read: {error}; expected a JSON object with `step`"
            ) from error
        yield point


def _thinned(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(line["step"], line[key]) for line in lines if key in line]
    if not points:
        return [], []
    parts = np.array_split(np.array(points, np.float64), min(len(points), MAX_POINTS))
    return [int(p[-1, 0]) for p in parts], [round(float(p[:, 1].mean()), 6) for p in parts]
