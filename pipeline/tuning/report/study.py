"""What a search has left in its folder, read again for a report: no storage, no data set."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import PipelineError
from models.run_folder import is_done, read_config
from pipeline.tuning.history import FINALS, HISTORY
from pipeline.tuning.result import TrialRecord, best_of
from pipeline.tuning.space import Choices, Range, SearchSpace, space_from_table

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FEWEST_FOR_IMPORTANCES = 4  # trials, below which a forest of trees has nothing to split


@dataclass(frozen=True)
class Search:
    """A search as its folder tells it, running or ended.

    Attributes:
        verdict: what finalists.json holds; None if there is none.
        is_ended: its budget is used up.
    """

    space: SearchSpace
    trials: tuple[TrialRecord, ...]
    verdict: dict[str, Any] | None
    is_ended: bool

    @property
    def complete(self) -> list[TrialRecord]:
        """Return the trials that have a value, by number."""
        return [trial for trial in self.trials if trial.value is not None]

    @property
    def timed(self) -> list[TrialRecord]:
        """Return the trials that have a value and a cost, by number."""
        return [trial for trial in self.complete if trial.cost is not None]

    @property
    def chosen(self) -> TrialRecord | None:
        """Return the trial of best.toml: the verdict's, else that of the highest value."""
        return self.trials[self.verdict["trial"]] if self.verdict else best_of(self.trials)


def read_search(out: Path) -> Search:
    """Read a folder of `tune`.

    Raises:
        PipelineError: no such folder, no trial in it yet, or a file of it is damaged.
    """
    if not out.is_dir():
        raise PipelineError(f"{out}: no such folder; expected the --out of a search")
    config = read_config(out)
    if "space" not in config:
        raise PipelineError(f"{out}: no folder of `tune`; expected the --out of a search")
    space = config["space"]
    verdict = out / FINALS
    return Search(
        space_from_table({"study": space["study"], **space["parameters"]}, source=str(out)),
        tuple(TrialRecord(**row) for row in _read(out / HISTORY)),
        _read(verdict) if verdict.exists() else None,
        is_done(out),
    )


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineError(f"{path}: not there yet; it comes with the first trial's end") from None
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error


def importances(space: SearchSpace, trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Share the variance of the values among the parameters, by fANOVA; the largest first.

    Args:
        trials: those that have a value; such as lack a parameter do not count.

    Returns:
        By parameter, shares that add up to 1; none where too few trials or equal values tell.
    """
    import optuna

    from pipeline.tuning.storage.storage import quiet_optuna

    whole = [trial for trial in trials if set(trial.params) == set(space.parameters)]
    if len(whole) < FEWEST_FOR_IMPORTANCES or len({trial.value for trial in whole}) == 1:
        return {}
    kinds = {key: _distribution(parameter) for key, parameter in space.parameters.items()}
    with quiet_optuna():
        study = optuna.create_study(direction="maximize")
        for trial in whole:
            study.add_trial(
                optuna.create_trial(value=trial.value, params=trial.params, distributions=kinds)
            )
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in found.items()}


def _distribution(parameter: Choices | Range) -> "BaseDistribution":
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(parameter, Choices):
        return CategoricalDistribution(parameter.choices)
    if parameter.is_whole:
        step = int(parameter.step or 1)
        return IntDistribution(parameter.low, parameter.high, log=parameter.log, step=step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
