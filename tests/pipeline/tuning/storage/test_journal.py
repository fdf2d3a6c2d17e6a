"""Journals: who may write, what a killed writer leaves, and who lives."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest

from common.errors import PipelineError
from common.settings import ROOT
from pipeline.tuning.storage.journal import (
    JournalLock,
    beside,
    journal_storage,
    lives,
    living_worker,
    mend,
)

HALF = b'{"op_code":4,"wor'  # what a worker killed in mid-write leaves


@contextmanager
def process_that(code: str) -> Iterator[subprocess.Popen[str]]:
    """Start `code`, wait for its first line, and kill it in the end."""
    command = [sys.executable, "-c", f"{code}\nprint('ready', flush=True)\nimport time\n"]
    command[-1] += "time.sleep(60)"
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    yield started
    started.kill()
    started.wait()
    started.stdout.close()


def study_in(journal: Path) -> optuna.Study:
    return optuna.create_study(
        storage=journal_storage(journal), study_name="s", load_if_exists=True
    )


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", b""),
        (b"a\nb\n", b"a\nb\n"),
        (b"a\nb", b"a\n"),
        (b"ab", b""),
        (b"a\n" + b"x" * 200_000, b"a\n"),
        (b"x" * 200_000, b""),
    ],
)
def test_mending_cuts_off_a_line_without_end(content: bytes, kept: bytes, tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    mend(path)
    assert path.read_bytes() == kept


def test_a_half_written_line_is_mended_while_other_workers_go_on(tmp_path: Path) -> None:
    journal = tmp_path / "j.log"
    one, other = study_in(journal), study_in(journal)
    one.add_trial(optuna.create_trial(value=1.0))
    with journal.open("ab") as file:
        file.write(HALF)
    assert len(other.get_trials()) == 1  # a reader passes over it
    for number, study in enumerate((other, one, other), start=2):
        study.add_trial(optuna.create_trial(value=float(number)))
        assert [t.value for t in one.get_trials()] == [t.value for t in other.get_trials()]
    assert [t.value for t in study_in(journal).get_trials()] == [1.0, 2.0, 3.0, 4.0]
    assert HALF + b"{" not in journal.read_bytes()


def test_the_right_to_write_ends_with_a_killed_holder(tmp_path: Path) -> None:
    journal = tmp_path / "j.log"
    study = study_in(journal)
    code = (
        "from pathlib import Path; from pipeline.tuning.storage.journal import JournalLock\n"
        f"lock = JournalLock(Path({str(journal)!r})); lock.acquire()"
    )
    with process_that(code) as holder:
        waiting = subprocess.Popen(
            ["flock", "--nonblock", str(beside(journal, "writing")), "true"], cwd=tmp_path
        )
        assert waiting.wait() == 1, "the lock is not held"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        study.add_trial(optuna.create_trial(value=1.0))  # else: the test's time is up
    assert JournalLock(journal).acquire()


def test_a_worker_lives_as_long_as_its_process(tmp_path: Path) -> None:
    journal = tmp_path / "j.log"
    with living_worker(journal) as name:
        assert str(os.getpid()) in name
        assert lives(journal, name)
    assert not lives(journal, name)
    assert not lives(journal, "nobody")
    code = (
        "from pathlib import Path; from pipeline.tuning.storage.journal import living_worker\n"
        f"worker = living_worker(Path({str(journal)!r})); worker.__enter__()"
    )
    with process_that(code) as process:
        [name] = [file.name for file in beside(journal, "workers").iterdir()]
        assert lives(journal, name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not lives(journal, name)
    assert not list(beside(journal, "workers").iterdir())


@pytest.mark.parametrize("content", [b"one line\nand half", b'{"op": 1}\n'])
def test_another_file_is_left_alone(content: bytes, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_bytes(content)
    with pytest.raises(PipelineError, match=r"notes\.txt: not a tuning journal"):
        journal_storage(notes)
    assert notes.read_bytes() == content
