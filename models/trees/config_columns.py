"""Trees on the configs of each train graph, for other configs of the same program or of a sibling.

A sibling is the same program in another size, for example with another batch size. Each layout of
each tensor of a configurable node is a one-hot feature. Tied nodes and equivalent features count
once. The features of a program mean the same in its siblings, because their configurable nodes are
in the same order. Layouts by tensor rank unseen configs better than whole vectors, because
different vectors share layouts of tensors.

A training learns the train graphs that rank a graph of the valid or test split, or all train graphs
if there is none. Each learned graph has its own rankers, and their scores are summed. One booster
reads the features. A second one, for at most 10,000 configs, also reads the statistics of each
config. A program with few configs has a third ranker. If it also has few features, the third ranker
is a random forest (Breiman, 2001), because deep trees see combinations of layouts. Cross-validation
on the program's configs then chooses the weights of the three (Breiman, 1996, "Stacked
regressions"). Otherwise the third ranker is a linear one on statistics, because the cost of a
layout is nearly a sum over tensors.

All rankers predict the normal deviate of a config's rank by runtime. So their scores have one
scale, and the rankers of several siblings are averaged without weights. Sizes of trees were chosen
on the sample's train split and on synthetic costs of up to 24,000 configs.

Shapes: c configs, k configurable nodes in m columns, f features.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import norm, rankdata

from common.errors import OutOfTime, blame
from common.files import open_regular, write_bytes
from common.progress import each, log, out_of_time
from common.settings import FrozenConfig
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import Graph, LayoutGraph, distinct_configs
from data.graphs.packing import N_TENSORS, VALUES_PER_TENSOR
from features.statistics.configs import (
    RowStatistics,
    StatisticsSet,
    statistics_names,
    statistics_of,
)
from features.statistics.layout import TENSORS
from models.config.recipe import Recipe
from models.config.trees import BoostingConfig, ConfigColumnsConfig, LinearConfig
from models.registry import TrainJob
from models.trees.boosting import BoostingRanker, booster_of
from models.trees.linear import LinearRanker, fit_linear
from models.trees.rows import GraphRows, binned, dataset_parameters, sample_rows
from models.trees.siblings import Signature, siblings_of, signature_of, used_programs

if TYPE_CHECKING:
    import lightgbm

TreesName = Literal["columns", "both", "forest"]
RankerName = Literal["columns", "both", "forest", "linear"]
# A finished training has one zip archive, with a folder for each program. Kaggle unpacks files with
# the suffix .zip. The parts of an unfinished training have one program each.
ARCHIVE, PARTS, PROGRAM = "programs.packed", "program-*.part", "program.json"
# Equal programs give equal archives, so the date is fixed. This is the earliest date of a zip file.
FIXED_DATE = (1980, 1, 1, 0, 0, 0)
# More configs are learned by larger trees, and without a third ranker.
MAX_FEW_CONFIGS = 2_000
# Statistics take time, and help no more for more configs.
MAX_STATISTICS_CONFIGS = 10_000
# A forest needs this number of configs for each feature.
FOREST_CONFIGS_PER_FEATURE = 3
# A linear ranker counts as much as a booster up to this number of configs, and then less and less.
LINEAR_CONFIGS = 100
# Folds of the configs that choose the weights next to a forest.
STACKING_FOLDS = 5


class TreeSettings(NamedTuple):
    """The trees of one ranker.

    Attributes:
        rounds: Number of trees, as a share of `num_boost_round`.
    """

    rounds: float
    min_rows_per_leaf: int
    parameters: Mapping[str, float | int | str]


FEW: Mapping[TreesName, TreeSettings] = {
    "columns": TreeSettings(
        1, 2, {"learning_rate": 0.05, "num_leaves": 7, "feature_fraction": 0.5}
    ),
    "both": TreeSettings(1, 5, {"learning_rate": 0.05, "num_leaves": 7, "feature_fraction": 0.3}),
    # Deep trees on a part of the configs each, with most features at every split.
    "forest": TreeSettings(
        0.25,
        1,
        {
            "boosting": "rf",
            "bagging_freq": 1,
            "bagging_fraction": 0.7,
            "num_leaves": 1024,
            "feature_fraction_bynode": 0.8,
        },
    ),
}
MANY: Mapping[TreesName, TreeSettings] = {
    "columns": TreeSettings(
        5, 20, {"learning_rate": 0.1, "num_leaves": 15, "feature_fraction": 0.7}
    ),
    "both": TreeSettings(
        2.5, 20, {"learning_rate": 0.1, "num_leaves": 15, "feature_fraction": 0.3}
    ),
}


class ColumnFeatures(FrozenConfig):
    """The features that distinguish the configs of a program.

    A feature is 1 if a tensor (0..2) of a node (a position in config order) has a layout (6
    values).
    """

    node: list[int]
    tensor: list[int]
    layout: list[list[int]]

    def names(self, statistics: StatisticsSet | None = None) -> list[str]:
        """Return the names of the columns of `rows_of`."""
        own = [
            f"node_{node}_{TENSORS[tensor]}_{'_'.join(str(d) for d in layout if d >= 0) or 'open'}"
            for node, tensor, layout in zip(self.node, self.tensor, self.layout, strict=True)
        ]
        return [*own, *(statistics_names("layout", statistics) if statistics else ())]

    def rows_of(self, graph: Graph, statistics: StatisticsSet | None = None) -> RowStatistics:
        """Return the function that computes the rows of configs, with statistics at their end."""
        assert isinstance(graph, LayoutGraph)
        columns = partial(self.table, graph)
        if statistics is None:
            return columns
        further = statistics_of(graph, statistics)
        return lambda rows: np.concatenate([columns(rows), further(rows)], axis=1)

    def table(self, graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute the features of some configs, (r, f) float32 of 0 and 1."""
        layouts = graph.configs.vectors.reshape(-1, N_TENSORS, VALUES_PER_TENSOR)
        wanted = np.asarray(self.layout, dtype=np.int8).reshape(-1, VALUES_PER_TENSOR)  # (f, 6)
        # (u, f): whether a vector of the graph sets a feature
        is_set = (layouts[:, self.tensor] == wanted).all(axis=2).astype(np.float32)
        ids = graph.configs.vector_ids(rows)[:, self.node]  # (r, f)
        return is_set[ids, np.arange(len(self.node))]


