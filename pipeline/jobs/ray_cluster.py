"""Jobs on a cluster, by Ray Core: it knows machines and their resources, and says what was lost.

Machines that see this one's files work on them. To others the files that a job reads are sent, once
each, and what it makes comes back; there they lie below a folder of their own.
"""

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Self

from common.atomic import write_bytes, write_text
from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import (
    end_now,
    log,
    out_of_time,
    progress,
    seconds_left,
    time_limit,
    watched_by,
)
from common.settings import ROOT
from models.run_folder import DONE
from pipeline.jobs.here import POLL_S, STOP_S, Remarks, Throttled, outcome
from pipeline.jobs.job import Job
from pipeline.jobs.run_jobs import Done, Event, Failed, Lost

LOCAL = "local"
FOLDER = "FAST_OR_SLOW_FOLDER"  # where a machine that does not see our files keeps its own
NOT_SENT = [".git", ".venv", "tests", "docs", "data/sample", "data/raw", "data/store", "runs"]
PROBE = ".ray-probe"
APART = "apart"


class RayCluster:
    """A Ray cluster.

    Args:
        address: of its head, or "local" for one on this machine that ends with the block.
        at_most: so many jobs at once; None = as many as it has room for.

    Raises:
        UsageError: Ray is not installed, or no cluster answers there.
    """

    def __init__(self, address: str, *, at_most: int | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ModuleNotFoundError:
            raise UsageError("--ray: Ray is missing; pip install -r requirements-ray.txt") from None
        self._ray, self._address, self._at_most = ray, address, at_most
        self._running: dict[Any, Job] = {}
        self._is_apart = False  # whether some machine does not see our files
        self._held: dict[tuple[Path, int], Any] = {}  # what was sent, as objects of Ray's
        self._probes: set[Path] = set()

    def __enter__(self) -> Self:
        ray, is_local = self._ray, self._address == LOCAL
        try:
            ray.init(
                address=None if is_local else self._address,
                num_cpus=self._at_most if is_local else None,
                include_dashboard=False if is_local else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"working_dir": str(ROOT), "excludes": NOT_SENT},
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"--ray {self._address}: no cluster answers: {reason}; start one with `ray start "
                "--head`, or pass --ray local"
            ) from error
        self._post = ray.remote(num_cpus=0)(_Post).remote()
        self._begin = ray.remote(max_retries=0)(_on_a_machine)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self._running:
                self._ray.get(self._post.stop.remote())
            until = monotonic() + STOP_S
            while self._running and monotonic() < until:
                self.events()
            for reference in self._running:
                self._ray.cancel(reference, force=True)
        finally:
            self._ray.shutdown()
            for probe in self._probes:
                probe.unlink(missing_ok=True)

    def _room(self) -> tuple[int, int]:
        """Return how many GPUs and how many cores no job was given."""
        has, jobs = self._ray.cluster_resources(), self._running.values()
        gpus = int(has.get("GPU", 0)) - sum(job.on_gpu for job in jobs)
        return max(0, gpus), max(0, int(has.get("CPU", 0)) - sum(job.threads for job in jobs))

    def free(self) -> Sequence[bool]:
        gpus, cores = self._room()
        left = gpus + cores if self._at_most is None else self._at_most - len(self._running)
        return [*[True] * gpus, *[False] * cores][: max(0, left)]

    def n_gpus(self) -> int:
        return int(self._ray.cluster_resources().get("GPU", 0))

    def begin(self, job: Job, *, gpu: bool) -> None:
        job = moved(job, Path.absolute)
        options = {"num_cpus": job.threads, "num_gpus": int(job.on_gpu and gpu)}
        known = {path: path.stat().st_mtime_ns for path in _files((*job.reads, *job.makes))}
        probes = {path.parent / PROBE for path in job.makes} - self._probes
        for probe in probes:
            write_text(probe, "")
        self._probes |= probes
        contents = {path: self._object(path, at) for path, at in known.items() if self._is_apart}
        begun = self._begin.options(**options).remote(
            job, self._post, seconds_left(), known, contents if self._is_apart else None
        )
        self._running[begun] = job

    def _object(self, path: Path, changed_ns: int) -> Any:
        key = path, changed_ns
        if key not in self._held:
            self._held[key] = self._ray.put(path.read_bytes())
        return self._held[key]

    def events(self) -> Sequence[Event]:
        if not self._running:
            return ()
        ready, _ = self._ray.wait(list(self._running), timeout=POLL_S, fetch_local=True)
        with suppress(self._ray.exceptions.RayError):
            for what, *told in self._ray.get(self._post.take.remote()):
                progress(*told) if what == "progress" else log.info(*told)
        ended = [self._ended(reference) for reference in ready]
        return [event for event in ended if event]

    def is_idle(self) -> bool:
        return not self._running

    def _ended(self, reference: Any) -> Event | None:
        job = self._running.pop(reference)
        try:
            (how, *told), made = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Lost(job, f"was lost ({type(error).__name__})")
        if how == APART:
            self._is_apart = True
            self.begin(job, gpu=job.on_gpu)
            return None
        if made is not None:
            _keep(job, made)
        if how == "done":
            return Done(job, *told)
        if isinstance(told[0], OutOfTime) and not out_of_time():
            return Lost(job, "was told to stop")
        return Failed(job, told[0])


