"""Storages of studies: one worker per journal, killed workers, databases."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from data.errors import PipelineError
from models.run_folder import is_done
from settings import ROOT
from tests.models.small_study import SPACE, outcome, recipe_table, search


def test_a_journal_serves_one_worker_and_only_journals_are_mended(
    tiny_tree: Path, tmp_path: Path
) -> None:
    first = search(tiny_tree, tmp_path, trials=3)
    journal = tmp_path / "journal.log"
    with journal.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(PipelineError, match="another worker is tuning"):
            search(tiny_tree, tmp_path, trials=3)
        held.write(b'{"op_code":4,"wor')  # what a worker killed in mid-write leaves
    for _ in range(2):
        assert outcome(search(tiny_tree, tmp_path, trials=4))[:3] == outcome(first)
    notes = tmp_path / "notes.txt"
    notes.write_bytes(b"one line\nand half")
    with pytest.raises(PipelineError, match=r"notes\.txt: not a tuning journal"):
        search(tiny_tree, tmp_path, trials=3, storage=notes)
    assert notes.read_bytes() == b"one line\nand half"


WORKER = """
import json, sys
from pathlib import Path
from models.search_space import space_from_table
from models.tuning import tune
job = json.load(open(sys.argv[1]))
space = space_from_table(job["space"], source="worker")
tune(job["table"], space, Path(job["data"]), storage=job["storage"], trials=3, out=Path(job["out"]))
"""


def test_a_worker_killed_in_mid_trial_loses_no_trial(tiny_tree: Path, tmp_path: Path) -> None:
    table = recipe_table(**{"cross_config_sage.training.steps": 60})
    parameters = {key: p.model_dump(exclude_none=True) for key, p in SPACE.parameters.items()}
    job = {
        "space": {"study": SPACE.study.model_dump(), **parameters},
        "table": table,
        "data": str(tiny_tree),
        "storage": str(tmp_path / "journal.log"),
        "out": str(tmp_path / "out"),
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path / "job.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    begun = tmp_path / "out" / "trials" / "1" / "fold-0" / "config.toml"
    deadline = time.monotonic() + 60
    while not begun.exists() and worker.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL, "the worker ended before it could be killed"
    assert begun.exists() and not is_done(tmp_path / "out" / "trials" / "1")

    result = search(tiny_tree, tmp_path, trials=3, table=table)
    assert [t.state for t in result.trials] == ["complete", "fail", "complete", "complete"]
    lost, retried = result.trials[1], result.trials[2]
    assert lost.params == retried.params
    assert "killed" in (lost.reason or "")
    assert len(search(tiny_tree, tmp_path, trials=3, table=table).trials) == 4


def test_a_trial_whose_worker_dies_twice_is_given_up(tiny_tree: Path, tmp_path: Path) -> None:
    search(tiny_tree, tmp_path, trials=1)

    def die(message: str) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(tiny_tree, tmp_path, trials=3, progress=lambda what, done, total: die(what))
    result = search(tiny_tree, tmp_path, trials=3)
    assert [t.state for t in result.trials] == ["complete", "fail", "fail", "complete"]
    assert optuna.logging.get_verbosity() == optuna.logging.INFO


def test_a_database_url_serves_as_storage(tiny_tree: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    search(tiny_tree, tmp_path, trials=1, storage=url)
    result = search(tiny_tree, tmp_path, trials=2, storage=url)
    assert outcome(result) == outcome(search(tiny_tree, tmp_path / "journal", trials=2))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/folder/study.db", "cannot be opened"),
        (
            "postgresql+psycopg2://me:secret@localhost/db",
            "driver is not installed|cannot be opened",
        ),
        ("nodatabase://x/y", "not a database URL|cannot be opened|driver"),
    ],
)
def test_a_database_out_of_reach_is_one_line_without_password(
    url: str, message: str, tiny_tree: Path, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        search(tiny_tree, tmp_path, trials=1, storage=url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