class LearnedProgram(FrozenConfig):
    """A learned train graph, except for its trees.

    Attributes:
        weights: Weight of each ranker. They sum to 1.
        linear: Weight and largest input of each statistic of the linear ranker, or none.
    """

    name: str
    signature: Signature
    features: ColumnFeatures
    weights: dict[RankerName, float]
    linear: dict[str, tuple[float, float]]


def column_features(graph: LayoutGraph, rows: NDArray[np.int64]) -> ColumnFeatures:
    """Find the features that distinguish some configs, without equivalent ones."""
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
    return ColumnFeatures(node=node, tensor=tensor, layout=layout)


def ranker_weights(n_configs: int, n_features: int) -> dict[RankerName, float]:
    """Return the rankers of a program and their default weights, which sum to 1."""
    weights: dict[RankerName, float] = {"columns": 1.0}
    if n_configs <= MAX_STATISTICS_CONFIGS:
        weights["both"] = 1.0
    if n_configs <= MAX_FEW_CONFIGS:
        if FOREST_CONFIGS_PER_FEATURE * n_features <= n_configs:
            weights["forest"] = 1.0
        else:
            weights["linear"] = min(1.0, LINEAR_CONFIGS / n_configs)
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def train(job: TrainJob) -> None:
    """Learn the configs of train graphs. A resumed training skips the learned graphs.

    Raises:
        OutOfTime: The time is over.
    """
    config: ConfigColumnsConfig = getattr(job.recipe, job.model)
    files = used_programs(job.files, job.ranked)
    log.info(f"{job.model}: {len(files)} of {len(job.files)} train graphs can rank a graph")
    graphs = sample_rows(files, config, job.seed) if files else []
    for number, taken in enumerate(each("learn configs", graphs)):
        part = job.run_dir / PARTS.replace("*", f"{number:03d}")
        if part.exists():
            continue
        if out_of_time():
            raise OutOfTime(f"{job.run_dir}: out of time with {number} of {len(graphs)} graphs")
        learned = _learn(taken, config, seed=job.seed, threads=job.recipe.n_threads)
        contents = {f"{number:03d}/{name}": text.encode() for name, text in learned.items()}
        write_bytes(part, _zipped(contents, zipfile.ZIP_STORED))
    parts = sorted(job.run_dir.glob(PARTS))
    programs: dict[str, bytes] = {}
    for part in parts:
        programs |= _unzipped(part)
    write_bytes(job.run_dir / ARCHIVE, _zipped(programs, zipfile.ZIP_DEFLATED))
    for part in parts:
        part.unlink()


