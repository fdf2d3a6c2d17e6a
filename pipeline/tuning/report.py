"""The report on a search, running or ended: one page, drawn by Optuna."""

import base64
import io
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.atomic import write_text
from common.errors import PipelineError
from models.run_folder import is_done, read_config
from pipeline.tuning.result import FINALISTS, ranked, records_of
from pipeline.tuning.space import StudyConfig
from pipeline.tuning.storage import open_storage
from submissions.report.page import render_page

if TYPE_CHECKING:
    from optuna import Study

PAGE, JOURNAL = "tune.html", "journal.log"
TEMPLATE = Path(__file__).with_name("tune.html.j2")
FEWEST_FOR_IMPORTANCES = 4  # trials, below which a forest of trees has nothing to split
SLICES_PER_ROW = 4
DPI = 80


def write_tune_report(out: Path, storage: Path | str | None = None) -> Path:
    """Write OUT/tune.html and return its path; the same trials give the same bytes.

    Args:
        storage: its --storage; None for OUT/journal.log.

    Raises:
        PipelineError: `out` is no search's folder, its storage is elsewhere, or has no trial yet.
    """
    config = read_config(out)
    if "space" not in config:
        raise PipelineError(f"{out}: no folder of `tune`; expected the --out of a search")
    asked = StudyConfig.from_table(config["space"]["study"], source=str(out))
    place = storage or out / JOURNAL
    if "://" not in str(place) and not Path(place).exists():
        raise PipelineError(f"{place}: no such journal; expected the --storage of the search")
    with open_storage(place) as shared:
        page = _page(out, asked, shared.study(asked.name))
    write_text(out / PAGE, page)
    return out / PAGE


def _drawings(study: "Study") -> Iterator[tuple[str, Any]]:
    from optuna import importance, visualization

    plot, name = visualization.matplotlib, "held-out value"
    yield "History", plot.plot_optimization_history(study, target_name=name)
    complete = [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    keys = sorted({key for trial in complete for key in trial.params})
    if len(complete) >= FEWEST_FOR_IMPORTANCES and len({trial.value for trial in complete}) > 1:
        fanova = importance.FanovaImportanceEvaluator(seed=0)
        shares = importance.get_param_importances(study, evaluator=fanova)
        keys.sort(key=lambda key: -shares.get(key, 0.0))
        yield "Importances", plot.plot_param_importances(study, fanova)
    if keys:
        yield "Parallel coordinates", plot.plot_parallel_coordinate(study, target_name=name)
    for first in range(0, len(keys), SLICES_PER_ROW):
        own = keys[first : first + SLICES_PER_ROW]
        yield ", ".join(own), plot.plot_slice(study, own, target_name=name)


def _pictures(study: "Study") -> list[tuple[str, str]]:
    """Return titles, and PNGs as addresses."""
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    pictures = []
    with pyplot.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of legends without entries
        for title, axes in _drawings(study):
            figure, content = np.ravel(axes)[0].figure, io.BytesIO()
            figure.savefig(content, dpi=DPI, bbox_inches="tight", metadata={"Software": None})
            pyplot.close(figure)
            address = base64.b64encode(content.getvalue()).decode()
            pictures.append((title, f"data:image/png;base64,{address}"))
    return pictures


def _page(out: Path, asked: StudyConfig, study: "Study") -> str:
    records, verdict = records_of(study), out / f"{FINALISTS}.json"
    best = ranked(records)
    return render_page(
        TEMPLATE,
        study=asked,
        keys=sorted({key for record in records for key in record.params}),
        states=Counter(record.state for record in records),
        is_ended=is_done(out),
        best=best[:10],
        baseline=next((record for record in best if record.is_baseline), None),
        verdict=json.loads(verdict.read_text())["reason"] if verdict.exists() else None,
        reasons=Counter(str(r.reason) for r in records if r.state == "fail").most_common(),
        pictures=_pictures(study),
    )
