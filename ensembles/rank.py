"""Rank the configs of one graph's file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """

    collection: str
    members: list[str]
    scores: NDArray[np.float32]

    def best(self, top: int) -> list[dict[str, Any]]:
        """Return the `top` best configs, fastest first, as rank, row of the file, and score."""
        order = ranking_from_scores(self.scores)[:top]
        return [
            {"rank": place, "config": int(row), "score": float(self.scores[row])}
            for place, row in enumerate(order, start=1)
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
    scores = ensemble.score(read_graph(file))
    return Ranked(ensemble.collection.name, list(ensemble.rankers), scores)
