"""Measure graphs and write them: search, rounds, files and manifest.

Each step may be repeated. A graph that was begun resumes from its journal, and a graph that is done
is skipped.
"""

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.job import JOURNALS, Job, check_family, is_done
from autotune.measure.program import Description
from autotune.measure.search import (
    SEARCHES,
    Journal,
    Visitor,
    measured,
    open_journal,
    run_rounds,
    run_search,
)
from autotune.measure.timing import clock_for, figures
from autotune.measure.worker import ProgramFailed, Session, opening_s
from common.errors import OutOfTime, UsageError
from common.files import alone_in, write_text
from common.metrics import kendall_tau
from common.progress import log, out_of_time
from common.reproducibility import generator
from data.graphs.graph import distinct_rows, hash_rows
from data.hlo.choices import Choices
from data.hlo.layouts import numbered
from data.labels import WITHHELD, Labels, read_withheld, write_withheld
from data.manifest import add_environment, edit_manifest, read_manifest
from data.npz.archive import write_npz
from data.npz.graphs import KEYS_OF
from data.tree import names_beside

# A call fails if this number of programs cannot be opened, and no other one was measured.
MAX_FAILED_AT_START = 3
MIN_SPREAD = 1.2
# Configs of a second measurement. Its agreement with the first is the noise ceiling.
REMEASURED = 30


@dataclass(frozen=True)
class Outcome:
    """The result of one graph.

    Attributes:
        path: The file of the graph. None if the graph was left out.
        was_there: Whether earlier calls had measured the graph completely.
    """

    job: Job
    path: Path | None
    entry: dict[str, Any]
    was_there: bool = False

    def row(self) -> tuple[object, ...]:
        """Return a table row: name, numbers of configs, spread, two taus, seconds."""
        entry = self.entry
        values = (entry[key] for key in ("spread", "repeat_tau", "again_tau", "seconds"))
        counts = entry["n_configs"], entry["n_distinct"], len(entry["failed"])
        return self.job.submission_id, *counts, *values

    def line(self) -> str:
        """Return a log line with the quality of the measurement, or the reason of its absence."""
        if self.path is None:
            return f"left out: {self.job.submission_id}: {self.entry['reason']}"
        entry = self.entry
        tau = "-" if entry["again_tau"] is None else f"{entry['again_tau']:.2f}"
        return (
            f"{self.job.submission_id}  {entry['n_configs']} configs  "
            f"spread {entry['spread']:.2f}  again tau {tau}  {entry['seconds']:.0f} s"
        )


def collect_jobs(jobs: Sequence[Job], out: Path, *, remeasure: bool = False) -> list[Outcome]:
    """Measure graphs until the time is over. The same call resumes.

    The folder is a valid dataset at any moment. If there are several graphs, a program that cannot
    be opened is skipped.

    Args:
        remeasure: As of `collect_graph`.

    Returns:
        The graphs that are done, in the order of `jobs`.

    Raises:
        UsageError: A graph was measured with other options, or another process writes to `out`.
    """
    outcomes: list[Outcome] = []
    n_failed = 0
    with alone_in(out / JOURNALS):
        for number, job in enumerate(jobs, start=1):
            if out_of_time():
                break
            try:
                outcome = collect_graph(job, out, remeasure=remeasure)
                outcomes.append(outcome)
            except OutOfTime:
                break
            except ProgramFailed as failure:
                n_failed += 1
                if len(jobs) == 1 or (n_failed >= MAX_FAILED_AT_START and not outcomes):
                    raise
                log.info(f"{number}/{len(jobs)}  left out: {failure}")
                continue
            if len(jobs) > 1:
                log.info(f"{number}/{len(jobs)}  {outcome.line()}")
    return outcomes


