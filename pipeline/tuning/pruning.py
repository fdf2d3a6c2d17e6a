"""When a trial is given up before its last fold: what it reports, and to which of Optuna's pruners.

"hyperband": the mean of its folds so far, against other trials' after as many folds. It goes on if
it is among the best half of those that came as far; some trials are spared the first comparisons,
so that what begins badly has its chance.

"wilcoxon": its graphs so far, each against the same graph of the best trial, by a signed-rank test
at 10 %. Graphs count as independent, which siblings are not: it is a little quick to give up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.tuning.storage.claims import REASON
from pipeline.tuning.study_config import StudyConfig

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.trial import Trial

# By graph name, what each held-out graph of a fold scored.
FoldValues = Mapping[str, float]
P_THRESHOLD = 0.1


@dataclass(frozen=True)
class Pruning:
    """A pruner, and what it is told of the folds so far: by step, a value.

    Attributes:
        pruner: made for a number of folds.
        values: of all folds so far, oldest first; steps and values of earlier folds stay.
    """

    pruner: Callable[[int], "BasePruner"]
    values: Callable[[Sequence[FoldValues]], dict[int, float]]


def mean_of(folds: Sequence[FoldValues]) -> float:
    """Return the mean over folds of the mean over each one's graphs."""
    return float(np.mean([np.mean(list(fold.values())) for fold in folds]))


def pruner_of(study: StudyConfig) -> "BasePruner":
    """Return the study's pruner."""
    return PRUNINGS[study.pruner].pruner(study.folds)


def give_up_or_go_on(
    trial: "Trial", study: StudyConfig, *, never: bool
) -> Callable[[FoldValues], None]:
    """Return what is to be called after each fold: it reports, and raises TrialPruned.

    Args:
        never: only report; the baseline is what others are compared with, and always ends.
    """
    folds: list[FoldValues] = []
    pruning = PRUNINGS[study.pruner]

    def after_fold(values: FoldValues) -> None:
        import optuna

        folds.append(values)
        for step, value in pruning.values(folds).items():
            if step not in told and study.objectives == "score":  # Optuna takes no others
                trial.report(value, step)
                told.add(step)
        if never or study.pruner == "none" or len(folds) == study.folds:
            return
        if trial.should_prune():
            so_far = f"{len(folds)} of {study.folds} folds, mean so far {mean_of(folds):.4f}"
            reason = f"pruned after {so_far}"
            trial.set_user_attr(REASON, reason)
            raise optuna.TrialPruned(reason)

    told: set[int] = set()
    return after_fold


def _means_so_far(folds: Sequence[FoldValues]) -> dict[int, float]:
    return {n: mean_of(folds[:n]) for n in range(1, len(folds) + 1)}


def _graph_by_graph(folds: Sequence[FoldValues]) -> dict[int, float]:
    """Number the graphs from 0 on; each study holds them out in the same order."""
    return dict(enumerate(value for fold in folds for value in fold.values()))


def _none(folds: int) -> "BasePruner":
    import optuna

    return optuna.pruners.NopPruner()


def _hyperband(folds: int) -> "BasePruner":
    import optuna

    return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=folds, reduction_factor=2)


def _wilcoxon(folds: int) -> "BasePruner":
    import optuna

    return optuna.pruners.WilcoxonPruner(p_threshold=P_THRESHOLD)


PRUNINGS: dict[str, Pruning] = {
    "none": Pruning(_none, _means_so_far),
    "hyperband": Pruning(_hyperband, _means_so_far),
    "wilcoxon": Pruning(_wilcoxon, _graph_by_graph),
}
