"""The report of a run: the scores of its rankings on the valid split, and their origin."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from data.tree import COLLECTIONS, LAYOUTS, Collection, GraphFile
from ensembles.blend import BlendSpec, apply_blend, choice_file, read_choice, run_blend
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
Tables = Mapping[str, pl.DataFrame]


@dataclass(frozen=True)
class ValidSplit:
    """The rankings of a collection's valid split, and how they are judged.

    Attributes:
        labels: Runtimes of the ranked configs, by submission ID, of this and other collections.
    """

    state: RunState
    collection: Collection
    labels: Mapping[str, Labels]

    @cached_property
    def spec(self) -> BlendSpec:
        names = [member.name for member in self.state.members(self.collection)]
        spec = run_blend(self.state.out, self.state.recipe.blend, self.collection, names)
        return spec._replace(weights={name: spec.weights[name] for name in names})

    def scores(self, scorer: str) -> Tables:
        """Return the scores of a member, "blend" or "baseline"."""
        return _by_id(self.collection, read_scores(self._path(scorer)))

    def _path(self, scorer: str) -> Path:
        return scores_path(self.state.out, self.collection, scorer, "valid")

    def value_of(self, scores: Tables) -> float | None:
        """Return the value of any scores, by the same five configs rule for all of them."""
        # A member alone is judged on the graphs that it ranks.
        labels = {name: label for name, label in self.labels.items() if name in scores}
        to_measure = None
        if self.collection.kind == "tile":
            to_measure = _to_measure(_files(self.state), scores, self.spec.tile_error)
        report = score_submission(_rankings(scores), labels, to_measure=to_measure)
        return report.collections[self.collection.name].value

    def gains_over(self, values: Mapping[str, float | None]) -> dict[str, float]:
        """Return the blend's value minus that of each member, on the graphs the member ranks."""
        known = {member: value for member, value in values.items() if value is not None}
        blend, blend_values = self.scores("blend") if known else {}, dict[frozenset[str], Any]()
        gains = {}
        for member, value in known.items():
            graphs = frozenset(self.scores(member))
            if graphs not in blend_values:
                blend_values[graphs] = self.value_of({n: blend[n] for n in blend if n in graphs})
            gains[member] = blend_values[graphs] - value
        return gains

    def value_with(self, weights: Mapping[str, float]) -> float | None:
        """Return the value of a blend with such weights; None without a valid split."""
        if not self.state.of(self.collection, "valid"):
            return None
        tables = {name: read_scores(self._path(name)) for name in weights}
        scores = apply_blend(tables, self.spec._replace(weights=dict(weights)))
        return self.value_of(_by_id(self.collection, scores))


def _files(state: RunState) -> dict[str, GraphFile]:
    return {file.submission_id: file for file in state.files if file.split == "valid"}


def _by_id(collection: Collection, scores: pl.DataFrame) -> Tables:
    return {f"{collection.name}:{graph}": table for graph, table in by_graph(scores).items()}


