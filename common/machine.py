"""The cores and the memory that this process may use, and its peak of memory.

Linux bounds a process by its affinity and by control groups of version 1 or 2 (cgroups(7)). Each
group on the way to the root of its hierarchy has limits, for example a systemd slice.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # the unit of `ru_maxrss`, getrusage(2)


def granted(root: Path = Path("/")) -> tuple[int, int]:
    """Return the number of cores and the bytes of memory that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux only
    n_cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        for group in _control_groups(root):
            for name in ("memory.max", "memory.limit_in_bytes"):
                n_bytes = min([n_bytes, *_numbers(group / name)])
            for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
                quota_us, period_us = _numbers(*(group / name for name in names)) or (0, 1)
                if quota_us > 0:
                    n_cores = min(n_cores, max(1, round(quota_us / period_us)))
    return n_cores, n_bytes


def _numbers(*files: Path) -> list[int]:
    """Return the numbers in files; none if a file is missing or its limit is "max"."""
    try:
        return [int(word) for file in files for word in file.read_text().split()]
    except (OSError, ValueError):
        return []


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of all visible groups above them.

    A container sees its own group as the root, or under a path that it does not have.
    """
    lines = (root / "proc/self/cgroup").read_bytes().decode(errors="surrogateescape")
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)  # version 2 has no controllers here
        group = PurePosixPath("" if ".." in path else path.lstrip("/"))
        mount = root / "sys/fs/cgroup" / controllers
        yield from (mount / folder for folder in (group, *group.parents))


def thread_limits(n_threads: int, user_api: str | None = None) -> AbstractContextManager[object]:
    """Bound the threads of the loaded libraries: of kind "blas" or "openmp", or of all.

    A Linux without /proc lists no libraries, so nothing changes.
    """
    try:
        return _thread_pools(len(sys.modules)).limit(limits=n_threads, user_api=user_api)
    except OSError:
        return nullcontext()


@lru_cache(maxsize=1)
def _thread_pools(n_modules: int) -> "ThreadpoolController":
    # A search for libraries takes milliseconds. Imports load libraries, so the number of modules
    # shows when the last search is out of date.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def own_peak_mib() -> float:
    """Return the peak of this process's resident memory in MiB."""
    try:  # Linux's getrusage counts the process that started this one as well
        status = Path("/proc/self/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES / 2**20
