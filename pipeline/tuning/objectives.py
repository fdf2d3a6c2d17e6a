"""What a search makes large or small: the held-out score, or that and a time.

Times are this machine's, so that a search with one is only comparable with itself, on machines
alike with as much else to do.
"""

from collections.abc import Callable, Sequence

from pipeline.tuning.cross_validate import CrossValidation
from pipeline.tuning.result import TrialRecord

Objective = tuple[str, Callable[[CrossValidation], float]]  # direction, and what of a result
SCORE: Objective = ("maximize", lambda result: result.value)
OBJECTIVES: dict[str, tuple[Objective, ...]] = {
    "score": (SCORE,),
    "score-and-training-time": (SCORE, ("minimize", lambda result: result.training_seconds)),
    "score-and-inference-time": (SCORE, ("minimize", lambda result: result.inference_seconds)),
}


def directions(name: str) -> list[str]:
    """Return Optuna's direction of each objective, the score's first."""
    return [direction for direction, _ in OBJECTIVES[name]]


def values_of(name: str, result: CrossValidation) -> tuple[float, ...]:
    """Return what a trial is worth by each objective, the score first."""
    return tuple(value(result) for _, value in OBJECTIVES[name])


def pareto_front(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that no other beats in score without taking more time; the fastest first.

    Args:
        trials: each with a value and a cost.
    """
    front: list[TrialRecord] = []
    for trial in sorted(trials, key=lambda t: (t.cost or 0.0, -(t.value or 0.0), t.number)):
        if not front or (trial.value or 0.0) > (front[-1].value or 0.0):
            front.append(trial)
    return front
