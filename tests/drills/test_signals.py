"""Ctrl-C and SIGTERM before the first stage, and output that nobody can receive: one line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.drills.processes import Scene, Watched, wait_for_handlers

RESUMES = "; the same command resumes"
ENDS = {signal.SIGINT: (130, "error: interrupted"), signal.SIGTERM: (143, "error: terminated")}
IN_EXEC = """
import sys, typer
from pipeline.cli import console
@console.command
def work(number: int) -> None:
    exec("import signal; signal.raise_signal(number)", {"number": number})
typer.run(work)
"""
CHATTER = """
from pipeline.cli import console
@console.command
def talk() -> None:
    for number in range(3):
        console.say(f"line {number}")
    print("done")
talk()
"""


def audited(tree: Path, redirection: str) -> subprocess.CompletedProcess[str]:
    """Audit a tree with redirected output, as a shell redirects it."""
    words = ["sh", "-c", f'exec "$@" {redirection}', "sh"]
    words += [sys.executable, "-m", "pipeline", "audit", "--data", str(tree)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", ENDS, ids=lambda n: n.name)
def test_a_signal_in_an_executed_text_ends_with_its_code(number: signal.Signals) -> None:
    """CPython would end by SIGINT after a KeyboardInterrupt that has left `exec`."""
    command = [sys.executable, "-c", IN_EXEC, str(int(number))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == ENDS[number]


@pytest.mark.parametrize("number", ENDS, ids=lambda n: n.name)
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2, 0.4])
def test_a_signal_during_the_imports_is_one_line(
    number: signal.Signals, delay_s: float, tiny_tree: Path, tmp_path: Path
) -> None:
    watched = Watched(Scene.at(tmp_path, tiny_tree))
    wait_for_handlers(watched.process.pid)
    time.sleep(delay_s)
    watched.send(number)
    code, message = ENDS[number]
    assert watched.is_refused(code).startswith(message)


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-", "2>/dev/full"])
def test_a_closed_standard_error_changes_no_result(closed: str, tiny_tree: Path) -> None:
    done = audited(tiny_tree, closed)
    assert done.returncode == 0
    assert done.stdout == audited(tiny_tree, "").stdout != ""


def test_a_full_standard_output_is_named(tiny_tree: Path) -> None:
    done = audited(tiny_tree, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: standard output: No space left on device"


def test_a_command_with_a_closed_standard_error_finishes() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", CHATTER]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=write, check=True)
    os.close(write)
    assert done.stdout == b"done\n"
