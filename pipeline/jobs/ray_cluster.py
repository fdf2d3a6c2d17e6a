"""Jobs on a cluster, by Ray Core: it knows machines and their resources, and says what was lost.

Machines that see this one's files work on them. To others the files that a job reads are sent, once
each, and what it makes comes back; there they lie below a folder of their own.
"""

import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Self

from common.atomic import write_bytes
from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import (
    end_now,
    heard_by,
    log,
    out_of_time,
    progress,
    time_limit,
    told_by,
    watched_by,
)
from common.settings import ROOT
from models.run_folder import DONE
from pipeline.jobs.here import POLL_S, STOP_S, THREAD_POOLS, event_of, outcome, throttled
from pipeline.jobs.run_jobs import WORKER_BYTES, Event, Executor, Failed, Job, Lost

LOCAL = "local"
LOCAL_OBJECTS = 256 << 20  # bytes of memory for what is sent; more lies on the disk
FOLDER = "FAST_OR_SLOW_FOLDER"  # where a machine keeps copies, even if it sees our files
NOT_SENT = [".git", ".venv", "tests", "docs", "site", "data/sample", "data/raw", "data/store"]
PROBE = ".seen-by-ray.tmp"  # beside what a job makes: are these the same files?
WANTS = "wants"
CONNECT_S = 5.0
# Read by Ray when it is imported: nothing is reported to its makers; a local cluster serves this
# process alone; another one that does not answer is given up soon.
ANY = {"RAY_USAGE_STATS_ENABLED": "0"}
OWN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
FAR = {"RAY_gcs_server_port_wait_time_s": "1", "RAY_py_gcs_connect_timeout_s": "3"}