def build_report(state: RunState, data_dir: Path) -> RunReport:
    """Score the rankings of the valid split and describe the run, without the costs of its stages.

    `slowdown@K` is of configs sorted by score. `diversified_slowdown@5` is of the five configs to
    measure, as in a row of the submission. So are all values of tiles. The function also writes
    valid-ranks.parquet, the data of the pages of graphs.
    """
    files, blended = _files(state), dict[str, pl.DataFrame]()
    truth = {name: read_labels_of(file) for name, file in files.items()}
    for collection in {file.collection for file in files.values()}:
        scores = read_scores(scores_path(state.out, collection, "blend", "valid"))
        blended |= _by_id(collection, scores)
    labels = {name: truth[name].only(table["config"].to_numpy()) for name, table in blended.items()}
    parts = {c: ValidSplit(state, c, labels) for c in state.ranked}
    tile_errors = [part.spec.tile_error for c, part in parts.items() if c.kind == "tile"]
    rows = state.rows
    judgement = score_submission(
        _rankings(blended),
        labels,
        ceilings={row.file.submission_id: row.ceiling for row in rows if row.ceiling is not None},
        to_measure=_to_measure(files, blended, *tile_errors),
        n_configs={name: len(graph.runtime_ns) for name, graph in truth.items()},
    )
    return RunReport(
        score=judgement.score,
        collections=_with_evidence(state.out, parts, judgement.collections, blended),
        left_out=judgement.left_out,
        recipe=state.recipe.name,
        seeds=list(state.recipe.seeds),
        models={collection.name: _models_of(part) for collection, part in parts.items()},
        left_out_of_training=[
            LeftOut(graph=item.file.submission_id, reason=item.reason) for item in state.unusable
        ],
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


def _models_of(part: ValidSplit) -> ModelsReport:
    state, collection, spec = part.state, part.collection, part.spec
    source, choice = state.sources[collection.name], read_choice(choice_file(state.out, collection))
    ranked = _ranked(state, collection)
    fallback = source.collection.name if source.collection else "baseline"
    folders: dict[str, list[Path]] = {}
    for member in state.members(collection):
        folders.setdefault(member.model, []).append(member.folder)
    trees = {model: read_importances(seeds) for model, seeds in folders.items()}
    values = {name: part.value_with({name: 1.0}) for name in spec.weights}
    return ModelsReport(
        members=list(spec.weights),
        member_values=values,
        gains=part.gains_over(values),
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


def _with_evidence(
    out: Path,
    parts: Mapping[Collection, ValidSplit],
    reports: Mapping[str, CollectionReport],
    blended: Tables,
) -> dict[str, CollectionReport]:
    """Add the baseline, the slowdown curve and the seeds. Write valid-ranks.parquet."""
    points, results = [pl.DataFrame(schema=RANKS_SCHEMA)], dict(reports)
    for collection, part in parts.items():
        name = collection.name
        if name not in reports or reports[name].value is None:
            continue
        keys = sorted(f"{name}:{graph}" for graph in reports[name].per_graph)
        baseline, labels = part.scores("baseline"), part.labels
        runtimes = [labels[key].runtime for key in keys]
        rankings = {"model": _rankings(blended), "baseline": _rankings(baseline)}
        curves = {
            scorer: slowdown_curve([ranking[key] for key in keys], runtimes)
            for scorer, ranking in rankings.items()
        }
        members = [part.scores(member) for member in part.spec.weights]
        for key in keys:
            tables = [blended[key], *(table.get(key) for table in members)]
            ranking, graph = rankings["model"][key], key.removeprefix(f"{name}:")
            points.append(rank_points(name, graph, ranking, labels[key], tables))
        values = _seed_values(part)
        results[name] = reports[name].changed(
            baseline=part.value_of(baseline),
            slowdown_curve=SlowdownCurve(k=list(CURVE_PICKS), **curves),
            seed_values=values,
            seed_sd=stdev(values.values()) if values else None,
        )
    write_table(out / RANKS, pl.concat(points))
    return results


def _to_measure(
    files: Mapping[str, GraphFile], scores: Tables, tile_error: float = TILE_ERROR
) -> dict[str, NDArray[np.int64]]:
    """Return five configs to measure of each graph, as positions in its scores."""
    configs = {}
    for name, table in scores.items():
        graph = read_graph(files[name])
        if isinstance(graph, LayoutGraph) and table.height < graph.n_configs:
            graph = graph.only(table["config"].to_numpy().astype(np.int64))
        configs[name] = top_k_to_measure(table["score"].to_numpy(), graph, TILE_PICKS, tile_error)
    return configs


def _rankings(scores: Tables) -> dict[str, NDArray[np.int64]]:
    return {name: ranking_from_scores(table["score"].to_numpy()) for name, table in scores.items()}


def _seed_values(part: ValidSplit) -> dict[str, float]:
    """Return the value of each seed's members; empty for a single seed."""
    by_model: dict[str, dict[int, str]] = {}
    for member in part.state.members(part.collection):
        by_model.setdefault(member.model, {})[member.seed] = member.name
    values = {}
    for seed in sorted({seed for seeds in by_model.values() for seed in seeds}):
        # A model without a seed has its first one there.
        names = [seeds.get(seed, next(iter(seeds.values()))) for seeds in by_model.values()]
        weights = {name: part.spec.weights[name] for name in names}
        if any(weights.values()):
            values[str(seed)] = part.value_with(weights)
    return {seed: value for seed, value in values.items() if value is not None and len(values) > 1}


def learning_curves(run: Path) -> list[LearningCurve]:
    """Read the learning curves of a run's networks, each thinned to at most 60 points."""
    curves = []
    for place in (LAYOUTS, *COLLECTIONS):
        for path in sorted((run / "models" / place.slug).glob(f"*/{METRICS}")):
            with blame(path, "JSON objects with numbers as step, loss and held_out"):
                text = path.read_text(encoding="utf-8", errors="replace")
                lines = [json.loads(line) for line in text.splitlines()]
                step, loss = _mean_points(lines, "loss")
                at, held_out = _mean_points(lines, "held_out")
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


def _mean_points(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(line["step"], line[key]) for line in lines if key in line]
    if not points:
        return [], []
    parts = np.array_split(np.array(points, np.float64), min(len(points), MAX_POINTS))
    return [int(p[-1, 0]) for p in parts], [round(float(p[:, 1].mean()), 6) for p in parts]
