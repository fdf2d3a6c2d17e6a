"""Draw the report of a run folder anew, from what the folder holds, however far the run got."""

from pathlib import Path
from typing import Any

from common.errors import PipelineError
from ensembles.blend import model_of
from models.run_folder import is_done, read_config
from pipeline.run.costs import read_costs
from pipeline.run.learning_curves import ModelFolder, learning_curves, model_folders
from pipeline.run.listing import read_report
from pipeline.run.report import REPORT, draw_report, importances_of

SINGLE = "One model by itself: scores come with a whole run, or from `score`."

LOST = f"{REPORT} is missing, and with it all scores; the run's own command with --resume makes it."


def redraw_report(run: Path) -> tuple[Path, dict[str, Any]]:
    """Write report.html and report.png of a run folder.

    Args:
        run: the folder of a whole run, or of one model; of a run that has not ended, what is
            missing is told.

    Returns:
        The page, and the report that it shows: report.json's content where there is one, with
        `learning_curves` as they are now and `missing_stages`, a line for each.

    Raises:
        PipelineError: no run folder, or a damaged file in it.
    """
    config = read_config(run)
    report = dict(read_report(run)) if (run / REPORT).exists() else _from_folder(run, config)
    report["learning_curves"] = learning_curves(run)
    report["missing_stages"] = _missing_stages(run, single="model" in config)
    try:
        return draw_report(run, report), report
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PipelineError(
            f"{run / REPORT}: cannot be drawn: {error!r}; expected what `run` writes"
        ) from error


def _from_folder(run: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Say what a folder without report.json tells: recipe, seeds, trained models and costs."""
    recipe = config.get("recipe", {})
    seeds = [config["seed"]] if "seed" in config else recipe.get("seeds", [])
    trained: dict[str, list[ModelFolder]] = {}
    for model in model_folders(run):
        if model.is_done:
            trained.setdefault(model.group, []).append(model)
    return {
        "score": None,
        "collections": {},
        "recipe": recipe.get("name"),
        "seeds": seeds,
        "models": {
            group or "this folder": {
                "members": [model.member for model in models],
                "importances": importances_of([(model_of(m.member), m.folder) for m in models]),
            }
            for group, models in trained.items()
        },
        **read_costs(run).rounded(),
    }


def _missing_stages(run: Path, *, single: bool) -> list[str]:
    if single:
        return [SINGLE if is_done(run) else f"{SINGLE} Its training has not ended."]
    if is_done(run):
        return [] if (run / REPORT).exists() else [LOST]
    models = model_folders(run)
    begun = [f"{model.group} {model.member}" for model in models if not model.is_done]
    missing = ["This run has not ended; the same command with --resume goes on with it."]
    if not models:
        missing.append("No model has been trained yet.")
    if begun:
        missing.append(f"Training has begun and not ended: {', '.join(begun)}.")
    for name, what in (("submission.csv", "submission"), (REPORT, "score")):
        if not (run / name).exists():
            missing.append(f"There is no {what} yet ({name}).")
    return missing
