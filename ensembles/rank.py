"""Rank the configs of one graph's file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.distinct import distinct_configs
from data.errors import PipelineError
from data.read import read_graph
from data.tree import GraphFile, collection_named, file_from_path
from ensembles.ensemble import load_ensemble
from submissions.write import ranking_from_scores


@dataclass(frozen=True)
class Ranked:
    """A graph's configs in predicted order.

    Attributes:
        collection: which collection's models ranked them.
        members: those models.
        scores: (c,) float32 by row, lower = faster.
        group: (c,) int64 by row; equal where configs are.
    """

    collection: str
    members: list[str]
    scores: NDArray[np.float32]
    group: NDArray[np.int64]

    def best(self, top: int, *, distinct: bool = False) -> list[dict[str, Any]]:
        """Return the `top` best configs, fastest first.

        Args:
            top: how many, or all if there are fewer.
            distinct: list a config that stands in the file several times only once.

        Returns:
            For each `rank`, `config` (its row of the file), `score`, and `same_as`: the row listed
            first of those that hold the very same config; None if that is this one.
        """
        order = ranking_from_scores(self.scores)
        _, first, group = np.unique(self.group[order], return_index=True, return_inverse=True)
        places = np.sort(first) if distinct else np.arange(len(order))
        return [
            {
                "rank": number,
                "config": int(order[place]),
                "score": float(self.scores[order[place]]),
                "same_as": None
                if first[group[place]] == place
                else int(order[first[group[place]]]),
            }
            for number, place in enumerate(places[:top], start=1)
        ]


def rank_file(path: Path, run: Path, *, collection: str | None) -> Ranked:
    """Rank the configs of the graph at `path` with the models of a run folder.

    Args:
        path: an npz file.
        run: folder of a whole run, or of one model.
        collection: the graph's, where its folders do not tell.

    Raises:
        PipelineError: a damaged graph, no fitting models, or an unknown collection.
    """
    if not path.is_file():
        raise PipelineError(f"{path}: no such file; expected one graph's npz")
    if collection is None:
        file = file_from_path(path)
    else:
        file = GraphFile(collection_named(collection), "test", path.stem, path)
    ensemble = load_ensemble(run, file.collection)
    graph = read_graph(file)
    scores, (_, group) = ensemble.score(graph), distinct_configs(graph)
    return Ranked(ensemble.collection.name, list(ensemble.rankers), scores, group)