def collect_graph(job: Job, out: Path, *, remeasure: bool = False) -> Outcome:
    """Measure one graph and write it, unless that is done.

    A graph is left out if its slowest config takes less than 1.2 times its fastest. The manifest
    has the reason, and the journal stays. A job with more rounds resumes from the journal.

    Args:
        remeasure: Whether up to 30 distinct configs are measured again in a fresh process. The
            manifest gets Kendall's tau between the two measurements.

    Raises:
        OutOfTime: The time is over. The same call resumes.
        UsageError: The graph was measured with other options, or with more rounds.
        ProgramFailed: The program cannot be opened, or none of its configs runs.
    """
    manifest = read_manifest(out)
    check_family(manifest, job)
    was_there = is_done(manifest, job, out)
    if not was_there:
        _measure_and_write(job, out)
        manifest = read_manifest(out)
    known = manifest["left_out"] | manifest["graphs"]
    entry = known[job.submission_id]
    if was_there and job.is_own:
        _check_unchanged(job, entry)
    if job.submission_id in manifest["left_out"]:
        return Outcome(job, None, entry, was_there)
    if remeasure and entry["again_tau"] is None:
        was_there, start = False, time.monotonic()
        n_configs, tau = _measure_again(job, out)
        with edit_manifest(out) as manifest:
            entry = manifest["graphs"][job.submission_id]
            entry |= {"again_configs": n_configs, "again_tau": tau}
            entry["seconds"] += time.monotonic() - start
    return Outcome(job, job.file(out).path, entry, was_there)


def _measure_and_write(job: Job, out: Path) -> None:
    start = time.monotonic()
    with Session(job.open_measurable, timeout_s=job.timeout_s, label=job.program) as session:
        description = session.describe(timeout_s=opening_s())
        journal = open_journal(job.journal(out), _header(job, description))
        # An old second measurement was compared with fewer rounds.
        job.journal(out, again=True).unlink(missing_ok=True)
        label = f"configs of {job.program}, first measurement"
        n_visits = job.n_rounds + 1
        visitor = Visitor(session, journal, label=label, total=job.n_configs, n_visits=n_visits)
        rng = generator(job.seed, "search", job.search, job.program)
        search = SEARCHES[job.search](description.space, job.n_configs, rng)
        settings = run_search(visitor, search)
        order = generator(job.seed, "rounds", job.search, job.program)
        run_rounds(visitor, settings, n_rounds=job.n_rounds, rng=order)
        kept, rounds_ns = measured(journal, len(settings), n_rounds=job.n_rounds)
        settings, module = settings[kept], numbered([journal.codes[config] for config in kept])
        config_feat = session.spell(settings)
    runtime_ns = rounds_ns.min(axis=0)  # (c,)
    # A search may visit the default several times, (d,).
    default_ns = runtime_ns[(settings == 0).all(axis=1)]
    entry = _entry(job, description, settings, journal) | figures(rounds_ns, module)
    entry["default_over_fastest"] = (
        float(default_ns.min() / runtime_ns.min()) if len(default_ns) else None
    )
    entry["seconds"] = time.monotonic() - start
    with edit_manifest(out) as manifest:
        of_program = ("function", "arguments", "values")
        machine = {k: fact for k, fact in description.facts.items() if k not in of_program}
        entry["environment"] = add_environment(manifest, machine)
        manifest["left_out"].pop(job.submission_id, None)
        n_choices = math.prod(description.n_options.tolist())
        reason = _why_left_out(entry, n_choices)
        if reason:
            manifest["graphs"].pop(job.submission_id, None)
            for path in (job.file(out).path, names_beside(job.file(out).path)):
                # An earlier call with fewer rounds may have written these.
                path.unlink(missing_ok=True)
            manifest["left_out"][job.submission_id] = entry | {"reason": reason}
            return
        # In the order of the search, later configs are better.
        rows = generator(job.seed, "rows", job.search, job.program).permutation(len(settings))
        arrays = {**description.arrays, "config_runtime": runtime_ns[rows]}
        arrays["config_runtime_normalizers"] = np.full_like(runtime_ns, default_ns.min())
        key = "config_feat" if job.collection.kind == "tile" else "node_config_feat"
        arrays[key] = config_feat[rows].astype(np.float32)
        if job.collection.kind == "layout" and description.names:
            write_text(names_beside(job.file(out).path), "\n".join(description.names) + "\n")
        _write_graph(out, job, arrays)
        manifest["graphs"][job.submission_id] = entry


