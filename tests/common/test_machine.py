"""Cores and memory on made-up machines: trees of /proc and of control groups in a folder."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from common.machine import granted
from common.settings import ROOT
from tests.support.command_line import python_in

MIB = 1 << 20
NESTED = "user.slice/user-7.slice/session.scope"
FIRST = "5:memory:{0}\n4:cpu,cpuacct:{0}\n1:name=systemd:/x\n0::/x"
# Of version 1.
FIRST_LIMITS = {
    "memory{0}/memory.limit_in_bytes": str(64 * MIB),
    "cpu,cpuacct{0}/cpu.cfs_quota_us": "200000",
    "cpu,cpuacct{0}/cpu.cfs_period_us": "50000",
}
UNLIMITED = ("9223372036854771712", "-1", "50000")


def limits(memory: str, cpu: str) -> dict[str, str]:
    return {"memory.max": memory, "cpu.max": cpu}


def first_limits(folder: str, values: Iterable[str] = FIRST_LIMITS.values()) -> dict[str, str]:
    """Return the limits of a group of version 1."""
    return dict(zip((name.format(folder) for name in FIRST_LIMITS), values, strict=True))


@pytest.fixture(autouse=True)
def _has_96_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)), raising=False)


@pytest.mark.parametrize(
    ("groups", "files", "n_cores", "n_mib"),
    [
        ("0::/", limits("max", "max 100000"), 96, None),
        ("0::/", limits(str(9 * MIB), "100000 100000"), 1, 9),
        ("0::/", limits(str(1 << 60), "99900000 100000"), 96, None),
        ("0::/", limits(str(9 * MIB), "20000 100000"), 1, 9),
        ("0::/", limits("max", "350000 100000"), 4, None),
        ("0::/", limits("odd", ""), 96, None),
        (  # the least limit on the way to the root counts
            f"0::/{NESTED}",
            {
                "user.slice/cpu.max": "800000 100000",
                "user.slice/user-7.slice/memory.max": str(64 * MIB),
                "user.slice/user-7.slice/cpu.max": "300000 100000",
                f"{NESTED}/memory.max": str(128 * MIB),
                f"{NESTED}/cpu.max": "max 100000",
                "system.slice/memory.max": str(MIB),  # another's
            },
            3,
            64,
        ),
        (FIRST.format("/docker/abc"), first_limits("/docker/abc"), 4, 64),
        # A container sees its own group as the root.
        (FIRST.format("/docker/abc"), first_limits(""), 4, 64),
        (FIRST.format("/../sibling"), first_limits(""), 4, 64),
        (FIRST.format("/docker/abc"), first_limits("", UNLIMITED), 96, None),
    ],
)
def test_limits_of_control_groups_count(
    groups: str, files: dict[str, str], n_cores: int, n_mib: int | None, tmp_path: Path
) -> None:
    whole = granted(tmp_path / "none")[1]
    written = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": groups, **written}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert granted(tmp_path) == (n_cores, whole if n_mib is None else n_mib * MIB)


def test_systems_without_affinity_have_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    n_cores, n_bytes = granted(tmp_path)
    assert n_cores == os.cpu_count() and n_bytes > 1 << 28


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