def _learn(
    taken: GraphRows, config: ConfigColumnsConfig, *, seed: int, threads: int
) -> dict[str, str]:
    """Learn the configs of one graph, and return the files of its program by name."""
    graph = read_layout(taken.file)
    features = column_features(graph, taken.rows)
    trees = ProgramTrees(graph, features, config, seed, threads)
    weights = ranker_weights(len(taken.rows), len(features.node))
    if "forest" in weights:
        weights = trees.stacked_weights(taken)
    linear: dict[str, tuple[float, float]] = {}
    files: dict[str, str] = {}
    for name in weights:
        if name == "linear":
            linear = fit_linear([taken], LinearConfig(statistics=config.statistics))[0].weights
        else:
            files[f"{name}.txt"] = trees.fit(name, taken).model_to_string()
    program = LearnedProgram(
        name=taken.file.name,
        signature=signature_of(graph),
        features=features,
        weights=weights,
        linear=linear,
    )
    return {PROGRAM: program.model_dump_json(), **files}


def _zipped(files: Mapping[str, bytes], method: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, FIXED_DATE), content, method)
    return packed.getvalue()


def _unzipped(path: Path, ending: str = "") -> dict[str, bytes]:
    """Return the files of an archive whose names have an ending."""
    expected = "learned programs; remove its folder, and train the model again"
    with open_regular(path) as file, blame(path, expected), zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith(ending)]
        return {name: archive.read(name) for name in names}


@dataclass(frozen=True)
class ProgramTrees:
    """Fits trees to some configs of one program."""

    graph: LayoutGraph
    features: ColumnFeatures
    config: ConfigColumnsConfig
    seed: int
    threads: int

    def fit(self, name: TreesName, taken: GraphRows) -> "lightgbm.Booster":
        """Fit the trees of one ranker to normal deviates. A higher prediction means faster."""
        import lightgbm

        n_configs, statistics = len(taken.rows), self._statistics(name)
        settings = (FEW if n_configs <= MAX_FEW_CONFIGS else MANY)[name]
        compute = self.features.rows_of(self.graph, statistics)
        rows = BoostingConfig(min_rows_per_leaf=settings.min_rows_per_leaf)
        names = self.features.names(statistics)
        dataset = binned([taken], rows, lambda _, some: compute(some), names)
        dataset.set_label(-_deviates(taken.runtime))
        parameters: dict[str, Any] = {
            **dataset_parameters(rows, n_configs),
            **settings.parameters,
            "objective": "regression",
            "metric": "none",
            "seed": self.seed,
            "num_threads": self.threads,
        }
        rounds = max(1, round(settings.rounds * self.config.num_boost_round))
        return lightgbm.train(parameters, dataset, rounds)

    def stacked_weights(self, taken: GraphRows) -> dict[RankerName, float]:
        """Choose the weights of trees by nonnegative least squares on held-out configs.

        Returns:
            Weights of the useful rankers, which sum to 1. If no ranker is useful, equal weights.
        """
        names: tuple[TreesName, ...] = tuple(FEW)
        held_out_scores = np.empty((len(taken.rows), len(names)))
        fold_of = np.arange(len(taken.rows)) % STACKING_FOLDS
        for fold in np.unique(fold_of):
            learned, held_out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
            part = replace(taken, rows=taken.rows[learned], runtime=taken.runtime[learned])
            for column, name in enumerate(names):
                compute = self.features.rows_of(self.graph, self._statistics(name))
                held_out_scores[held_out, column] = self.fit(name, part).predict(
                    compute(taken.rows[held_out]), num_threads=self.threads
                )
        weights, _ = nnls(held_out_scores, -_deviates(taken.runtime))
        if not weights.any():
            weights = np.ones(len(names))
        share = weights / weights.sum()
        return {name: float(w) for name, w in zip(names, share, strict=True) if w > 0}

    def _statistics(self, name: TreesName) -> StatisticsSet | None:
        return self.config.statistics if name == "both" else None


