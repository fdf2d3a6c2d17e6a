"""Claims: what counts in the budget, and what becomes of trials whose worker died."""

from pathlib import Path

import optuna
import pytest

from pipeline.tuning.storage.claims import (
    LOST,
    REASON,
    count_trials,
    is_at_rest,
    mark_claimed,
    mark_interrupted,
    reason_of,
)
from pipeline.tuning.storage.claims import requeue_lost as requeue
from pipeline.tuning.storage.journal import beside
from pipeline.tuning.storage.storage import SharedStorage, open_storage, quiet_optuna
from tests.models.light_workers import check_workers_share_a_budget


def die(journal: Path, worker: SharedStorage) -> None:
    """Leave behind, without its lock, the file that a killed worker cannot remove."""
    (beside(journal, "workers") / worker.worker).touch()


STORAGES = ["{folder}/journal.log", "sqlite:///{folder}/study.db"]


def test_a_living_workers_trial_is_its_own_and_a_dead_ones_is_tried_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    with quiet_optuna(), open_storage(journal) as finder:
        study = finder.study("s")
        with open_storage(journal) as worker:
            trial = worker.study("s").ask()
            mark_claimed(trial, worker)
            trial.suggest_float("x", 0, 1)
            assert requeue(study, finder) == []
        die(journal, worker)
        assert requeue(study, finder) == [0]
        assert requeue(study, finder) == []
        lost, retry = study.get_trials()
        assert (lost.state.name, retry.state.name) == ("FAIL", "WAITING")
        assert reason_of(lost) == LOST and retry.params == lost.params
        assert count_trials(study) == 0 and not is_at_rest(study)
        with open_storage(journal) as worker:
            again = worker.study("s").ask()
            mark_claimed(again, worker)
            assert count_trials(study) == 1
        die(journal, worker)
        assert requeue(study, finder) == [], "a trial is tried twice, not three times"
        assert count_trials(study) == 1 and is_at_rest(study)


@pytest.mark.parametrize("storage", STORAGES)
def test_interruptions_use_up_no_retry_and_a_death_after_them_does(
    storage: str, tmp_path: Path
) -> None:
    with quiet_optuna(), open_storage(storage.format(folder=tmp_path)) as shared:
        study = shared.study("s")
        for number in range(5):
            trial = study.ask()
            assert trial.number == number
            if number < 3:
                mark_interrupted(trial)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            assert requeue(study, shared) == ([number] if number < 4 else [])
        assert count_trials(study) == 1


def test_a_worker_that_ended_in_order_on_a_full_disk_costs_no_retry(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    with quiet_optuna(), open_storage(journal) as finder:
        study = finder.study("s")
        for number in range(3):
            with open_storage(journal) as worker:
                mark_claimed(worker.study("s").ask(), worker)  # and cannot note its end
            assert requeue(study, finder) == [number]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_trial_that_nobody_has_is_lost(storage: str, tmp_path: Path) -> None:
    with quiet_optuna(), open_storage(storage.format(folder=tmp_path)) as shared:
        study = shared.study("s")
        study.ask()  # and its worker is killed before it has put its name to it
        with shared.claims():
            assert requeue(study, shared) == [0]


def test_a_trial_that_failed_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    with quiet_optuna(), open_storage(tmp_path / "journal.log") as shared:
        study = shared.study("s")
        trial = study.ask()
        trial.set_user_attr(REASON, "the loss is nan")
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        assert requeue(study, shared) == []
        assert reason_of(study.get_trials()[0]) == "the loss is nan"
        assert count_trials(study) == 1


@pytest.mark.parametrize("storage", STORAGES)
def test_workers_together_run_the_budget_and_not_one_trial_more(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_workers_share_a_budget(storage.format(folder=tmp_path), tmp_path, monkeypatch)
