"""Processes that end with their parent, and leave a terminal's Ctrl-C to it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from common.child_processes import interrupts_held
from tests.real_data import ROOT

PARENT = """
import sys, time
from multiprocessing import get_context
from common.child_processes import end_with_parent
def work():
    end_with_parent()
    time.sleep(60)
if __name__ == "__main__":
    child = get_context("fork").Process(target=work)
    child.start()
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    stat = Path(f"/proc/{child}/stat")
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interrupt_comes_after_the_block_that_holds_it() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert reached


def test_an_interrupt_that_another_thread_takes_is_held_too() -> None:
    reached = False
    done = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=done.wait, args=(20,)).start()  # its mask lets the signal through
        try:
            with interrupts_held():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
                reached = True
        finally:
            done.set()
    assert reached


def test_a_process_that_is_started_meanwhile_gets_no_interrupt() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(0.5)"]
    with interrupts_held():
        deaf = subprocess.Popen(sleeper)
    with deaf:
        deaf.send_signal(signal.SIGINT)
        assert deaf.wait(20) == 0
