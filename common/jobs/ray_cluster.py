"""Jobs on a Ray cluster.

Ray Core assigns jobs to machines by their resources and reports lost jobs. All machines work in the
same folders. A machine that does not see them is refused.
"""

import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Self

from common.errors import OutOfTime, PipelineError, UsageError
from common.files import write_bytes
from common.jobs.local_executors import POLL_S, STOP_S, THREAD_POOLS, event_of, outcome, throttle
from common.jobs.run_jobs import WORKER_BYTES, Event, Executor, Failed, Job, Lost
from common.progress import (
    end_now,
    log,
    log_lines_to,
    out_of_time,
    progress,
    reporting_as,
    time_limit,
    watched_by,
)
from common.settings import ROOT, how_to_install

LOCAL = "local"
# Bytes of memory for messages. Larger ones are on the disk.
LOCAL_OBJECTS = 256 << 20
NOT_SENT = [".git", ".venv", "tests", "docs", "site", "data/sample", "data/raw", "data/store"]
# A probe file in the folder that jobs write to. NFS caches missing names, so each name is new.
PROBE = ".seen-by-ray."
UNSEEN = "unseen"
CONNECT_S = 5.0
# Ray reads these variables when it is imported. They turn usage reports off, limit a local cluster
# to this process, and end the wait for a cluster that does not answer.
ANY = {"RAY_USAGE_STATS_ENABLED": "0"}
OWN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
FAR = {"RAY_gcs_server_port_wait_time_s": "1", "RAY_py_gcs_connect_timeout_s": "3"}


class RayCluster(Executor):
    """A Ray cluster.

    Args:
        address: Address of the head, or "local" for a cluster that ends with the block.
        at_most: Maximum number of jobs at once; None for as many as cores and memory allow.
        folder: Folder that the jobs write to. All machines must see it.
    """

    def __init__(
        self, address: str, *, at_most: int | None, folder: Path, threads: int = 1
    ) -> None:
        self._address, self._at_most, self._threads = address, at_most, threads
        self._folder = TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        self._running: dict[Any, Job] = {}
        self._probe = folder.absolute() / f"{PROBE}{token_hex(4)}.tmp"

    def __enter__(self) -> Self:
        check_cluster(self._address)
        import ray
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        # Ray replaces the handler.
        before = signal.getsignal(signal.SIGTERM)
        try:
            self._connect()
        # Ray may raise any exception.
        except Exception as error:
            raise _unusable(self._address, error) from error
        except SystemExit:
            signal.signal(signal.SIGTERM, before)
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
        node = ray.get_runtime_context().get_node_id()
        same_node = NodeAffinitySchedulingStrategy(node, soft=False)
        self._messages = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": same_node})
        self._do = ray.remote(max_retries=0)(_do_on_machine)
        write_bytes(self._probe, b"")
        return self

    def _connect(self) -> None:
        n_jobs = self._at_most or 1
        local_settings = {
            "num_cpus": n_jobs * self._threads,
            "_memory": n_jobs * WORKER_BYTES,
            "object_store_memory": LOCAL_OBJECTS,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": self._folder.name,
        }
        paths = [str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a job without a GPU sees none
            **{name: str(self._threads) for name in THREAD_POOLS},
        }
        self._ray.init(
            self._address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"working_dir": str(ROOT), "excludes": NOT_SENT, "env_vars": environment},
            **(local_settings if self._address == LOCAL else {}),
        )

    def __exit__(self, *error: object) -> None:
        # Jobs that begin later see no probe file and do nothing.
        self._probe.unlink(missing_ok=True)
        try:
            self._stop()
            until = monotonic() + STOP_S
            while self._running and monotonic() < until:
                with suppress(PipelineError):  # another machine is refused
                    self.events()
        finally:
            self._ray.shutdown()
            self._folder.cleanup()

    def _stop(self) -> None:
        # Running jobs write checkpoints and end. Ray drops jobs that have not started.
        for reference in self._running:
            self._ray.cancel(reference)

    def free(self) -> Sequence[bool]:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        # A job requests at most the resources of the largest machine.
        self._share = {
            name: min(amount, max([1, *(has.get(name, 0) for has in nodes)]))
            for name, amount in (("CPU", self._threads), ("memory", WORKER_BYTES))
        }
        room = sum(min(int(has.get(k, 0) // n) for k, n in self._share.items()) for has in nodes)
        n_running, n_on_gpu = len(self._running), sum(job.on_gpu for job in self._running.values())
        free = [*[True] * (self.n_gpus() - n_on_gpu), *[False] * (room - n_running)]
        if self._at_most:
            free = free[: max(0, self._at_most - n_running)]
        # If no machine is free, one job waits in the cluster.
        return free if free or n_running else [False]

    def n_gpus(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def begin(self, job: Job, *, gpu: bool) -> None:
        job = replace(job, on_gpu=gpu and job.on_gpu)
        cpus, n_bytes = self._share["CPU"], self._share["memory"]
        do = self._do.options(num_cpus=cpus, memory=n_bytes, num_gpus=int(job.on_gpu))
        self._running[do.remote(job, self._messages, Path.cwd(), self._probe)] = job

    def events(self) -> Sequence[Event]:
        if out_of_time():
            self._stop()
        ready, _ = self._ray.wait(list(self._running), timeout=POLL_S)
        # Ctrl-C may have ended the cluster together with this process.
        with suppress(self._ray.exceptions.RayError):
            for name, *message in self._messages.get_nowait_batch(self._messages.size()):
                with reporting_as(name):
                    log.info(*message) if len(message) == 1 else progress(*message)
        return [self._event(reference) for reference in ready]

    def _event(self, reference: Any) -> Event:
        job = self._running.pop(reference)
        try:
            kind, *content = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if out_of_time():
                return Failed(job, OutOfTime(f"{job.name}: out of time"))
            return Lost(job, f"was lost ({type(error).__name__})")
        if kind == UNSEEN:
            raise PipelineError(
                f"--ray {self._address}: machine {content[0]} does not see {self._probe.parent}; "
                "expected a folder that all machines share; choose --data, --store and --out in it"
            )
        return event_of(job, kind, *content)


def check_cluster(address: str) -> None:
    """Raise a UsageError if Ray is not installed, or if the head of the cluster does not answer."""
    for name, value in (ANY | (OWN if address == LOCAL else FAR)).items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError(f"--ray: Ray is missing; {how_to_install('ray')}") from None
    if address.rpartition(":")[2].isdigit() and "/" not in address:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
        except OSError as error:
            raise _unusable(address, error) from error


def _unusable(address: str, error: Exception) -> UsageError:
    return UsageError(
        f"--ray {address}: no cluster to work with: {' '.join(str(error).split())}; "
        "start one with `ray start --head`, or pass --ray local"
    )


def _do_on_machine(job: Job, queue: Any, cwd: Path, probe: Path) -> tuple[Any, ...]:
    """Return the outcome of a job; ("unseen", machine) if this machine sees no probe file."""
    if not os.access(probe, os.F_OK):
        return UNSEEN, socket.gethostname()
    # If the folder is missing on this machine, all paths of the job are absolute.
    with suppress(OSError):
        os.chdir(cwd)

    def send(*message: Any) -> None:
        queue.put((job.name, *message))

    with watched_by(throttle(send)), log_lines_to(send), time_limit(None):
        # Ray's `cancel` sends SIGINT.
        signal.signal(signal.SIGINT, lambda *_: end_now())
        return outcome(job)
