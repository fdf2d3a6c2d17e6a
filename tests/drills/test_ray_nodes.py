"""A run on two machines, with killed workers and a lost machine.

The machines are Ray nodes on this host. A third node has a separate mount, so that files of the
tests are missing there.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from common.jobs import workers
from common.jobs.ray_cluster import PROBE, RayCluster
from common.jobs.run_jobs import Job, run_jobs
from data.graph_store import prepare as preparing
from tests.common.jobs.work import where
from tests.drills.processes import (
    Scene,
    Watched,
    check_same,
    check_same_store,
    descendants,
    wait_until,
    wait_until_gone,
    words_of,
)
from tests.drills.test_signals import ENDS, RESUMES
from tests.support.command_line import call

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
WORKER = b"ray::_do_on_machine"  # how Ray calls a process that does a job of ours


def has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    script = 'd=$(mktemp -d) && mount -t tmpfs tmpfs "$d" && exec chroot / true'
    words = ["unshare", "-rmn", "sh", "-c", script]
    return not subprocess.run(words, capture_output=True, check=False, timeout=20).returncode


@dataclass
class Cluster:
    """Machines that see the same files, but for those that are started with `hides`."""

    folder: Path
    hidden: Path
    address: str
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *words: str, cores: int = 1, hides: bool = False) -> None:
        script = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
        mount = ["unshare", "-rm", "sh", "-c", script, self.hidden] if hides else []
        ray = Path(sys.executable).with_name("ray")
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self.nodes[name] = subprocess.Popen(
                [*mount, ray, "start", "--block", f"--num-cpus={cores}", *words],
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        wait_until(lambda: b"Ray runtime started" in log.read_bytes(), f"see {log}")

    def kill(self, name: str) -> None:
        node = self.nodes.pop(name)
        pids = [node.pid, *descendants(node.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        node.wait()
        wait_until_gone(pids)

    def workers_of(self, name: str) -> list[int]:
        below = descendants(self.nodes[name].pid)
        return [pid for pid in below if words_of(pid).startswith(WORKER)]

    def workers(self) -> list[int]:
        return [pid for name in self.nodes for pid in self.workers_of(name)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two machines of a core each."""
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    with TemporaryDirectory(prefix="ray-") as name, pytest.MonkeyPatch.context() as patch:
        for key, value in settings.items():
            patch.setenv(key, value)
        import ray

        address = f"{ray.util.get_node_ip_address()}:{port}"
        made = Cluster(Path(name), tmp_path_factory.getbasetemp(), address)
        try:
            made.start("head", "--head", f"--port={port}", f"--temp-dir={name}/ray")
            made.start("second", f"--address={address}", "--num-gpus=1")  # or so it says
            yield made
        finally:
            for node in list(made.nodes):
                made.kill(node)


@pytest.fixture
def scene(calm: Scene, tmp_path: Path) -> Scene:
    return calm.elsewhere(tmp_path, workers=2)


def started(scene: Scene, cluster: Cluster, *words: object) -> Watched:
    return Watched(scene, scene.run("--ray", cluster.address, *words))


def wait_for_a_job(cluster: Cluster, watched: Watched) -> list[int]:
    wait_until(lambda: cluster.workers() or watched.has_ended(), "no job begins")
    return cluster.workers()


def test_both_machines_do_jobs_with_the_same_bytes(
    cluster: Cluster, calm: Scene, scene: Scene
) -> None:
    watched, busy = started(scene, cluster), set[str]()
    while not watched.has_ended():
        busy |= {name for name in cluster.nodes if cluster.workers_of(name)}
    watched.ends_as(calm)
    assert busy == cluster.nodes.keys()
    assert len([line for _, line in watched.stages if line.startswith("train ")]) == 4


def test_every_kind_of_job_is_done_there(
    cluster: Cluster, tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packing and audit as well, models of all layout collections, and graphs ranked one by one."""
    monkeypatch.setattr(workers, "SHORT_WEIGHT", 0)
    monkeypatch.setattr(preparing, "BLOCK_FILES", 1)
    place = ("run", "--data", tiny_tree, "--recipe", "smoke", "--set", "layout.together=true")
    ends = {"one": ("--workers", 1), "ray": ("--ray", cluster.address)}
    for name, words in ends.items():
        call(*place, *words, "--store", tmp_path / f"{name}-store", "--out", tmp_path / name)
    check_same(tmp_path / "ray", tmp_path / "one")
    check_same_store(tmp_path / "ray-store", tmp_path / "one-store")


def test_a_job_that_needs_a_gpu_has_it_alone(cluster: Cluster, tmp_path: Path) -> None:
    todo = [Job(name, where, threads=3, on_gpu=name in "ab") for name in "abcd"]
    on = RayCluster(cluster.address, at_most=None, folder=tmp_path, threads=3)
    done = run_jobs(todo, on)
    assert [done[name].value[1:] for name in "abcd"] == [("0", "3")] * 2 + [("", "3")] * 2


@pytest.mark.parametrize("moment_s", [0.0, 0.4, 0.8])
def test_jobs_of_killed_workers_are_done_again(
    moment_s: float, cluster: Cluster, calm: Scene, scene: Scene
) -> None:
    watched = started(scene, cluster)
    for _ in range(2):
        wait_for_a_job(cluster, watched)
        time.sleep(moment_s)
        struck = cluster.workers()
        for pid in struck:
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(struck)
    watched.ends_as(calm)
    assert any("its worker was lost (WorkerCrashedError)" in line for line in watched.lines)


@pytest.mark.skipif(not has_namespaces(), reason="needs mounts of its own: unshare -rm")
def test_a_machine_that_does_not_see_the_files_is_refused(
    cluster: Cluster, calm: Scene, scene: Scene
) -> None:
    cluster.start("third", f"--address={cluster.address}", cores=4, hides=True)
    try:
        line = started(scene, cluster, "--workers", 6).is_refused()
    finally:
        cluster.kill("third")
    machine = f"machine {socket.gethostname()} does not see {scene.out}"
    assert line.startswith(f"error: --ray {cluster.address}: {machine}; expected a folder")
    assert not list(scene.out.glob(f"{PROBE}*"))
    started(scene, cluster).ends_as(calm)


def test_a_machine_is_lost(cluster: Cluster, calm: Scene, scene: Scene) -> None:
    watched = started(scene, cluster)
    wait_for_a_job(cluster, watched)
    cluster.kill("second")
    watched.ends_as(calm)


@pytest.mark.parametrize("number", ENDS, ids=lambda n: n.name)
def test_a_local_cluster_ends_with_its_command(
    number: signal.Signals, calm: Scene, scene: Scene
) -> None:
    watched = Watched(scene, scene.run("--ray", "local"))
    assert watched.wait_for_stage({"train tile_boosting on tile:xla"})
    below = descendants(watched.process.pid)
    os.killpg(watched.process.pid, number)  # as a terminal does
    assert watched.is_refused(ENDS[number][0]) == ENDS[number][1] + RESUMES
    wait_until_gone(below)
    assert not any(line.startswith(("[", "(")) for line in watched.lines), "Ray says something"
    Watched(scene, scene.run("--ray", "local")).ends_as(calm)
