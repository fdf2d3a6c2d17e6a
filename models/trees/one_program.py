"""Boosting on one program's own configs: for a program that has been measured a little.

The layout of each tensor of each configurable node is a feature by itself, one-hot; nodes that are
tied, and features that say the same of all configs, are taken once. Nothing of this carries over
to another program, so another one is refused; on further configs of the same program it is the
strongest of all models here. Layouts by tensor rank unseen configs better than whole vectors, since
different vectors share tensors' layouts.

c configs, k configurable nodes in m columns, f features.
"""

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import write_text
from common.errors import PipelineError
from data.graphs.distinct import program_content
from data.graphs.graph import Graph, LayoutGraph
from data.read import read_layout
from features.layout_codes import N_TENSORS, VALUES_PER_TENSOR
from features.statistics.configs import RowStatistics
from features.statistics.layout import TENSORS
from models.config.recipe import Recipe
from models.training.jobs import TrainJob
from models.trees.boosting import BoostingRanker, read_booster, train_on_rows
from models.trees.rows import sample_rows

COLUMNS_FILE = "columns.json"


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

    @property
    def names(self) -> list[str]:
        return [
            f"node_{node}_{TENSORS[tensor]}_{'_'.join(str(d) for d in layout if d >= 0) or 'open'}"
            for node, tensor, layout in zip(self.node, self.tensor, self.layout, strict=True)
        ]

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
    """Train on the labelled configs of one graph; write booster.txt and columns.json.

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
    taken = sample_rows(job.files, getattr(job.recipe, job.model), job.seed)
    features = column_features(graph, taken[0].rows)
    train_on_rows(job, taken, lambda _, rows: features.table(graph, rows), features.names)
    write_text(job.run_dir / COLUMNS_FILE, json.dumps(asdict(features)) + "\n")


def load(_name: str, run_dir: Path, recipe: Recipe) -> BoostingRanker:
    """Load what `train` wrote; what it gives refuses other programs.

    Raises:
        PipelineError: the model's files are missing or damaged.
    """
    path = run_dir / COLUMNS_FILE
    try:
        features = ColumnFeatures(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error

    def rows_of(graph: Graph) -> RowStatistics:
        assert isinstance(graph, LayoutGraph)
        if program_content(graph) != features.program:
            raise PipelineError(
                f"{graph.file.path}: another program than {features.name}, whose configs "
                f"{run_dir} has learned; expected that one, or a model of another kind"
            )
        return partial(features.table, graph)

    return BoostingRanker(read_booster(run_dir), rows_of, recipe.n_threads)
