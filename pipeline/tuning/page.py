"""The page of a search: its history, the importance of each parameter, and all trials."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.pages import Chart, bars, write_charts

if TYPE_CHECKING:
    from optuna import Study

PAGE = "report.html"
# Importances of fewer complete trials are mostly noise.
MIN_TRIALS = 4


def importances_of(study: "Study") -> dict[str, float]:
    """Return the share of each parameter in the variance of the values. Empty for few trials."""
    import optuna

    complete = (optuna.trial.TrialState.COMPLETE,)
    if len(study.get_trials(deepcopy=False, states=complete)) < MIN_TRIALS:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def write_search_page(
    path: Path, model: str, trials: Sequence[Mapping[str, Any]], importances: Mapping[str, float]
) -> None:
    """Write the page of trials as in trials.json. Keys have no prefix of the model."""
    complete = [trial for trial in trials if trial["value"] is not None]
    numbers, values = ([trial[key] for trial in complete] for key in ("number", "value"))
    names = [f"trial {n}" for n in numbers]
    best = [max(values[: i + 1]) for i in range(len(values))]
    groups = {
        "trial": {"x": numbers, "y": values, "names": names},
        "best so far": {"x": numbers, "y": best, "names": names, "line": "steps"},
    }
    history = {"groups": groups, "x": "trial", "y": "cross-validated value"}
    text = f"best value {best[-1]:.4f}" if best else "no complete trial"
    charts = [Chart("points", "History", text, history)]
    if importances:
        shares = {key.removeprefix(f"{model}."): share for key, share in importances.items()}
        text = ", ".join(f"{key} {share:.2f}" for key, share in shares.items())
        title = f"Share of the variance over {len(complete)} trials"
        charts.append(Chart("bars", title, text, bars(shares, "share")))
    keys = list(dict.fromkeys(key for trial in trials for key in trial["params"]))
    rows = [
        [
            *(trial["number"], trial["state"], trial["value"], trial["seconds"]),
            *(_text(trial["params"].get(key)) for key in keys),
        ]
        for trial in trials
    ]
    note = (
        "The first trial is the recipe without changes. The best of many trials is partly lucky. "
        "The share of the variance (Optuna's fANOVA) shows which key matters; it needs "
        f"{MIN_TRIALS} complete trials."
    )
    columns = ["trial", "state", "value", "seconds"]
    columns += [key.removeprefix(f"{model}.") for key in keys]
    write_charts(
        path, f"Search of {model}", note, charts, kind="trials", columns=columns, rows=rows
    )


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "–" if value is None else str(value)
