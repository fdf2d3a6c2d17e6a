"""Python as on a system that is not Linux: with this folder on PYTHONPATH, it has no affinity.

Processes start by spawn alone, and /proc is hidden from Python. Libraries in C still see it.
"""

import errno
import multiprocessing
import os
import sys
from multiprocessing import reduction


def hide_proc(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


for name in ("sched_getaffinity", "sched_setaffinity"):
    if hasattr(os, name):
        delattr(os, name)
os.process_cpu_count = os.cpu_count  # from Python 3.13 on; Linux's calls sched_getaffinity
reduction.HAVE_SEND_HANDLE = False  # the start method "forkserver" needs it
multiprocessing.set_start_method("spawn")
sys.addaudithook(hide_proc)