def _why_left_out(entry: dict[str, Any], n_choices: int) -> str:
    if entry["default_over_fastest"] is None:
        reason = next((f"; {failed['reason']}" for failed in entry["failed"]), "")
        return f"the compiler's own setting failed{reason}; expected it to run"
    if entry["spread"] < MIN_SPREAD:
        tried = f"{entry['n_distinct']} of {n_choices} settings were tried"
        is_most = 2 * entry["n_distinct"] >= n_choices
        more = tried if is_most else "more --configs may reach further"
        return (
            f"slowest over fastest config is {entry['spread']:.3f}; expected {MIN_SPREAD} or more: "
            f"its time hardly depends on the settings; {more}"
        )
    return ""


def _write_graph(out: Path, job: Job, arrays: dict[str, NDArray[Any]]) -> None:
    """Write the file of a graph. Runtimes of the test split go to the withheld file first."""
    is_tile = job.collection.kind == "tile"
    if job.split == "test":
        labels = read_withheld(out) if (out / WITHHELD).is_file() else {}
        normalizers = arrays["config_runtime_normalizers"] if is_tile else None
        labels[job.submission_id] = Labels(arrays["config_runtime"], normalizers)
        write_withheld(out / WITHHELD, labels)
        hidden = np.zeros_like(arrays["config_runtime"])
        arrays = arrays | {"config_runtime": hidden, "config_runtime_normalizers": hidden + 1}
    keys = KEYS_OF[job.collection.kind]
    write_npz(job.file(out).path, {key: arrays[key] for key in keys})


def _header(job: Job, description: Description) -> dict[str, Any]:
    request = job.request()
    # A later call may have more rounds.
    del request["rounds"]
    return request | dict(description.facts) | {"program_digest": program_digest(description)}


def _check_unchanged(job: Job, entry: dict[str, Any]) -> None:
    with Session(job.open_measurable, timeout_s=job.timeout_s, label=job.program) as session:
        function = session.describe().facts["function"]
        if entry.get("function") not in (None, function):
            raise UsageError(
                f"{job.submission_id}: the program was edited after its measurement; "
                "give another --out"
            )


def program_digest(description: Description) -> str:
    """Return a digest of a program and its knobs, 16 hex digits."""
    digest = hashlib.blake2b(description.n_options.tobytes(), digest_size=8)
    for name, values in sorted(description.arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _entry(
    job: Job, description: Description, settings: Choices, journal: Journal
) -> dict[str, Any]:
    clock = clock_for(description.facts["platform"])
    stopped = [visit.is_stopped for visit in journal.visits.values()]
    return job.request() | {
        "clock": clock.name,
        "stopped_visits": sum(stopped) / len(stopped),
        "decides": job.decides,
        "n_nodes": len(description.arrays["node_opcode"]),
        "n_genes": len(description.n_options),
        "n_configs": len(settings),
        "n_distinct": len(distinct_rows(hash_rows(settings))[0]),
        "program_digest": program_digest(description),
        "function": description.facts["function"],
        "failed": [{"config": c, "reason": r} for c, r in sorted(journal.failed.items())],
        "again_configs": 0,
        "again_tau": None,
    }


def _measure_again(job: Job, out: Path) -> tuple[int, float]:
    with Session(job.open_measurable, timeout_s=job.timeout_s, label=job.program) as session:
        header = _header(job, session.describe())
        first = open_journal(job.journal(out), header)
        second = open_journal(job.journal(out, again=True), header)
        known = first.shortest_ns()
        rng = generator(job.seed, "again", job.search, job.program)
        # One config of each module is enough: the order of equal modules is noise.
        distinct = {first.codes[config]: config for config in sorted(known)}
        picked = rng.permutation(sorted(distinct.values()))[:REMEASURED].tolist()
        settings = np.array([first.settings[config] for config in picked], np.int64)
        label = f"configs of {job.program}, second measurement"
        visitor = Visitor(session, second, label=label, total=len(picked), n_visits=job.n_rounds)
        run_rounds(visitor, settings, n_rounds=job.n_rounds, rng=rng)
    repeated = second.shortest_ns()
    both = sorted(repeated)
    before = np.array([known[picked[row]] for row in both])
    after = np.array([repeated[row] for row in both])
    return len(both), kendall_tau(before, after) if both else float("nan")
