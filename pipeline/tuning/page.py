"""The page of a search: its history, and the importance of each parameter."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from common.pages import Chart, bars, groups_of, write_charts

if TYPE_CHECKING:
    from optuna import Study

PAGE = "report.html"
# Importances of fewer complete trials are mostly noise.
MIN_TRIALS = 4


def importances_of(study: "Study") -> dict[str, float]:
    """Return the share of each parameter in the variance of the values.

    Empty for few trials, and for equal values, which have no variance.
    """
    import optuna

    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(complete) < MIN_TRIALS or len({trial.value for trial in complete}) == 1:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def write_search_page(
    path: Path, model: str, values: Mapping[int, float], importances: Mapping[str, float]
) -> None:
    """Write the page of a search, with the value of each complete trial by its number."""
    names = [f"trial {number}" for number in values]
    lines: dict[str, Sequence[float]] = {
        "value": list(values.values()),
        "best so far": list(accumulate(values.values(), max)),
    }
    groups = groups_of(
        (name, *point) for name in lines for point in zip(names, values, lines[name], strict=True)
    )
    history = {"groups": groups, "x": "trial", "y": "cross-validated value"}
    charts = [Chart("points", "History", f"best value {max(values.values()):.4f}", history)]
    if importances:
        shares = {key.removeprefix(f"{model}."): share for key, share in importances.items()}
        text = ", ".join(f"{key} {share:.2f}" for key, share in shares.items())
        title = f"Share of the variance over {len(values)} trials"
        charts.append(Chart("bars", title, text, bars(shares, "share")))
    note = (
        "The first trial is the recipe without changes. The best of many trials is partly lucky. "
        "The share of the variance (Optuna's fANOVA) shows which key matters; it needs "
        f"{MIN_TRIALS} complete trials."
    )
    write_charts(path, f"Search of {model}", note, charts)
