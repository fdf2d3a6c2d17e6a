"""Trees on one program's own configs: for a program that has been measured a little.

The layout of each tensor of each configurable node is a feature by itself, one-hot; nodes that are
tied, and features that say the same of all configs, are taken once. Nothing of this carries over
to another program, so another one is refused; on further configs of a real TPU program it is the
strongest of all models here. Layouts by tensor rank unseen configs better than whole vectors, since
different vectors share tensors' layouts.

One booster reads these columns and a second one statistics of each config beside them: their sum
ranks no worse than the better of the two. A third ranker joins where cross-validation on the
program's own configs has it ahead: trees on statistics alone, which begin from the linear ranker,
where there are many columns for few configs; or a random forest on the columns (Breiman, 2001),
whose deep trees see which layouts matter only together, where there are few.

c configs, k configurable nodes in m columns, f features.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from common.errors import PipelineError
from common.files import write_text
from common.json_files import read_json
from common.metrics import ranking_score
from common.progress import progress
from common.settings import FrozenConfig
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import Graph, LayoutGraph, program_content
from data.graphs.packing import N_TENSORS, VALUES_PER_TENSOR
from features.statistics.configs import (
    RowStatistics,
    StatisticsSet,
    statistics_names,
    statistics_of,
)
from features.statistics.layout import TENSORS
from features.statistics.layout_details import OF_THE_FILE
from models.config.recipe import BoostingConfig, ConfigColumnsConfig, Recipe
from models.registry import TrainJob
from models.trees.boosting import (
    MODEL_FILE,
    BoostingRanker,
    prepare,
    read_booster,
    write_boosters,
)
from models.trees.linear import LINEAR, LINEAR_SCALE, fit_linear, read
from models.trees.rows import GraphRows, sample_rows

COLUMNS_FILE = "columns.json"
RankerName = Literal["columns", "both", "statistics", "forest"]
# Trains a ranker on some of the rows that are taken, (r,) ascending; None = on all.
TrainRanker = Callable[[NDArray[np.int64] | None], BoostingRanker]
# Of each ranker, in the order in which they are summed.
FILES = {
    "columns": MODEL_FILE,
    "both": "booster_with_statistics.txt",
    "statistics": "booster_on_statistics.txt",
    "forest": "forest.txt",
}
ALWAYS, THIRD = ("columns", "both"), ("statistics", "forest")
MIN_HELD_OUT = 4  # configs of a fold; with fewer, nothing is compared
MAX_COMPARED = 2_000  # configs; folds of them all would cost ten times the training itself
# Small, slow trees, as the recipe `cpu` has them for programs never seen.
ON_STATISTICS = BoostingConfig(
    objective="pairwise_logistic",
    linear_start=True,
    num_boost_round=200,
    learning_rate=0.04,
    num_leaves=7,
    feature_fraction=0.3,
    configs_per_group=128,
)
# Whole trees, each on a part of the configs, that may choose among most columns at every split.
FOREST = BoostingConfig(num_boost_round=100, num_leaves=1024, min_rows_per_leaf=1)
FOREST_PARAMETERS = {
    "boosting": "rf",
    "objective": "regression",
    "bagging_freq": 1,
    "bagging_fraction": 0.7,
    "feature_fraction": 1.0,
    "feature_fraction_bynode": 0.8,
}


class ColumnFeatures(FrozenConfig):
    """What the features are, and of which program: its content, and its file's name.

    A feature is 1 where the tensor (0..2) of a node (a place in config order) has a layout, 6
    values.
    """

    program: str
    name: str
    node: list[int]
    tensor: list[int]
    layout: list[list[int]]

    def names(self, statistics: StatisticsSet | None = None) -> list[str]:
        """Return the names of the columns of `rows_of`."""
        own = [
            f"node_{node}_{TENSORS[tensor]}_{'_'.join(str(d) for d in layout if d >= 0) or 'open'}"
            for node, tensor, layout in zip(self.node, self.tensor, self.layout, strict=True)
        ]
        return [*own, *(own_statistics(statistics)[0] if statistics else ())]

    def rows_of(self, graph: Graph, statistics: StatisticsSet | None = None) -> RowStatistics:
        """Return what computes the features of configs, and beside them statistics, if any.

        Raises:
            PipelineError: `graph` is another program.
        """
        assert isinstance(graph, LayoutGraph)
        if program_content(graph) != self.program:
            raise PipelineError(
                f"{graph.file.path}: another program than {self.name}, whose configs were learned, "
                "or other decisions (layouts, fusion) of it; expected those, or a model of another "
                "kind"
            )
        columns = partial(self.table, graph)
        if statistics is None:
            return columns
        further = own_statistics(statistics)[1](graph)
        return lambda rows: np.concatenate([columns(rows), further(rows)], axis=1)

    def table(self, graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the features of some configs (r,) of the program; (r, f) of 0 and 1."""
        layouts = graph.configs.vectors.reshape(-1, N_TENSORS, VALUES_PER_TENSOR)
        wanted = np.asarray(self.layout, dtype=np.int8).reshape(-1, VALUES_PER_TENSOR)  # (f, 6)
        # (u, f): whether a vector of the graph sets a feature
        is_set = (layouts[:, self.tensor] == wanted).all(axis=2).astype(np.float32)
        ids = graph.configs.vector_ids(rows)[:, self.node]  # (r, f)
        return is_set[ids, np.arange(len(self.node))]


