"""Cores and memory on made-up machines: trees of /proc and of control groups in a folder."""

import os
import sys
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from common.machine import granted, own_peak_mib, thread_limits
from common.settings import ROOT
from tests.support.command_line import python_in

MIB = 1 << 20
GROUPS = "sys/fs/cgroup"


@pytest.fixture(autouse=True)
def _has_96_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)), raising=False)


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("memory", "cpu", "want"),
    [
        ("max", "max 100000", (96, None)),
        (str(9 * MIB), "100000 100000", (1, 9)),
        (str(1 << 60), "99900000 100000", (96, None)),
        (str(9 * MIB), "20000 100000", (1, 9)),
        ("max", "350000 100000", (4, None)),
        ("odd", "", (96, None)),
    ],
)
def test_container_has_the_limits_of_its_group(
    memory: str, cpu: str, want: tuple[int, int | None], tmp_path: Path
) -> None:
    files = {f"{GROUPS}/memory.max": memory, f"{GROUPS}/cpu.max": cpu}
    n_cores, n_bytes = granted(machine(tmp_path, "0::/", files))
    whole = granted(tmp_path / "none")[1]
    assert (n_cores, n_bytes) == (want[0], whole if want[1] is None else want[1] * MIB)


def test_least_limit_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    group = "user.slice/user-7.slice/session.scope"
    files = {
        f"{GROUPS}/user.slice/cpu.max": "800000 100000",
        f"{GROUPS}/user.slice/user-7.slice/memory.max": str(64 * MIB),
        f"{GROUPS}/user.slice/user-7.slice/cpu.max": "300000 100000",
        f"{GROUPS}/{group}/memory.max": str(128 * MIB),
        f"{GROUPS}/{group}/cpu.max": "max 100000",
        f"{GROUPS}/system.slice/memory.max": str(MIB),  # another's
    }
    assert granted(machine(tmp_path, f"0::/{group}", files)) == (3, 64 * MIB)


@pytest.mark.parametrize(
    ("group", "inside"),
    [
        ("/docker/abc", "docker/abc"),
        ("/docker/abc", "."),  # a container sees its own group as the root
        ("/../sibling", "."),
    ],
)
@pytest.mark.parametrize("is_limited", [True, False])
def test_groups_of_version_1_are_found(
    group: str, inside: str, is_limited: bool, tmp_path: Path
) -> None:
    memory = str(64 * MIB) if is_limited else "9223372036854771712"
    files = {
        f"{GROUPS}/memory/{inside}/memory.limit_in_bytes": memory,
        f"{GROUPS}/cpu,cpuacct/{inside}/cpu.cfs_quota_us": "200000" if is_limited else "-1",
        f"{GROUPS}/cpu,cpuacct/{inside}/cpu.cfs_period_us": "50000",
    }
    groups = f"5:memory:{group}\n4:cpu,cpuacct:{group}\n1:name=systemd:/x\n0::/x"
    whole = granted(tmp_path / "none")
    assert granted(machine(tmp_path, groups, files)) == ((4, 64 * MIB) if is_limited else whole)


def test_systems_without_affinity_or_memory_size_have_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    n_cores, n_bytes = granted(tmp_path)
    assert n_cores == os.cpu_count() and n_bytes > 1 << 28
    monkeypatch.setattr(os, "cpu_count", lambda: None)

    def unknown(name: str) -> int:
        raise ValueError(f"unrecognized configuration name: {name}")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert granted(tmp_path) == (1, sys.maxsize)


def test_libraries_use_no_more_threads_than_the_limit() -> None:
    def n_threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info()}

    before = n_threads()
    with thread_limits(1):
        assert n_threads() == {1}
    assert n_threads() == before


def test_peak_of_memory_is_known_without_proc() -> None:
    lines = (
        "from pathlib import Path",
        "from common.machine import own_peak_mib",
        "held, with_proc = b'1' * (64 << 20), own_peak_mib()",
        "Path.read_text = lambda *_: Path('/none').open()",
        "print(with_proc, own_peak_mib())",
    )
    with_proc, without = map(float, python_in(ROOT, "-c", "\n".join(lines)).split())
    assert without >= 0.9 * with_proc > 50 and without < 1e5
    assert own_peak_mib() > 1


def test_library_that_is_loaded_later_is_limited_too() -> None:
    lines = (
        "from common.machine import thread_limits",
        "with thread_limits(1): pass",
        "import numpy, threadpoolctl",
        "with thread_limits(1, 'blas'):",
        "    print(*(each['num_threads'] for each in threadpoolctl.threadpool_info()))",
    )
    counts = python_in(ROOT, "-c", "\n".join(lines)).split()
    assert counts and set(counts) == {"1"}