def _deviates(runtime: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the normal deviates of the ranks of runtimes (r,). Equal runtimes share their rank."""
    return np.asarray(norm.ppf((rankdata(runtime) - 0.5) / len(runtime)))


@dataclass(frozen=True)
class ConfigColumnsRanker:
    """The learned programs of a run folder. Trees are read for one graph at a time.

    Attributes:
        threads: Number of threads.
    """

    archive: Path
    programs: Mapping[str, LearnedProgram]
    statistics: StatisticsSet
    threads: int

    def siblings_of(self, graph: LayoutGraph) -> list[str]:
        """Return the programs that rank a graph, nearest first."""
        signatures = {name: program.signature for name, program in self.programs.items()}
        return siblings_of(signatures, signature_of(graph))

    def score(self, graph: Graph) -> NDArray[np.float32] | None:
        """Score every config, or return None if no sibling of the graph was learned.

        Returns:
            (c,) float32 scores. A lower score means a faster config.
        """
        assert isinstance(graph, LayoutGraph)
        siblings = self.siblings_of(graph)
        if not siblings:
            return None
        first, group = distinct_configs(graph)
        with blame(self.archive, "programs that this version has learned"):
            scores = [self._score_by(name, graph, first) for name in siblings]
        return np.mean(scores, axis=0).astype(np.float32)[group]

    def _score_by(
        self, folder: str, graph: LayoutGraph, rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the scores (r,) of some configs by one learned program."""
        program = self.programs[folder]
        total = np.zeros(len(rows), np.float32)
        for name, weight in program.weights.items():
            if name == "linear":
                table = statistics_of(graph, self.statistics)(rows)
                scores = LinearRanker(program.linear, self.statistics).of(table).astype(np.float32)
            else:
                statistics = self.statistics if name == "both" else None
                names = program.features.names(statistics)
                rows_of = partial(program.features.rows_of, statistics=statistics)
                place = f"{folder}/{name}.txt"
                text = _unzipped(self.archive, place).get(place, b"").decode()
                booster = booster_of(text, self.archive, names)
                scores = BoostingRanker(booster, rows_of, self.threads).score_rows(graph, rows)
            total += np.float32(weight) * scores
        return total


def load(name: str, run_dir: Path, recipe: Recipe) -> ConfigColumnsRanker:
    """Load the learned programs of a run folder."""
    archive = run_dir / ARCHIVE
    with blame(archive, "features, and a weight for each ranker"):
        programs = {
            place.removesuffix(f"/{PROGRAM}"): LearnedProgram.model_validate_json(text)
            for place, text in _unzipped(archive, PROGRAM).items()
        }
    statistics = getattr(recipe, name).statistics
    return ConfigColumnsRanker(archive, programs, statistics, recipe.n_threads)
