"""What is held out of the train split, to tell when training has gone on for long enough.

Whole architectures are, as in models/training/folds.py: on a sibling of what it has learned from, a
model that memorises looks as good as one that generalises. Where all graphs are of one
architecture, some configs of each graph are held out instead. The valid split is never touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.tree import GraphFile
from models.training.folds import family_of, grouped_folds

SHARE = 0.1
MOST_GRAPHS = 100
FEWEST_CONFIGS = 20  # of a graph, below which none is held out


@dataclass(frozen=True)
class HeldOut:
    """Which graphs a model learns from, and which ones judge it.

    Attributes:
        learned: graphs to learn from.
        judged: graphs to judge on; none where nothing is held out.
        by_config: each graph's configs are parted by `part_configs`; of one collection, the two
            are the same graphs.
    """

    learned: tuple[GraphFile, ...]
    judged: tuple[GraphFile, ...] = ()
    by_config: bool = False

    def configs(self, n: int, *, judged: bool) -> NDArray[np.int64]:
        """Return the positions among a graph's n distinct configs to judge on, or to learn from."""
        if not self.by_config:
            return np.arange(n)
        learned_part, judged_part = part_configs(n)
        return judged_part if judged else learned_part


def hold_out(files: Sequence[GraphFile], seed: int) -> HeldOut:
    """Hold out families of about a tenth of the graphs, at most about 100, or configs of all.

    Of graphs of several collections, no family is learned from that is held out of one of them: a
    collection's own training that follows is judged on it. Where a collection has configs held out,
    all have.

    Args:
        files: train graphs.
        seed: decides which families.

    Raises:
        PipelineError: of several collections, no graph is left to learn from.
    """
    collections = dict.fromkeys(file.collection for file in files)
    parts = [
        _hold_out_of_one([file for file in files if file.collection == collection], seed)
        for collection in collections
    ]
    if len(parts) == 1:
        return parts[0]
    whole = [part for part in parts if not part.by_config]
    families = {family_of(file) for part in whole for file in part.judged}
    learned = tuple(file for file in files if family_of(file) not in families)
    if not learned:
        raise PipelineError(
            "training.early_stop: what is held out of each collection leaves no graph to learn a "
            "shared model from; set it or pretrain_steps to 0, or add train graphs"
        )
    judged = tuple(file for part in parts for file in part.judged)
    return HeldOut(learned, judged, by_config=len(whole) < len(parts))


def _hold_out_of_one(files: Sequence[GraphFile], seed: int) -> HeldOut:
    n_families = len({family_of(file) for file in files})
    if n_families < 2:
        return HeldOut(tuple(files), tuple(files), by_config=True)
    wanted = min(len(files) * SHARE, MOST_GRAPHS)
    n_folds = min(n_families, max(2, round(len(files) / wanted)))
    folds = grouped_folds(files, n_folds, seed)
    judged = min(folds, key=lambda fold: abs(len(fold) - wanted))
    names = {file.name for file in judged}
    return HeldOut(tuple(file for file in files if file.name not in names), judged)


def part_configs(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Part the positions 0..n-1 into those to learn from and those to judge on, always alike."""
    n_judged = round(n * SHARE) if n >= FEWEST_CONFIGS else 0
    shuffled = np.random.default_rng(n).permutation(n)
    return np.sort(shuffled[n_judged:]), np.sort(shuffled[:n_judged])