def own_statistics(
    chosen: StatisticsSet,
) -> tuple[list[str], Callable[[Graph], RowStatistics]]:
    """Return the names of the statistics that a config has in every file, and what computes them.

    Further configs lie in another file than those that were learned from.
    """
    names = statistics_names("layout", chosen)
    kept = [at for at, name in enumerate(names) if name not in OF_THE_FILE]

    def of(graph: Graph) -> RowStatistics:
        compute = statistics_of(graph, chosen)
        return lambda rows: compute(rows)[:, kept]

    return [names[at] for at in kept], of


def column_features(graph: LayoutGraph, rows: NDArray[np.int64]) -> ColumnFeatures:
    """Find the features that tell some configs (r,) apart, each once."""
    node: list[int] = []
    tensor: list[int] = []
    layout: list[list[int]] = []
    layouts = graph.configs.vectors.reshape(-1, N_TENSORS, VALUES_PER_TENSOR)
    first_of_column = np.unique(graph.configs.codebooks.column_of, return_index=True)[1]
    ids = graph.configs.vector_ids(rows)
    seen: set[bytes] = set()
    for place in first_of_column.tolist():
        for number in range(N_TENSORS):
            taken, index = np.unique(layouts[:, number][ids[:, place]], axis=0, return_inverse=True)
            for which, values in enumerate(taken.tolist()):
                feature = index.reshape(-1) == which
                # One that is set where another is not splits configs as that one does.
                same = {np.packbits(feature).tobytes(), np.packbits(~feature).tobytes()}
                if not feature.all() and not same & seen:
                    seen |= same
                    node.append(place)
                    tensor.append(number)
                    layout.append(values)
    facts = {"program": program_content(graph), "name": graph.file.name}
    return ColumnFeatures(**facts, node=node, tensor=tensor, layout=layout)


class ColumnsFile(ColumnFeatures):
    """The content of columns.json."""

    weights: dict[RankerName, float]


def train(job: TrainJob) -> None:
    """Train on the labelled configs of one graph; write columns.json, importances and boosters.

    Raises:
        PipelineError: more than one graph is given, or its runtimes give no order.
    """
    if len(job.files) != 1:
        names = ", ".join(file.name for file in job.files[:3])
        raise PipelineError(
            f"{job.model}: {len(job.files)} graphs ({names}, …); it learns one program's configs; "
            "expected one train file"
        )
    graph = read_layout(job.files[0])
    config: ConfigColumnsConfig = getattr(job.recipe, job.model)
    (taken,) = sample_rows(job.files, config, job.seed)
    features = column_features(graph, taken.rows)
    is_compared = len(taken.rows) >= MIN_HELD_OUT * config.folds
    taught = FILES if is_compared else ("columns",)
    trainers = {name: ranker_trainer(name, job, graph, taken, features) for name in taught}
    weights = {"columns": 1.0}
    if is_compared:
        weights = choose_weights(graph, trainers, taken, config.folds)
    rankers = {name: trainers[name](None) for name in weights}
    write_boosters({FILES[name]: own.booster for name, own in rankers.items()}, job.run_dir)
    for ranker in rankers.values():
        if ranker.start:
            ranker.start.write(job.run_dir)
    content = ColumnsFile.model_validate({**features.model_dump(), "weights": weights})
    write_text(job.run_dir / COLUMNS_FILE, content.model_dump_json() + "\n")


