"""Trees on one program's own configs, for a program with some measured configs.

Each layout of each tensor of a configurable node is a one-hot feature. Tied nodes and equivalent
features count once. The features are specific to the program, so other programs are rejected. On
new configs of a real TPU program, this is the strongest model of the project. Layouts by tensor
rank unseen configs better than whole vectors, because different vectors share layouts of tensors.

One booster reads these columns. A second one reads the columns and statistics of each config. The
sum of both ranks at least as well as the better one. A third ranker joins if it helps in
cross-validation on the program's configs. It is either trees on statistics that begin from the
linear ranker, for many columns and few configs. Or it is a random forest on the columns (Breiman,
2001) for few columns, because deep trees see combinations of layouts.

Shapes: c configs, k configurable nodes in m columns, f features.
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
from common.files import read_json, write_text
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
# Trains a ranker on ascending rows (r,) of the sample. None trains on all rows.
TrainRanker = Callable[[NDArray[np.int64] | None], BoostingRanker]
# The file of each ranker, in the order of the sum.
FILES = {
    "columns": MODEL_FILE,
    "both": "booster_with_statistics.txt",
    "statistics": "booster_on_statistics.txt",
    "forest": "forest.txt",
}
ALWAYS, THIRD = ("columns", "both"), ("statistics", "forest")
# Rankers are compared only if each fold has this number of configs.
MIN_HELD_OUT = 4
# Configs in the comparison. Folds of all configs would take ten times the training.
MAX_COMPARED = 2_000
# Small, slow trees with the settings of the recipe `cpu` for unseen programs.
ON_STATISTICS = BoostingConfig(
    objective="pairwise_logistic",
    linear_start=True,
    num_boost_round=200,
    learning_rate=0.04,
    num_leaves=7,
    feature_fraction=0.3,
    configs_per_group=128,
)
# Deep trees on a part of the configs each, with most columns at every split.
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
    """The features of a program, with the hash of its content and the name of its file.

    A feature is 1 if a tensor (0..2) of a node (a position in config order) has a layout (6
    values).
    """

    program: str
    name: str
    node: list[int]
    tensor: list[int]
    layout: list[list[int]]

    def names(self, statistics: StatisticsSet | None = None) -> list[str]:
        """Return the names of the columns of `rows_of`.

        Args:
            statistics: Set of statistics, or None.
        """
        own = [
            f"node_{node}_{TENSORS[tensor]}_{'_'.join(str(d) for d in layout if d >= 0) or 'open'}"
            for node, tensor, layout in zip(self.node, self.tensor, self.layout, strict=True)
        ]
        return [*own, *(statistics_names("layout", statistics) if statistics else ())]

    def rows_of(self, graph: Graph, statistics: StatisticsSet | None = None) -> RowStatistics:
        """Return the function that computes the rows of configs.

        Args:
            graph: Graph of the program.
            statistics: Set of statistics that follow the features, or None.

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
        further = statistics_of(graph, statistics)
        return lambda rows: np.concatenate([columns(rows), further(rows)], axis=1)

    def table(self, graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute the features of some configs.

        Args:
            graph: Graph of the program.
            rows: (r,) rows of configs.

        Returns:
            (r, f) float32 of 0 and 1.
        """
        layouts = graph.configs.vectors.reshape(-1, N_TENSORS, VALUES_PER_TENSOR)
        wanted = np.asarray(self.layout, dtype=np.int8).reshape(-1, VALUES_PER_TENSOR)  # (f, 6)
        # (u, f): whether a vector of the graph sets a feature
        is_set = (layouts[:, self.tensor] == wanted).all(axis=2).astype(np.float32)
        ids = graph.configs.vector_ids(rows)[:, self.node]  # (r, f)
        return is_set[ids, np.arange(len(self.node))]


def column_features(graph: LayoutGraph, rows: NDArray[np.int64]) -> ColumnFeatures:
    """Find the features that distinguish some configs, without equivalent ones.

    Args:
        graph: Graph of the program.
        rows: (r,) rows of configs.
    """
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
                # A feature and its complement split configs in the same way.
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
    """Train on the labelled configs of one graph, and write columns.json, importances and boosters.

    Raises:
        PipelineError: There is more than one graph, or its runtimes have no order.
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
    rankers_to_try = FILES if is_compared else ("columns",)
    trainers = {name: ranker_trainer(name, job, graph, taken, features) for name in rankers_to_try}
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
    """Prepare the training of one ranker.

    Args:
        name: Name of the ranker, a key of FILES.
        job: Job of the whole model.
        graph: Graph of the program.
        taken: Configs to learn from.
        features: Features that distinguish these configs.
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
        # Ranks as normal deviates give all neighbours a comparable distance.
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
    if name == "statistics":
        return statistics_names("layout", chosen), partial(statistics_of, chosen=chosen)
    statistics = chosen if name == "both" else None
    return features.names(statistics), partial(features.rows_of, statistics=statistics)


def choose_weights(
    graph: Graph, trainers: Mapping[str, TrainRanker], taken: GraphRows, n_folds: int
) -> dict[str, float]:
    """Choose the rankers of the sum by Kendall's tau of held-out configs, the mean over folds.

    Args:
        graph: Graph of the program.
        trainers: Function that trains each ranker.
        taken: Distinct configs to learn from, in random order.
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
    """Rankers of one program, whose weighted scores are summed."""

    rankers: Mapping[RankerName, BoostingRanker]
    weights: Mapping[RankerName, float]

    def score(self, graph: Graph) -> NDArray[np.float32]:
        weighted = [self.weights[name] * own.score(graph) for name, own in self.rankers.items()]
        return np.sum(weighted, axis=0).astype(np.float32)


def load(name: str, run_dir: Path, recipe: Recipe) -> OneProgramRanker:
    """Load the rankers of a program. They reject other programs.

    Raises:
        PipelineError: The files are missing, damaged, or of other statistics.
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
