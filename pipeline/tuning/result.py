"""What a tuning study has found: its trials, its winner, and how that compares to the baseline."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.tuning.space import Parameters
from pipeline.tuning.storage.claims import WORKER, reason_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BASELINE = "baseline"  # marks the trial that is the recipe as it was given


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a study.

    Attributes:
        number: its folder's name below OUT/trials/.
        state: complete, pruned, fail, running or waiting.
        value: its cross-validated metric, higher is better; None unless complete.
        params: by dotted recipe key, what was chosen; of the baseline, what the space holds.
        is_baseline: it is the recipe as it was given.
        reason: why it failed or was pruned.
        seconds: from its beginning to its end; None unless it has ended.
        worker: the name of the one that took it.
        cost: seconds, of a search with a second objective; None in others.
    """

    number: int
    state: str
    value: float | None
    params: Parameters
    is_baseline: bool
    reason: str | None
    seconds: float | None = None
    worker: str | None = None
    cost: float | None = None


@dataclass(frozen=True)
class FinalRecord:
    """A candidate that was trained again with other seeds.

    Attributes:
        trial: its number in the search.
        is_baseline: it is the recipe as it was given.
        values: by seed.
        per_graph: by graph name, the mean over seeds.
    """

    trial: int
    is_baseline: bool
    values: tuple[float, ...]
    per_graph: dict[str, float]

    @property
    def value(self) -> float:
        """Return the mean over seeds."""
        return sum(self.values) / len(self.values)


@dataclass(frozen=True)
class Verdict:
    """Which candidate the finalists' trainings chose, and why.

    Attributes:
        trial: its number in the search.
        finals: all candidates that could be judged.
        ci95: of the best finalist's lead over the baseline; None where there was none.
        reason: in words.
    """

    trial: int
    finals: tuple[FinalRecord, ...]
    ci95: tuple[float, float] | None
    reason: str


@dataclass(frozen=True)
class TuneResult:
    """What a study has found so far.

    Attributes:
        study: its name in the storage.
        best_recipe: the winner's TOML file, a whole recipe.
        best: the trial with the highest value, of equals the baseline, then the earliest; or the
            one that the verdict names.
        baseline_value: what the recipe as given scored; None if that failed.
        trials: all of them, by number.
        verdict: of the finalists; None where there are none, or their trainings have not ended.
    """

    study: str
    best_recipe: Path
    best: TrialRecord
    baseline_value: float | None
    trials: tuple[TrialRecord, ...]
    verdict: Verdict | None = None

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
            "verdict": asdict(self.verdict) if self.verdict else None,
            "trials": [asdict(trial) for trial in self.trials],
        }


def record_of(trial: "FrozenTrial") -> TrialRecord:
    """Read one trial of a study."""
    values = trial.values if trial.state.name == "COMPLETE" else None
    return TrialRecord(
        number=trial.number,
        state=trial.state.name.lower(),
        value=values[0] if values else None,
        params=dict(trial.params),
        is_baseline=BASELINE in trial.user_attrs,
        reason=reason_of(trial),
        seconds=trial.duration.total_seconds() if trial.duration else None,
        worker=trial.user_attrs.get(WORKER),
        cost=values[1] if values and len(values) > 1 else None,
    )


def best_of(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial of the highest value; of equals the baseline, then the earliest."""
    complete = [record for record in records if record.value is not None]
    return max(complete, key=lambda r: (r.value, r.is_baseline, -r.number), default=None)
