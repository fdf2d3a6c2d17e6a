"""Reports on searches: of one trial, of failures only, of a running one, of a full one."""

import re
from pathlib import Path

import optuna
import pytest

from common.errors import PipelineError
from models.run_folder import begin, mark_done
from pipeline.tuning.report import write_tune_report
from pipeline.tuning.result import BASELINE
from pipeline.tuning.space import space_from_table
from pipeline.tuning.storage import REASON, open_storage

RATE, STATISTICS = "layout_boosting.learning_rate", "layout_boosting.statistics"
STUDY = {"collection": "layout:xla:random", "model": "layout_boosting"}
TABLE = {
    "study": STUDY,
    RATE: {"low": 0.01, "high": 1.0, "log": True},
    STATISTICS: {"choices": ["plain", "all"]},
}


def folder_of(out: Path, *states: str) -> Path:
    space = space_from_table(TABLE, source="test")
    begin(out, {"train_data": "x", "space": space.decisive()}, resume=False)
    with open_storage(out / "journal.log") as shared:
        study = optuna.create_study(
            study_name=space.study.name,
            storage=shared.optuna,
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=0),
        )
        for number, state in enumerate(states):
            trial = study.ask()
            values = [space.parameters[key].suggest(trial, key) for key in (RATE, STATISTICS)]
            if number == 0:
                trial.set_user_attr(BASELINE, True)
            if state == "complete":
                study.tell(trial, float(values[0]) / 2)
            elif state == "fail":
                trial.set_user_attr(REASON, "the loss is <nan>")
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return out


def test_a_full_search_has_every_picture(tmp_path: Path) -> None:
    out = folder_of(tmp_path / "out", *["complete"] * 8, "fail")
    mark_done(out)
    page = write_tune_report(out)
    text = page.read_text()
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert titles == ["History", "Importances", "Parallel coordinates", f"{RATE}, {STATISTICS}"]
    assert text.count("data:image/png;base64,") == 4
    assert "8 complete, 1 fail" in text and "1 × the loss is &lt;nan&gt;" in text
    assert "0 (baseline)" in text and "has not ended" not in text


@pytest.mark.parametrize("states", [["fail", "fail"], ["complete", "complete", "running"]])
def test_a_search_that_has_not_ended_makes_a_report_of_the_same_bytes_again(
    states: list[str], tmp_path: Path
) -> None:
    told = "2 complete, 1 running" if "running" in states else "No trial has a value"
    out = folder_of(tmp_path / "out", *states)
    page = write_tune_report(out)
    assert told in page.read_text() and "has not ended" in page.read_text()
    before = page.read_bytes()
    write_tune_report(out)
    assert page.read_bytes() == before


def test_what_is_no_search_or_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such folder"):
        write_tune_report(tmp_path / "none")
    out = folder_of(tmp_path / "out")
    with pytest.raises(PipelineError, match=r"expected the --storage of the search"):
        write_tune_report(out, tmp_path / "other.log")
    with pytest.raises(PipelineError, match="the storage holds no search of"):
        write_tune_report(out, f"sqlite:///{tmp_path / 'empty.db'}")
    begin(tmp_path / "run", {"model": "x"}, resume=False)
    with pytest.raises(PipelineError, match="no folder of `tune`"):
        write_tune_report(tmp_path / "run")
