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
CGROUP2 = "30 23 0:26 {top} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
CGROUP1 = "3{n} 23 0:2{n} {top} /sys/fs/cgroup/{names} rw - cgroup cgroup rw,{names}"
OTHER = "23 1 8:1 / /media/\udcff\udcd6 rw,relatime shared:1 - ext4 /dev/sda1 rw,memory,cpu"


@pytest.fixture(autouse=True)
def _has_96_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)), raising=False)


def machine(root: Path, groups: str, mounts: list[str], files: dict[str, str]) -> Path:
    for name, text in {
        "proc/self/cgroup": groups,
        "proc/self/mountinfo": "\n".join([OTHER, *mounts]),
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{text}\n".encode(errors="surrogateescape"))
    return root


@pytest.mark.parametrize(
    ("memory", "cpu", "want"),
    [
        ("max", "max 100000", (96, None)),
        (str(9 * MIB), "100000 100000", (1, 9)),
        (str(1 << 60), "99900000 100000", (96, None)),
        (str(9 * MIB), "20000 100000", (1, 9)),
        ("max", "350000 100000", (4, None)),
    ],
)
def test_a_container_has_the_limits_of_its_group(
    memory: str, cpu: str, want: tuple[int, int | None], tmp_path: Path
) -> None:
    mount = CGROUP2.format(top="/", point="/sys/fs/cgroup")
    files = {"sys/fs/cgroup/memory.max": memory, "sys/fs/cgroup/cpu.max": cpu}
    n_cores, n_bytes = granted(machine(tmp_path, "0::/", [mount], files))
    whole = granted(tmp_path / "none")[1]
    assert (n_cores, n_bytes) == (want[0], whole if want[1] is None else want[1] * MIB)


def test_the_least_limit_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    group = "user.slice/user-7.slice/session.scope"
    files = {
        "cg/user.slice/cpu.max": "800000 100000",
        "cg/user.slice/user-7.slice/memory.max": str(64 * MIB),
        "cg/user.slice/user-7.slice/cpu.max": "300000 100000",
        f"cg/{group}/memory.max": str(128 * MIB),
        f"cg/{group}/cpu.max": "max 100000",
        "cg/system.slice/memory.max": str(MIB),  # another's
    }
    mount = CGROUP2.format(top="/", point="/cg")  # not the usual folder
    assert granted(machine(tmp_path, f"0::/{group}", [mount], files)) == (3, 64 * MIB)


@pytest.mark.parametrize(
    ("top", "group", "inside"),
    [
        ("/", "/docker/abc", "docker/abc"),
        ("/docker/abc", "/docker/abc", "."),  # a container sees its own group as the root
        ("/docker/abc", "/docker/abc/part", "part"),
        ("/docker/abc", "/elsewhere", "."),
        ("/", "/../sibling", "."),
    ],
)
def test_groups_of_version_1_are_found_below_their_mounts(
    top: str, group: str, inside: str, tmp_path: Path
) -> None:
    names = ("cpu,cpuacct", "memory")
    mounts = [CGROUP1.format(n=n, top=top, names=own) for n, own in enumerate(names)]
    base = "sys/fs/cgroup"
    files = {
        f"{base}/memory/{inside}/memory.limit_in_bytes": str(64 * MIB),
        f"{base}/memory/memory.stat": "",
        f"{base}/cpu,cpuacct/{inside}/cpu.cfs_quota_us": "200000",
        f"{base}/cpu,cpuacct/{inside}/cpu.cfs_period_us": "50000",
    }
    groups = f"5:memory:{group}\n4:cpu,cpuacct:{group}\n1:name=systemd:/x\n0::/x"
    assert granted(machine(tmp_path, groups, mounts, files)) == (4, 64 * MIB)


def test_groups_of_version_1_without_a_limit_leave_all(tmp_path: Path) -> None:
    mounts = [CGROUP1.format(n=n, top="/", names=own) for n, own in enumerate(("cpu", "memory"))]
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    whole = granted(tmp_path / "none")
    assert granted(machine(tmp_path, "2:cpu:/\n1:memory:/", mounts, files)) == whole


@pytest.mark.parametrize("damage", ["", "no mounts at all", "30 23 0:26 / /cg rw - cgroup2"])
def test_odd_tables_of_mounts_bound_nothing(damage: str, tmp_path: Path) -> None:
    whole = granted(tmp_path / "none")
    assert whole[0] == 96 and whole[1] > 1 << 28
    assert granted(machine(tmp_path, "0::/", [damage], {})) == whole


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


def test_the_peak_of_memory_is_known_without_proc() -> None:
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