class _Post:
    """An actor that hands on what workers tell, and tells them when to stop."""

    def __init__(self) -> None:
        self._told: list[tuple[Any, ...]] = []
        self._stops = False

    def tell(self, *message: Any) -> None:
        self._told.append(message)

    def take(self) -> list[tuple[Any, ...]]:
        told, self._told = self._told, []
        return told

    def stop(self) -> None:
        self._stops = True

    def stops(self) -> bool:
        return self._stops


def _on_a_machine(
    job: Job,
    post: Any,
    seconds: float,
    known: Mapping[Path, int],
    contents: Mapping[Path, Any] | None,
) -> tuple[tuple[Any, ...], dict[Path, bytes] | None]:
    """Do a job on a machine of the cluster.

    Args:
        known: when each file that it reads, or goes on with, was changed, in ns.
        contents: of these, as objects of Ray's; None = this machine may see them itself.

    Returns:
        As `outcome`, or ("apart",) without doing anything; and the files that it made, where the
        other side does not see them.
    """
    sees = all((path.parent / PROBE).exists() for path in job.makes) and all(
        path.exists() and path.stat().st_mtime_ns == at for path, at in known.items()
    )
    if not sees and contents is None:
        return (APART,), None
    os.environ["OMP_NUM_THREADS"] = str(job.threads)
    log.setLevel(logging.DEBUG)
    remarks = Remarks(lambda line: post.tell.remote("log", line))
    log.addHandler(remarks)
    signal.signal(signal.SIGUSR1, lambda *_: end_now())
    ended = threading.Event()
    threading.Thread(target=_watch, args=(post, ended), daemon=True).start()
    tell = Throttled(lambda *told: post.tell.remote("progress", *told))
    try:
        with watched_by(tell), time_limit(seconds / 60):
            return (outcome(job), None) if sees else _done_apart(job, known, contents or {})
    finally:
        ended.set()
        log.removeHandler(remarks)


def _watch(post: Any, ended: threading.Event) -> None:
    import ray

    while not ended.wait(POLL_S):
        with suppress(ray.exceptions.RayError):
            if ray.get(post.stops.remote()):
                os.kill(os.getpid(), signal.SIGUSR1)  # the job is in the main thread
                return


def _done_apart(
    job: Job, known: Mapping[Path, int], contents: Mapping[Path, Any]
) -> tuple[tuple[Any, ...], dict[Path, bytes]]:
    import ray

    root = Path(os.environ.get(FOLDER) or Path(tempfile.gettempdir()) / "fast-or-slow")

    def there(path: Path) -> Path:
        return root / path.relative_to("/")

    def here(path: Path) -> Path:
        return Path("/") / path.relative_to(root) if path.is_relative_to(root) else path

    for path, at in known.items():
        copy = there(path)
        if not (copy.exists() and copy.stat().st_mtime_ns == at):
            write_bytes(copy, ray.get(contents[path]))
            os.utime(copy, ns=(at, at))
    own = moved(job, there)
    for path in set(_files(own.makes)) - set(map(there, known)):
        path.unlink()  # of a try whose end the other side does not know
    how, *told = outcome(own)
    if how == "failed" and isinstance(told[0], PipelineError | OutOfTime):
        told = [type(told[0])(str(told[0]).replace(f"{root}/", "/"))]
    made = {here(path): path.read_bytes() for path in _files(own.makes)}
    return (how, *moved(tuple(told), here)), made


def _keep(job: Job, made: Mapping[Path, bytes]) -> None:
    for path in set(_files(job.makes)) - set(made):
        path.unlink()
    for path in sorted(made, key=lambda path: path.name == DONE):  # the mark last
        write_bytes(path, made[path])


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in below if file.is_file() and not file.name.startswith("."))


def moved(value: Any, to: Callable[[Path], Path]) -> Any:
    """Return a value with other paths in the place of those that it holds, at any depth."""
    if isinstance(value, Path):
        return to(value)
    if isinstance(value, Mapping):
        return {moved(key, to): moved(held, to) for key, held in value.items()}
    if isinstance(value, list | tuple | frozenset):
        parts = [moved(held, to) for held in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: moved(own, to) for name, own in held.items()})
    return value
