"""Finalists: who they are, with which seeds they train, when the baseline stays; and reports."""

import re
import shutil
from pathlib import Path

import numpy as np
import optuna
import pytest

from common.errors import PipelineError
from common.metrics import family_interval
from common.progress import time_limit
from models.config.recipe import load_recipe
from models.run_folder import begin, is_done, mark_done, read_config
from pipeline.tuning.objective import space_from_table
from pipeline.tuning.result import (
    BASELINE,
    TrialRecord,
    TuneResult,
    candidates,
    final_selection,
    write_tune_report,
)
from pipeline.tuning.storage import NUMBER, REASON, open_storage
from tests.pipeline.tuning.small_study import PARAMETERS, outcome, search, small_recipe, space_over

ONE = space_over(PARAMETERS, finalists=1, seeds=2)
RATE, STATISTICS = "layout_boosting.learning_rate", "layout_boosting.statistics"
STUDY = {"collection": "layout:xla:random", "model": "layout_boosting"}
TABLE = {
    "study": STUDY,
    RATE: {"low": 0.01, "high": 1.0, "log": True},
    STATISTICS: {"choices": ["plain", "all"]},
}


def record(number: int, value: float | None, *, baseline: bool = False) -> TrialRecord:
    state = "fail" if value is None else "complete"
    return TrialRecord(number, state, value, {}, baseline, None, None)


def test_the_baseline_is_always_among_the_candidates() -> None:
    own = [record(0, 0.1, baseline=True), record(1, 0.5), record(2, None), record(3, 0.7)]
    assert [r.number for r in candidates(own, 1)] == [3, 0]
    assert [r.number for r in candidates(own, 9)] == [3, 1, 0]
    assert [r.number for r in candidates([record(0, None, baseline=True), own[1]], 3)] == [1]


def test_the_baseline_stays_unless_it_is_beaten_by_more_than_noise() -> None:
    rng = np.random.default_rng(0)
    base, families = rng.uniform(0, 1, 12), [f"family{i // 2}" for i in range(12)]
    for shift in (0.3, 0.02, -0.1):
        other = base + shift + rng.normal(0, 0.1, 12)
        values = {4: [float(other.mean())], 0: [float(base.mean())]}
        chosen, reason = final_selection({4: other, 0: base}, values, 0, families)
        low, high = family_interval(other - base, families)
        wins = low > 0 and other.mean() > base.mean()
        assert chosen == (4 if wins else 0)
        told = reason.endswith(f"interval {low:+.4f} to {high:+.4f}")
        assert told == (other.mean() > base.mean())
        if shift == 0.3:
            assert wins and reason.startswith("trial 4 beats the baseline: +0.")
        if shift == 0.02:
            assert "not better by more than noise" in reason
    lead = rng.normal(0, 0.1, 12)
    low = family_interval(lead, families)[0]
    best = base + lead - low + 0.001  # surely better, if it were the only one
    of_ten = {0: base, 4: best} | {n: base - n for n in range(5, 14)}
    for finalists, wins in (({0: base, 4: best}, True), (of_ten, False)):
        means = {n: [float(own.mean())] for n, own in finalists.items()}
        chosen, reason = final_selection(finalists, means, 0, families)
        assert (chosen == 4) == wins and reason.endswith("as the best of 10") != wins
    chosen, reason = final_selection({4: other}, {4: [0.1]}, None, families)
    assert chosen == 4 and reason.endswith("the baseline could not be judged")


def test_finalists_train_with_other_seeds_and_decide(
    tiny_tree: Path,
    searched: tuple[Path, TuneResult],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    with time_limit(0):
        waiting = search(tiny_tree, tmp_path, trials=3, space=ONE)
    assert waiting.selection is None and not is_done(tmp_path / "out")
    caplog.set_level("INFO")
    result = search(tiny_tree, tmp_path, trials=3, space=ONE)
    assert outcome(result) == outcome(searched[1])
    selection = result.selection
    assert selection is not None and selection.reason in caplog.messages
    told = f"{len(selection.values)} finalists, 2 other seeds and "
    assert any(message.startswith(told) for message in caplog.messages)
    ranked = sorted(result.trials, key=lambda trial: -(trial.value or -2))
    expected = {trial.number for trial in ranked[:1]} | {0}
    assert selection.values.keys() == expected
    folders = sorted((tmp_path / "out" / "finalists").iterdir())
    assert len(folders) == 2 * len(expected)
    assert {tuple(read_config(f)["recipe"]["seeds"]) for f in folders} == {(1,), (2,)}
    chosen = result.trials[selection.trial]
    values = {} if chosen.is_baseline else chosen.params
    assert load_recipe(str(result.best_recipe)) == small_recipe(**values)
    assert is_done(tmp_path / "out")
    assert search(tiny_tree, tmp_path, trials=3, space=ONE).selection == selection


def folder_of(out: Path, *states: str) -> Path:
    space = space_from_table(TABLE, source="test")
    begin(out, {"train_data": "x", "space": space.decisive()}, resume=False)
    with open_storage(out / "journal.log", out) as shared:
        study = optuna.create_study(
            study_name=space.study.name,
            storage=shared.optuna,
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=0),
        )
        for number, state in enumerate(states):
            trial = study.ask()
            trial.set_user_attr(NUMBER, number)
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
