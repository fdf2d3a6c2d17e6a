"""Workers of a study that train nothing: processes of their own, one of which is killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT
from pipeline.tuning.storage.claims import count_trials
from pipeline.tuning.storage.storage import open_storage, quiet_optuna

_WORKER = """
import json, os, signal, sys, time
from types import SimpleNamespace
from pathlib import Path
from pipeline.tuning.storage.storage import open_storage, quiet_optuna
from pipeline.tuning.worker import Work, run_trials
folder, storage, budget, killed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def judge(trial, x):
    if trial.number == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return (x,)
question = SimpleNamespace(
    out=Path(folder), space=SimpleNamespace(study=SimpleNamespace(seed=0))
)
with quiet_optuna(), open_storage(storage) as shared:
    work = Work(
        study=shared.study("s"),
        enter=lambda: None,
        choose=lambda trial: trial.suggest_float("x", 0, 1),
        judge=judge,
        is_given=lambda trial: False,
        budget=lambda: budget,
    )
    run_trials(
        work, question, shared, deadline=None, after_trial=lambda: None, say=print, progress=None
    )
"""


def check_workers_share_a_budget(
    storage: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, budget: int = 16
) -> None:
    """Run three workers, kill the one that has trial 5, and look at what is in the storage."""
    monkeypatch.setenv("PIPELINE_TUNE_HEARTBEAT_S", "1")
    monkeypatch.setenv("PIPELINE_TUNE_SILENT_S", "3")
    killed = 5
    command = [sys.executable, "-c", _WORKER, str(folder), storage, str(budget), str(killed)]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert sorted(worker.wait() for worker in workers) == [-9, 0, 0]
    with quiet_optuna(), open_storage(storage) as shared:
        study = shared.study("s")
        trials = study.get_trials()
        assert count_trials(study) == budget
    states = [trial.state.name for trial in trials]
    assert len(trials) == budget + 1
    assert states.count("COMPLETE") == budget and states[killed] == "FAIL"
    [retry] = [t for t in trials if t.system_attrs.get("retry_history") == [killed]]
    assert retry.state.name == "COMPLETE" and retry.params == trials[killed].params
