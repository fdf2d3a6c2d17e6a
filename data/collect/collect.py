"""Measure graphs and write them: search, rounds, files, manifest; every step may be repeated.

A graph that was begun goes on where its journal ends; one that is done is passed over.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.collect.job import Job
from data.collect.journal import Journal, open_journal
from data.collect.manifest import add_environment, is_done, read_manifest, write_manifest
from data.collect.measure import Figures, clock_for, figures
from data.collect.rounds import (
    Measured,
    OutOfTime,
    Progress,
    Visitor,
    measured,
    run_rounds,
    run_search,
)
from data.collect.search import Choices, Space, start_search
from data.collect.session import ProgramFailed, Session
from data.collect.worker import Description
from data.collect.write import write_graph
from data.configs import distinct_rows, hash_rows
from data.synthetic.measure import generator
from models.metrics import kendall_tau

MIN_SPREAD = 1.2
MAX_FAILED_AT_START = 3  # so many programs that cannot be opened, and no other, are enough
AGAIN_CONFIGS = 30  # a second measurement of that many tells how well the first repeats


@dataclass(frozen=True)
class Outcome:
    """What became of one graph: its file, or None and the reason why it was left out."""

    job: Job
    path: Path | None
    entry: dict[str, Any]

    def row(self) -> tuple[object, ...]:
        """Return name, configs, failed ones, spread, the two taus and seconds, for a table."""
        keys = ("spread", "repeat_tau", "again_tau", "seconds")
        values = (self.entry[key] for key in keys)
        return self.job.program, self.entry["n_configs"], len(self.entry["failed"]), *values


def collect_graph(
    job: Job,
    out: Path,
    *,
    again: bool = False,
    deadline: float | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Outcome:
    """Measure one graph and write it below `out`, unless that is done.

    A graph whose slowest config takes less than 1.2 times its fastest is left out and named in
    the manifest. Its journal stays, for a second measurement.

    Args:
        again: measure up to 30 of its distinct configs once more, in a process of their own, and
            note the Kendall tau between the two measurements.
        deadline: `time.monotonic()` after which nothing new is begun.

    Raises:
        OutOfTime: the deadline has passed; the same call goes on.
        UsageError: it is there already, measured with other options.
        ProgramFailed: the program cannot be opened, or none of its configs runs.
        PipelineError: the disk is full, or a file of `out` is damaged.
    """
    manifest = read_manifest(out)
    if not is_done(manifest, job):
        _measure_and_write(job, out, manifest, deadline, progress)
    entry = manifest["graphs"].get(job.submission_id)
    if entry is None:
        return Outcome(job, None, manifest["left_out"][job.submission_id])
    if again and entry["again_tau"] is None:
        entry["again_configs"], entry["again_tau"] = _measure_again(job, out, deadline, progress)
        write_manifest(out, manifest)
    return Outcome(job, job.file(out).path, entry)


def _measure_and_write(
    job: Job,
    out: Path,
    manifest: dict[str, dict[str, Any]],
    deadline: float | None,
    progress: Progress,
) -> None:
    """Measure one graph, write its file and then its entry in the manifest."""
    start = time.monotonic()
    with Session(job.source, timeout_s=job.timeout_s) as session:
        description = session.describe()
        journal = open_journal(job.journal(out), _header(job, description))
        space = Space(description.n_options, description.groups)
        visitor = Visitor(
            session,
            journal,
            what=job.program,
            total=job.n_configs * (job.n_rounds + 1),
            deadline=deadline,
            progress=progress,
        )
        rng = generator(job.seed, "search", job.search, job.program)
        choices = run_search(visitor, start_search(job.search, space, job.n_configs, rng))
        order = generator(job.seed, "rounds", job.search, job.program)
        run_rounds(visitor, choices, n_rounds=job.n_rounds, rng=order)
        result = measured(journal, choices, n_rounds=job.n_rounds)
        config_feat = session.spell(result.choices)
    seconds = time.monotonic() - start
    _write(
        job,
        out,
        manifest,
        description=description,
        result=result,
        config_feat=config_feat,
        seconds=seconds,
    )


def _write(
    job: Job,
    out: Path,
    manifest: dict[str, dict[str, Any]],
    *,
    description: Description,
    result: Measured,
    config_feat: NDArray[Any],
    seconds: float,
) -> None:
    """Write a measured graph, or leave it out; the manifest comes last."""
    found = figures(result.rounds_ns)
    is_default = _is_default(result.choices)
    entry = _entry(job, description, result, found)
    entry["environment"] = add_environment(manifest, description.facts)
    entry["seconds"] = seconds
    if problem := _why_left_out(found, default_ran=bool(is_default.any())):
        manifest["left_out"][job.submission_id] = entry | {"reason": problem}
    else:
        # The order of the search would tell good configs from bad ones.
        rows = generator(job.seed, "rows", job.search, job.program).permutation(len(is_default))
        write_graph(
            out,
            job,
            arrays=description.arrays,
            config_feat=config_feat[rows],
            runtime_ns=found.runtime_ns[rows],
            default_ns=int(found.runtime_ns[is_default].min()),
        )
        manifest["graphs"][job.submission_id] = entry
    write_manifest(out, manifest)


def _is_default(choices: Choices) -> NDArray[np.bool_]:
    """Tell which choices (c, g) leave everything to the compiler; (c,)."""
    return np.asarray((choices == 0).all(axis=1))


def _why_left_out(found: Figures, *, default_ran: bool) -> str:
    """Return why a graph is not written, or nothing."""
    if not default_ran:
        return "the compiler's own choice failed; expected it to run"
    if found.spread < MIN_SPREAD:
        return f"slowest over fastest config is {found.spread:.3f}; expected {MIN_SPREAD} or more"
    return ""


def _header(job: Job, description: Description) -> dict[str, Any]:
    """Return the first line of the journal: what is measured, and where."""
    n_genes = len(description.n_options)
    return job.request() | {"n_genes": n_genes} | dict(description.facts)


def _entry(job: Job, description: Description, result: Measured, found: Figures) -> dict[str, Any]:
    """Return what the manifest says of a graph."""
    is_default = _is_default(result.choices)
    default_ns = found.runtime_ns[is_default].min() if is_default.any() else np.nan
    return job.request() | {
        "clock": clock_for(description.facts.get("platform", "cpu")).name,
        "n_nodes": len(description.arrays["node_opcode"]),
        "n_genes": len(description.n_options),
        "n_configs": len(result.choices),
        "n_distinct": len(distinct_rows(hash_rows(result.choices))[0]),
        "failed": [{"config": c, "reason": r} for c, r in sorted(result.failed.items())],
        "spread": found.spread,
        "default_over_fastest": float(default_ns / found.runtime_ns.min()),
        "repeat_tau": found.repeat_tau,
        "relative_noise": found.relative_noise,
        "again_configs": 0,
        "again_tau": None,
    }


def _measure_again(
    job: Job, out: Path, deadline: float | None, progress: Progress
) -> tuple[int, float]:
    """Measure some configs a second time; return how many, and tau with the first runtimes."""
    with Session(job.source, timeout_s=job.timeout_s) as session:
        description = session.describe()
        header = _header(job, description)
        first = open_journal(job.journal(out), header)
        second = open_journal(job.journal(out, again=True), header)
        known = _runtimes(first)
        rng = generator(job.seed, "again", job.search, job.program)
        # Of equal configs one is enough: their order is noise alone.
        distinct = {tuple(first.choices[config]): config for config in sorted(known)}
        picked = rng.permutation(sorted(distinct.values()))[:AGAIN_CONFIGS]
        choices = np.array([first.choices[config] for config in picked.tolist()], np.int64)
        visitor = Visitor(
            session,
            second,
            what=f"{job.program} again",
            total=len(picked) * job.n_rounds,
            deadline=deadline,
            progress=progress,
        )
        run_rounds(visitor, choices, n_rounds=job.n_rounds, rng=rng)
    repeated = _runtimes(second)
    both = sorted(repeated)
    before = np.array([known[int(picked[row])] for row in both])
    after = np.array([repeated[row] for row in both])
    return len(both), kendall_tau(before, after) if both else float("nan")


def _runtimes(journal: Journal) -> dict[int, int]:
    """Return the shortest run in ns of each config that never failed."""
    shortest: dict[int, int] = {}
    for (config, _), visit in journal.visits.items():
        if config not in journal.failed:
            shortest[config] = min(visit.runtime_ns, shortest.get(config, visit.runtime_ns))
    return shortest


def collect_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    again: bool = False,
    budget_s: float | None = None,
    progress: Progress = lambda what, done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Measure graphs one after the other until the time is over; return those that are done.

    What is done at any moment is a valid tree; the same call goes on. Of several graphs, one that
    cannot be opened is named by `say` and passed over.

    Raises:
        UsageError: a graph is there already, measured with other options.
        PipelineError: no graph can be opened, or the disk is full.
    """
    deadline = None if budget_s is None else time.monotonic() + budget_s
    outcomes: list[Outcome] = []
    n_failed = 0
    for job in jobs:
        try:
            outcome = collect_graph(job, out, again=again, deadline=deadline, progress=progress)
        except OutOfTime:
            break
        except ProgramFailed as failure:
            n_failed += 1
            if len(jobs) == 1 or (n_failed >= MAX_FAILED_AT_START and not outcomes):
                raise
            say(f"left out: {failure}")
            continue
        outcomes.append(outcome)
    return outcomes
