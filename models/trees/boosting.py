"""Gradient-boosting rankers on hand-crafted statistics, one row per config.

LightGBM groups rows by graph, so only the order within a graph counts. There are three objectives.
LambdaRank (Burges, 2010) uses levels of the rank by runtime as relevance. Its gain is linear, so
the whole order matters and not only the top. But it weighs a pair by its change of NDCG, which
favours the top. The pairwise logistic loss (RankNet, Burges et al., 2005) counts all pairs equally,
like Kendall's tau. The squared error estimates the standardised log runtime of each config alone.

Trees may begin from the scores of the linear ranker, and correct its errors. The cost of a layout
is nearly a sum over tensors, which trees alone approach slowly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError
from common.files import read_bytes, read_table, write_table, write_text
from common.metrics import family_folds, ranking_score
from data.families import family_of
from data.graphs.graph import Graph, distinct_configs
from features.statistics.configs import STATISTICS, RowStatistics, statistics_names, statistics_of
from models.config.recipe import Recipe
from models.config.trees import BoostingConfig
from models.registry import TrainJob
from models.trees.linear import (
    LINEAR,
    LINEAR_SCALE,
    LinearRanker,
    LinearRows,
    of_other_statistics,
    read_linear,
)
from models.trees.rows import (
    GraphRows,
    bin_rows,
    dataset_parameters,
    sample_rows,
    statistics_table,
)

if TYPE_CHECKING:
    import lightgbm

MODEL_FILE = "booster.txt"
IMPORTANCES = "importances.parquet"
# Rows that are scored at once.
SCORED_ROWS = 4096
# Pairs that the objective computes at once.
MAX_PAIRS = 1 << 21

Values = NDArray[np.float64]  # of rows: scores, runtimes
Derivatives = tuple[NDArray[np.float32], NDArray[np.float32]]  # gradient, diagonal of the Hessian
Objective = Callable[[Values, "lightgbm.Dataset"], Derivatives]


def train_boosting(job: TrainJob) -> None:
    """Write booster.txt, importances.parquet, and linear.json if trees begin from its scores."""
    import lightgbm

    config: BoostingConfig = getattr(job.recipe, job.model)
    graphs = sample_rows(job.files, config, job.seed)
    names = statistics_names(job.files[0].collection.kind, config.statistics)
    dataset = bin_rows(graphs, config, statistics_table(config.statistics), names)
    start = None
    if config.linear_start:
        start = LinearRows(graphs, LINEAR)
        ranker, scores = start.fit()
        ranker.write(job.run_dir)
        dataset.set_init_score(-LINEAR_SCALE * scores)
    runtime = np.concatenate([graph.runtime for graph in graphs])
    parameters = booster_parameters(
        config, len(runtime), seed=job.seed, threads=job.recipe.n_threads
    )
    if config.objective in OBJECTIVES:
        parameters["objective"] = OBJECTIVES[config.objective](runtime)
    rounds = config.num_boost_round
    if config.early_stop:
        parameters["num_leaves"], rounds = choose_capacity(
            graphs, dataset, parameters, config, seed=job.seed, start=start
        )
    write_booster(lightgbm.train(parameters, dataset, rounds), job.run_dir)


def booster_parameters(
    config: BoostingConfig, n_rows: int, *, seed: int, threads: int
) -> dict[str, object]:
    ranking = {
        "objective": "lambdarank",
        "label_gain": list(range(config.relevance_levels)),
        "lambdarank_truncation_level": min(config.configs_per_graph, config.configs_per_group),
    }
    return {
        **(ranking if config.objective == "lambdarank" else {}),
        **dataset_parameters(config, n_rows),
        "metric": "none",
        "learning_rate": config.learning_rate,
        "num_leaves": config.num_leaves,
        "feature_fraction": config.feature_fraction,
        "seed": seed,
        "num_threads": threads,
    }


def write_booster(booster: "lightgbm.Booster", run_dir: Path) -> None:
    """Write a booster, and the importance of each statistic."""
    write_text(run_dir / MODEL_FILE, booster.model_to_string())
    gain = booster.feature_importance("gain").astype(np.float64)
    splits = booster.feature_importance("split").astype(np.int64)
    table = pl.DataFrame({"statistic": booster.feature_name(), "gain": gain, "splits": splits})
    write_table(run_dir / IMPORTANCES, table.sort("gain", "statistic", descending=[True, False]))


def read_importances(run_dirs: Sequence[Path]) -> pl.DataFrame | None:
    """Read the importance of statistics, averaged over models.

    Returns:
        Columns statistic, gain (share of all gain) and splits (share of all splits), largest gain
        first. None if no folder has importances.
    """
    paths = [run_dir / IMPORTANCES for run_dir in run_dirs if (run_dir / IMPORTANCES).exists()]
    if not paths:
        return None
    columns = pl.col("gain", "splits")
    share = columns / columns.sum().clip(lower_bound=1e-12)
    shares = pl.concat(read_table(path).with_columns(share) for path in paths)
    table = shares.group_by("statistic").agg(columns.sum() / len(paths))
    return table.sort("gain", "statistic", descending=[True, False])


def booster_of(text: bytes, path: Path, *statistics: Sequence[str]) -> "lightgbm.Booster":
    """Return the booster of a text in a file, which must have one of some lists of statistics."""
    import lightgbm

    try:
        booster = lightgbm.Booster(model_str=text.decode())
    except (ValueError, lightgbm.basic.LightGBMError) as error:
        raise PipelineError(f"{path}: not a LightGBM model: {error}") from error
    if booster.feature_name() not in map(list, statistics):
        raise of_other_statistics(path)
    return booster


@dataclass(frozen=True)
class BoostingRanker:
    """A trained booster, the function that computes its rows, and the ranker that it began from."""

    booster: "lightgbm.Booster"
    rows_of: Callable[[Graph], RowStatistics]
    threads: int
    start: LinearRanker | None = None

    def score(self, graph: Graph) -> NDArray[np.float32]:
        first, group = distinct_configs(graph)
        return self.score_rows(graph, first)[group]

    def score_rows(self, graph: Graph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Score some configs (r,) of a graph. A lower score (r,) means a faster config."""
        compute = self.rows_of(graph)
        parts = [
            np.asarray(self.booster.predict(compute(part), num_threads=self.threads))
            for part in np.array_split(rows, -(-len(rows) // SCORED_ROWS))
        ]
        scores = -np.concatenate(parts).astype(np.float32)
        if self.start is None:
            return scores
        start = self.start.of(statistics_of(graph, self.start.statistics)(rows))
        return scores + LINEAR_SCALE * start.astype(np.float32)


def load_boosting(name: str, run_dir: Path, recipe: Recipe) -> BoostingRanker:
    config: BoostingConfig = getattr(recipe, name)
    names = [statistics_names(kind, config.statistics) for kind in STATISTICS]
    path = run_dir / MODEL_FILE
    booster = booster_of(read_bytes(path), path, *names)
    rows_of = partial(statistics_of, statistics=config.statistics)
    start = read_linear(run_dir, LINEAR) if config.linear_start else None
    return BoostingRanker(booster, rows_of, recipe.n_threads, start)


def choose_capacity(
    graphs: Sequence[GraphRows],
    dataset: "lightgbm.Dataset",
    parameters: dict[str, object],
    config: BoostingConfig,
    *,
    seed: int,
    start: LinearRows | None = None,
) -> tuple[int, int]:
    """Choose the number of leaves and rounds by cross-validation.

    Larger trees follow as long as their best mean score of the held-out graphs is higher.
    """
    fold_of = row_folds(graphs, config.folds, seed)
    best, capacity = -np.inf, (config.num_leaves, 1)
    for leaves in config.leaves_to_try:
        with_leaves = parameters | {"num_leaves": leaves}
        curve = held_out_curve(graphs, dataset, with_leaves, config, fold_of=fold_of, start=start)
        if max(curve) <= best:
            break
        best, capacity = max(curve), (leaves, int(np.argmax(curve)) + 1)
    return capacity


def held_out_curve(
    graphs: Sequence[GraphRows],
    dataset: "lightgbm.Dataset",
    parameters: dict[str, object],
    config: BoostingConfig,
    *,
    fold_of: NDArray[np.int64],
    start: LinearRows | None,
) -> list[float]:
    """Return the mean score of the held-out graphs after each round of the folds.

    The folds are trained in step. They stop after `early_stop` rounds without a better mean. A fold
    with `start` begins from a linear ranker that has not learned the fold's held-out rows.
    """
    import lightgbm

    def begin(
        train: "lightgbm.Dataset", held_out: "lightgbm.Dataset", parameters: dict[str, object]
    ) -> "tuple[lightgbm.Dataset, lightgbm.Dataset, dict[str, object]]":
        if start is not None:
            (fold,) = set(fold_of[held_out.used_indices])
            scores = start.fit(fold_of != fold)[1]
            for part in (train, held_out):
                part.construct().set_init_score(-LINEAR_SCALE * scores[part.used_indices])
        return train, held_out, parameters

    def judge(scores: Values, held_out: "lightgbm.Dataset") -> tuple[str, float, bool]:
        return "score", held_out_score(graphs, np.asarray(held_out.used_indices), scores), True

    curves = lightgbm.cv(
        parameters,
        dataset,
        config.num_boost_round,
        folds=[
            (np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold))
            for fold in range(fold_of.max() + 1)
        ],
        fpreproc=begin,
        feval=judge,
        callbacks=[lightgbm.early_stopping(config.early_stop, verbose=False)],
    )
    curve: list[float] = curves["valid score-mean"]
    return curve


def row_folds(graphs: Sequence[GraphRows], n_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row: whole families, or configs of each graph of one family."""
    families = [family_of(graph.file) for graph in graphs]
    sizes = [len(graph.rows) for graph in graphs]
    if len(set(families)) < 2:
        return np.concatenate([np.arange(size) % n_folds for size in sizes])
    return np.repeat(family_folds(families, min(n_folds, len(set(families))), seed), sizes)


def held_out_score(
    graphs: Sequence[GraphRows], held_out: NDArray[np.int64], scores: Values
) -> float:
    """Return the mean metric of the held-out rows over graphs.

    Args:
        held_out: (h,) ascending row numbers over all graphs.
        scores: (h,) scores. A higher score means a faster config.
    """
    values = []
    start = 0
    for graph in graphs:
        rows = slice(*np.searchsorted(held_out, [start, start + len(graph.rows)]))
        runtime = graph.runtime[held_out[rows] - start]
        start += len(graph.rows)
        if len(runtime) >= 2 and runtime.min() < runtime.max():
            values.append(ranking_score(graph.file.collection.kind, -scores[rows], runtime))
    return float(np.mean(values)) if values else 0.0


def pairwise_logistic(runtime: Values) -> Objective:
    """Return the pairwise logistic objective for LightGBM.

    The loss of a group of g rows is 1/g · Σ log(1 + exp(s_slow − s_fast)) over pairs of different
    runtime. A higher score s means a faster config.

    Args:
        runtime: (r,) runtimes of all rows. LightGBM may train on a part of them.
    """

    def objective(scores: Values, dataset: "lightgbm.Dataset") -> Derivatives:
        used = dataset.used_indices
        runtimes = runtime if used is None else runtime[used]
        gradient, hessian = np.empty(len(scores), np.float32), np.empty(len(scores), np.float32)
        sizes = np.asarray(dataset.get_group())
        single = scores.astype(np.float32)
        for end, g in zip(np.cumsum(sizes), sizes, strict=True):
            step = max(1, MAX_PAIRS // g)
            for start in range(end - g, end, step):
                rows, group = slice(start, min(start + step, end)), slice(end - g, end)
                order = np.sign(runtimes[group] - runtimes[rows, None])
                is_faster = order.astype(np.float32)  # (b, g)
                margin = is_faster * (single[rows, None] - single[group])
                wrong = np.abs(is_faster) / (1 + np.exp(np.clip(margin, -30, 30)))
                gradient[rows] = -(is_faster * wrong).sum(axis=1) / g
                hessian[rows] = (wrong * (1 - wrong)).sum(axis=1) / g
        return gradient, np.maximum(hessian, 1e-6)

    return objective


def squared_error(runtime: Values) -> Objective:
    """Return the squared error of the negative log runtimes, standardised in each group."""

    def objective(scores: Values, dataset: "lightgbm.Dataset") -> Derivatives:
        used = dataset.used_indices
        logs = -np.log(runtime if used is None else runtime[used])
        groups = np.split(logs, np.cumsum(dataset.get_group())[:-1])
        targets = [(group - group.mean()) / max(group.std(), 1e-9) for group in groups]
        return scores - np.concatenate(targets), np.ones_like(scores)

    return objective


OBJECTIVES = {"pairwise_logistic": pairwise_logistic, "squared_error": squared_error}
