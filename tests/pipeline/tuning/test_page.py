"""The page of a search shows its history, and the parameter that decides the value."""

from pathlib import Path

import optuna
import pytest

from pipeline.tuning.page import MIN_TRIALS, importances_of, write_search_page
from pipeline.tuning.tune import TuneResult
from tests.submissions.test_report import Page


def study_of(n_trials: int) -> optuna.Study:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    def value(trial: optuna.Trial) -> float:
        strong = trial.suggest_float("net.rate", 0, 1)
        return strong + 1e-3 * trial.suggest_int("net.width", 1, 8)

    study.optimize(value, n_trials=n_trials)
    return study


def test_importance_is_that_of_the_parameter_that_decides_and_needs_some_trials() -> None:
    shares = importances_of(study_of(20))
    assert [*shares] == ["net.rate", "net.width"] and shares["net.rate"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == importances_of(study_of(20))
    assert importances_of(study_of(MIN_TRIALS - 1)) == {}


def test_page_shows_history_and_importance(tmp_path: Path) -> None:
    shares = {"net.rate": 0.75, "net.<b>": 0.25}
    write_search_page(tmp_path / "a.html", "net", {0: 0.5, 1: 0.4, 3: 0.7}, shares)
    page = Page((tmp_path / "a.html").read_text())
    assert page.open_tags == []
    history, importance = page.charts
    assert history["groups"]["value"]["x"] == [0, 1, 3]
    assert history["groups"]["value"]["names"] == ["trial 0", "trial 1", "trial 3"]
    assert history["groups"]["best so far"]["y"] == [0.5, 0.5, 0.7]
    assert (importance["names"], importance["values"]) == (["rate", "<b>"], [0.75, 0.25])
    assert "best value 0.7000" in page.text


def test_search_writes_its_page(searched: tuple[Path, TuneResult]) -> None:
    folder, result = searched
    page = Page((folder / "out" / "report.html").read_text())
    (history,) = page.charts  # three trials are too few for the importance
    assert history["groups"]["value"]["y"] == [trial.value for trial in result.trials]
