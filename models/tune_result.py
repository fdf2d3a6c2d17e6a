"""What a tuning study has found: its trials, its winner, and how that compares to the baseline."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.search_space import Parameters
from models.study_storage import reason_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BASELINE = "baseline"  # marks the trial that is the recipe as it was given


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a study.

    Attributes:
        number: its folder's name below OUT/trials/.
        state: complete, fail, running or waiting.
        value: its cross-validated metric, higher is better; None unless complete.
        params: by dotted recipe key, what was chosen; of the baseline, what the space holds.
        is_baseline: it is the recipe as it was given.
        reason: why it failed.
    """

    number: int
    state: str
    value: float | None
    params: Parameters
    is_baseline: bool
    reason: str | None


@dataclass(frozen=True)
class TuneResult:
    """What a study has found so far.

    Attributes:
        study: its name in the storage.
        best_recipe: the winner's TOML file, a whole recipe.
        best: the trial with the highest value; of equals the baseline, then the earliest.
        baseline_value: what the recipe as given scored; None if that failed.
        trials: all of them, by number.
    """

    study: str
    best_recipe: Path
    best: TrialRecord
    baseline_value: float | None
    trials: tuple[TrialRecord, ...]

    @property
    def best_value(self) -> float:
        """Return the winner's value."""
        assert self.best.value is not None
        return self.best.value

    @property
    def is_baseline(self) -> bool:
        """Tell whether no trial beat the recipe as it was given."""
        return self.best.is_baseline

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "study": self.study,
            "best_recipe": str(self.best_recipe),
            "best": asdict(self.best),
            "best_value": self.best_value,
            "baseline_value": self.baseline_value,
            "is_baseline": self.is_baseline,
            "trials": [asdict(trial) for trial in self.trials],
        }


def record_of(trial: "FrozenTrial") -> TrialRecord:
    """Read one trial of a study."""
    return TrialRecord(
        number=trial.number,
        state=trial.state.name.lower(),
        value=trial.value if trial.state.name == "COMPLETE" else None,
        params=dict(trial.params),
        is_baseline=BASELINE in trial.user_attrs,
        reason=reason_of(trial),
    )


def best_of(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial of the highest value; of equals the baseline, then the earliest."""
    complete = [record for record in records if record.value is not None]
    return max(complete, key=lambda r: (r.value, r.is_baseline, -r.number), default=None)