class RayCluster(Executor):
    """A Ray cluster.

    Args:
        address: of its head, or "local" for one on this machine that ends with the block.
        at_most: so many jobs at once; None = as many as it has cores for. A local one has so many
            times `threads` cores.
        threads: of the processor, that a job has.

    Raises:
        UsageError: Ray is not installed, or no cluster answers there.
    """

    def __init__(self, address: str, *, at_most: int | None, threads: int = 1) -> None:
        self._address, self._at_most, self._threads = address, at_most, threads
        self._folder = TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        self._head = ""
        self._running: dict[Any, tuple[Job, dict[Path, Any]]] = {}  # and what was sent for it
        self._probes = set[Path]()

    def __enter__(self) -> Self:
        check_cluster(self._address)
        import ray
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._on = ray, NodeAffinitySchedulingStrategy
        before = signal.getsignal(signal.SIGTERM)  # Ray puts its own in the place
        try:
            self._connect()
        except Exception as error:  # Ray raises anything, a bare Exception too
            raise _unusable(self._address, error) from error
        except SystemExit:
            signal.signal(signal.SIGTERM, before)
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
        here = ray.get_runtime_context()
        self._head = here.gcs_address
        beside = self._on(here.get_node_id(), soft=False)
        self._told = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": beside})
        self._do = ray.remote(max_retries=0)(_on_a_machine)
        return self

    def _connect(self) -> None:
        n = self._at_most or 1
        own = {
            "num_cpus": n * self._threads,
            "_memory": n * WORKER_BYTES,
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
            **(own if self._address == LOCAL else {}),
        )

    def __exit__(self, *error: object) -> None:
        if not self._head:
            return
        try:
            self._stop()
            until = monotonic() + STOP_S
            while self._running and monotonic() < until:
                self.events()
        finally:
            self._ray.shutdown()
            self._folder.cleanup()
            for probe in self._probes:
                probe.unlink(missing_ok=True)

    def _stop(self) -> None:
        """Let jobs leave checkpoints and end; those that Ray has not begun are dropped."""
        for reference in self._running:
            self._ray.cancel(reference)

    def _look_for_head(self) -> None:
        """Say that the head is gone: Ray's calls would wait a minute, then end the process."""
        try:
            _reach(self._head)
        except OSError as error:
            head, self._head = self._head, ""
            raise PipelineError(
                f"--ray {self._address}: the cluster's head at {head} is gone "
                f"({error.strerror or error}); start it again, and the same command goes on"
            ) from error

    def free(self) -> Sequence[bool]:
        self._look_for_head()
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        begun = [job for job, _ in self._running.values()]
        # What a job takes of a machine, which the largest one has at least.
        self._share = {
            name: min(wanted, max([1, *(has.get(name, 0) for has in nodes)]))
            for name, wanted in (("CPU", self._threads), ("memory", WORKER_BYTES))
        }
        room = sum(min(int(has.get(k, 0) // n) for k, n in self._share.items()) for has in nodes)
        gpus = sum(int(has.get("GPU", 0)) for has in nodes) - sum(job.on_gpu for job in begun)
        free = [*[True] * gpus, *[False] * (room - len(begun))]
        if self._at_most:
            free = free[: max(0, self._at_most - len(begun))]
        return free if free or begun else [False]  # it waits in the cluster for a machine

    def n_gpus(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def begin(self, job: Job, *, gpu: bool) -> None:
        job = replace(job, on_gpu=gpu and job.on_gpu)
        self._send(moved(job, lambda p: p.absolute() if isinstance(p, Path) else p), {}, None)

    def _send(self, job: Job, sent: dict[Path, Any], strategy: Any) -> None:
        probes = {path.parent / PROBE for path in job.makes}
        self._probes |= probes
        for probe in probes:
            if not probe.exists():
                write_bytes(probe, b"")
        paths = [*_files((*job.reads, *job.makes)), *probes]
        known = {path: _changed_ns(path) for path in paths}
        do = self._do.options(
            num_cpus=self._share["CPU"],
            memory=self._share["memory"],
            num_gpus=int(job.on_gpu),
            scheduling_strategy=strategy,
        )
        self._running[do.remote(job, self._told, known, sent)] = job, sent

    def events(self) -> Sequence[Event]:
        if out_of_time():
            self._stop()
        ready, _ = self._ray.wait(list(self._running), timeout=POLL_S)
        self._look_for_head()
        with suppress(self._ray.exceptions.RayError):  # the cluster has been ended with us
            for name, *told in self._told.get_nowait_batch(self._told.size()):
                with told_by(name):
                    log.info(*told) if len(told) == 1 else progress(*told)
        ended = [self._ended(reference) for reference in ready]
        return [event for event in ended if event]

    def _ended(self, reference: Any) -> Event | None:
        job, sent = self._running.pop(reference)
        try:
            (how, *told), made = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            lost = Lost(job, f"was lost ({type(error).__name__})")
            return Failed(job, OutOfTime(f"{job.name}: out of time")) if out_of_time() else lost
        if how == WANTS:
            node, paths = told
            held = {path: ref for _, own in self._running.values() for path, ref in own.items()}
            for path in paths:
                sent[path] = held.get(path) or self._ray.put(path.read_bytes())
            self._send(job, sent, self._on(node, soft=True))
            return None
        if made is not None:
            _keep(job, made)
        return event_of(job, how, *told)


def check_cluster(address: str) -> None:
    """Refuse a cluster whose head does not answer.

    Raises:
        UsageError: so, or Ray is not installed.
    """
    for name, value in (ANY | (OWN if address == LOCAL else FAR)).items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("--ray: Ray is missing; pip install -r requirements-ray.txt") from None
    if address.rpartition(":")[2].isdigit() and "/" not in address:
        try:
            _reach(address)
        except OSError as error:
            raise _unusable(address, error) from error


def _unusable(address: str, error: Exception) -> UsageError:
    return UsageError(
        f"--ray {address}: no cluster to work with: {' '.join(str(error).split())}; "
        "start one with `ray start --head`, or pass --ray local"
    )


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), CONNECT_S).close()


def _on_a_machine(
    job: Job, queue: Any, known: Mapping[Path, int], sent: Mapping[Path, Any]
) -> tuple[tuple[Any, ...], dict[Path, tuple[int, bytes]] | None]:
    """Do a job on a machine of the cluster.

    Args:
        queue: takes what it tells.
        known: when each file that it reads, or goes on with, was changed, in ns.
        sent: some of these, as objects of Ray's.

    Returns:
        As `outcome`, or ("wants", this machine, paths) without doing anything; and the files that
        the job made, with when they were changed, where the other side does not see them.
    """
    import ray

    folder = os.environ.get(FOLDER)
    sees = not folder and all(_changed_ns(path) == at for path, at in known.items())
    home = os.environ.get("HOME") or tempfile.gettempdir()  # a user may have no home
    own = Path(folder or f"{home}/.cache/fast-or-slow")
    root = "/" if sees else f"{own}/"

    def there(leaf: Any) -> Any:
        return root / leaf.relative_to("/") if isinstance(leaf, Path) else leaf

    def here(leaf: Any) -> Any:  # of a text, the paths that it names
        return type(leaf)(str(leaf).replace(root, "/"))

    def tell(*message: Any) -> None:
        queue.put((job.name, *moved(message, here)))

    lacking = [path for path, at in known.items() if _changed_ns(there(path)) != at]
    if wants := [path for path in lacking if path not in sent]:
        return (WANTS, ray.get_runtime_context().get_node_id(), wants), None
    for path in lacking:
        _write(there(path), known[path], ray.get(sent[path]))
    mine = moved(job, there)
    for path in () if sees else set(_files(mine.makes)) - set(map(there, known)):
        path.unlink()  # of a try whose end the other side does not know
    with watched_by(throttled(tell)), heard_by(tell), time_limit(None):
        signal.signal(signal.SIGINT, lambda *_: end_now())  # `cancel` comes as this
        ended = moved(outcome(mine), here)
    if sees:
        return ended, None
    made = _files(mine.makes)
    return ended, {here(path): (_changed_ns(path), path.read_bytes()) for path in made}


def _keep(job: Job, made: Mapping[Path, tuple[int, bytes]]) -> None:
    for path in sorted(made, key=lambda path: path.name == DONE):  # the mark last
        _write(path, *made[path])
    for path in set(_files(job.makes)) - set(made):
        path.unlink()


def _write(path: Path, changed_ns: int, content: bytes) -> None:
    write_bytes(path, content)
    os.utime(path, ns=(changed_ns, changed_ns))


def _changed_ns(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in below if file.is_file() and not file.name.startswith("."))


def moved(value: Any, to: Callable[[Any], Any]) -> Any:
    """Return a value with what `to` makes of the paths and texts that it holds, at any depth."""
    if isinstance(value, Path | str):
        return to(value)
    if isinstance(value, Mapping):
        return {moved(key, to): moved(held, to) for key, held in value.items()}
    if isinstance(value, list | tuple | frozenset):
        parts = [moved(held, to) for held in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Exception):
        value.args = moved(value.args, to)
    elif is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: moved(own, to) for name, own in held.items()})
    return value
