"""Boosting on one program's own configs: for a program that has been measured a little.

The layout of each tensor of each configurable node is a feature by itself, one-hot; nodes that are
tied, and features that say the same of all configs, are taken once. Nothing of this carries over
to another program, so another one is refused; on further configs of a real TPU program it is the
strongest of all models here. Layouts by tensor rank unseen configs better than whole vectors, since
different vectors share tensors' layouts.

Statistics of a config beside these columns help on some programs and harm on others. So a second
booster, on both, is kept where cross-validation on the program's own configs is sure that it
helps; the two are then summed: the scores of both are log-odds of pairs.

c configs, k configurable nodes in m columns, f features.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import write_text
from common.errors import PipelineError
from common.progress import progress
from data.graphs.distinct import program_content
from data.graphs.graph import Graph, LayoutGraph
from data.packing import N_TENSORS, VALUES_PER_TENSOR
from data.read import read_layout
from features.statistics.configs import (
    RowStatistics,
    StatisticsSet,
    statistics_names,
    statistics_of,
)
from features.statistics.layout import TENSORS
from models.config.recipe import ConfigColumnsConfig, Recipe
from models.registry import TrainJob
from models.trees.boosting import (
    MODEL_FILE,
    BoostingRanker,
    Trees,
    predict,
    prepare,
    ranked,
    read_booster,
    write_boosters,
)
from models.trees.rows import GraphRows, sample_rows

COLUMNS_FILE = "columns.json"
BOTH_FILE = "booster_with_statistics.txt"
LEAST_HELD_OUT = 4  # configs of a fold; with fewer, nothing is compared
MOST_COMPARED = 2_000  # configs; folds of them all would cost ten times the training itself


@dataclass(frozen=True)
class ColumnFeatures:
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
        return [*own, *(statistics_names("layout", statistics) if statistics else ())]

    def rows_of(self, graph: Graph, statistics: StatisticsSet | None = None) -> RowStatistics:
        """Return what computes the features of configs, and beside them statistics, if any.

        Raises:
            PipelineError: `graph` is another program.
        """
        assert isinstance(graph, LayoutGraph)
        if program_content(graph) != self.program:
            raise PipelineError(
                f"{graph.file.path}: another program than {self.name}, whose configs were learned; "
                "expected that one, or a model of another kind"
            )
        columns = partial(self.table, graph)
        if statistics is None:
            return columns
        further = statistics_of(graph, statistics)
        return lambda rows: np.concatenate([columns(rows), further(rows)], axis=1)

    def table(self, graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the features of some configs (r,) of the program; (r, f) of 0 and 1."""
        layouts = graph.configs.vectors.reshape(-1, N_TENSORS, VALUES_PER_TENSOR)
        wanted = np.asarray(self.layout, dtype=np.int8).reshape(-1, VALUES_PER_TENSOR)  # (f, 6)
        # (u, f): whether a vector of the graph sets a feature
        is_set = (layouts[:, self.tensor] == wanted).all(axis=2).astype(np.float32)
        ids = graph.configs.vector_ids(rows)[:, self.node]  # (r, f)
        return is_set[ids, np.arange(len(self.node))]


def column_features(graph: LayoutGraph, rows: NDArray[np.int64]) -> ColumnFeatures:
    """Find the features that tell some configs (r,) apart, each once."""
    node: list[int] = []
    tensor: list[int] = []
    layout: list[list[int]] = []
    layouts = graph.configs.vectors.reshape(-1, N_TENSORS, VALUES_PER_TENSOR)
    first_of_column = np.unique(graph.configs.alphabets.column_of, return_index=True)[1]
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
    return ColumnFeatures(program_content(graph), graph.file.name, node, tensor, layout)


def train(job: TrainJob) -> None:
    """Train on the labelled configs of one graph; write columns.json, booster.txt, importances.

    Where statistics help, a second booster as well.

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

    def prepared(statistics: StatisticsSet | None) -> tuple[Trees, RowStatistics]:
        compute, names = features.rows_of(graph, statistics), features.names(statistics)
        return prepare(job, [taken], lambda _, rows: compute(rows), names), compute

    alone = prepared(None)
    boosters = {MODEL_FILE: alone[0].train()}
    if len(taken.rows) >= LEAST_HELD_OUT * config.folds:
        both = prepared(config.statistics)
        if statistics_help(taken, (alone, both), config.folds, job.recipe.n_threads):
            boosters[BOTH_FILE] = both[0].train()
    write_boosters(boosters, job.run_dir)
    content = {**asdict(features), "boosters": len(boosters)}
    write_text(job.run_dir / COLUMNS_FILE, json.dumps(content) + "\n")


def statistics_help(
    taken: GraphRows, candidates: Sequence[tuple[Trees, RowStatistics]], n_folds: int, threads: int
) -> bool:
    """Tell whether two candidates together surely rank held-out configs better than the first.

    Surely: their mean lead of Kendall's tau is above its standard error over folds.
    """
    # Rows are distinct configs, shuffled.
    fold_of = np.arange(min(len(taken.rows), MOST_COMPARED)) % n_folds
    leads = []
    for fold in range(n_folds):
        progress("do statistics help", fold, n_folds)
        held_out, learned = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        first, second = (
            predict(trees.train(learned), compute, taken.rows[held_out], threads).astype(float)
            for trees, compute in candidates
        )
        tau, of_both = (ranked([taken], held_out, -scores) for scores in (first, first + second))
        leads.append(of_both - tau)
    return bool(np.mean(leads) > np.std(leads, ddof=1) / np.sqrt(n_folds))


@dataclass(frozen=True)
class OneProgramRanker:
    """One booster, or two whose scores are summed, for one program alone."""

    rankers: Sequence[BoostingRanker]

    def score(self, graph: Graph) -> NDArray[np.float32]:
        return np.sum([ranker.score(graph) for ranker in self.rankers], axis=0, dtype=np.float32)


def load(name: str, run_dir: Path, recipe: Recipe) -> OneProgramRanker:
    """Load what `train` wrote; what it gives refuses other programs.

    Raises:
        PipelineError: the model's files are missing, damaged or of other statistics.
    """
    path = run_dir / COLUMNS_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        n_boosters = int(content.pop("boosters"))
        features = ColumnFeatures(**content)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error
    rankers = []
    known = (MODEL_FILE, None), (BOTH_FILE, getattr(recipe, name).statistics)
    for file, chosen in known[:n_boosters]:
        booster = read_booster(run_dir / file, features.names(chosen))
        rows_of = partial(features.rows_of, statistics=chosen)
        rankers.append(BoostingRanker(booster, rows_of, recipe.n_threads))
    return OneProgramRanker(rankers)