def ranker_trainer(
    name: str, job: TrainJob, graph: LayoutGraph, taken: GraphRows, features: ColumnFeatures
) -> TrainRanker:
    """Prepare one of the rankers.

    Args:
        name: Name of the ranker, a key of FILES.
        job: Job of the whole model.
        graph: Graph of the program.
        taken: Configs to learn from.
        features: Columns that tell these configs apart.
    """
    own: ConfigColumnsConfig = getattr(job.recipe, job.model)
    config = {"statistics": ON_STATISTICS, "forest": FOREST}.get(name, own)
    names, rows_of = _features(name, features, own.statistics)
    compute = rows_of(graph)
    threads = job.recipe.n_threads
    trees = prepare(
        config, [taken], lambda _, rows: compute(rows), names, seed=job.seed, threads=threads
    )
    if name == "forest":
        # Ranks, as normal deviates: what tells neighbours apart counts alike everywhere.
        share = (rankdata(-taken.runtime) - 0.5) / len(taken.rows)
        trees.dataset.set_label(norm.ppf(share))
        trees = replace(trees, parameters=trees.parameters | FOREST_PARAMETERS)

    def train_ranker(some: NDArray[np.int64] | None) -> BoostingRanker:
        linear = start = None
        if config.linear_start:
            chosen = np.arange(len(taken.rows)) if some is None else some
            rows = GraphRows(taken.file, taken.rows[chosen], taken.runtime[chosen])
            linear, scores = fit_linear([rows], LINEAR)
            start = LINEAR_SCALE * scores
        return BoostingRanker(trees.train(some, start), lambda _: compute, threads, linear)

    return train_ranker


def _features(
    name: str, features: ColumnFeatures, chosen: StatisticsSet
) -> tuple[Sequence[str], Callable[[Graph], RowStatistics]]:
    """Return the names of what one of the rankers reads, and what computes it of a graph."""
    if name == "statistics":
        return own_statistics(chosen)
    statistics = chosen if name == "both" else None
    return features.names(statistics), partial(features.rows_of, statistics=statistics)


def choose_weights(
    graph: Graph, trainers: Mapping[str, TrainRanker], taken: GraphRows, n_folds: int
) -> dict[str, float]:
    """Choose which rankers are summed, by Kendall's tau of held-out configs, the mean over folds.

    Args:
        graph: Graph of the program.
        trainers: What trains each ranker.
        taken: Configs to learn from; distinct, in random order.
        n_folds: Number of folds of configs.

    Returns:
        Weight of each ranker: one over the deviation of its scores of held-out configs.
    """
    fold_of = np.arange(min(len(taken.rows), MAX_COMPARED)) % n_folds
    scores = {name: np.zeros(len(fold_of)) for name in trainers}
    for fold in range(n_folds):
        progress("which rankers help", fold, n_folds)
        held_out, learned = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        for name, train_ranker in trainers.items():
            scores[name][held_out] = train_ranker(learned).score_rows(graph, taken.rows[held_out])
    weights = {name: 1 / (float(own.std()) or 1.0) for name, own in scores.items()}

    def tau(names: tuple[str, ...]) -> float:
        blended = np.sum([weights[name] * scores[name] for name in names], axis=0)
        folds = [fold_of == fold for fold in range(n_folds)]
        runtime = taken.runtime[: len(fold_of)]
        taus = [ranking_score("layout", blended[own], runtime[own]) for own in folds]
        return float(np.mean(taus))

    best = max((ALWAYS, *((*ALWAYS, name) for name in THIRD)), key=tau)
    return {name: weights[name] for name in best}


@dataclass(frozen=True)
class OneProgramRanker:
    """Rankers of one program alone, whose weighted scores are summed."""

    rankers: Mapping[RankerName, BoostingRanker]
    weights: Mapping[RankerName, float]

    def score(self, graph: Graph) -> NDArray[np.float32]:
        weighted = [self.weights[name] * own.score(graph) for name, own in self.rankers.items()]
        return np.sum(weighted, axis=0).astype(np.float32)


def load(name: str, run_dir: Path, recipe: Recipe) -> OneProgramRanker:
    """Load what `train` wrote; what it gives refuses other programs.

    Raises:
        PipelineError: the model's files are missing, damaged or of other statistics.
    """
    path = run_dir / COLUMNS_FILE
    features = read_json(path, ColumnsFile, expected="features, and a weight for each ranker")
    rankers: dict[RankerName, BoostingRanker] = {}
    for part in features.weights:
        names, rows_of = _features(part, features, getattr(recipe, name).statistics)
        start = read(run_dir, LINEAR) if part == "statistics" else None
        rankers[part] = BoostingRanker(
            read_booster(run_dir / FILES[part], names), rows_of, recipe.n_threads, start
        )
    return OneProgramRanker(rankers, features.weights)
