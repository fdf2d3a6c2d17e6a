"""Measure graphs and write them: search, rounds, files, manifest; every step may be repeated.

A graph that was begun goes on where its journal ends; one that is done is passed over.
"""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from common.metrics import kendall_tau
from common.progress import out_of_time
from common.seeds import generator
from data.collect.job import Job
from data.collect.manifest import (
    add_environment,
    check_family,
    edit_manifest,
    is_done,
    read_manifest,
)
from data.collect.measuring.journal import open_journal
from data.collect.measuring.rounds import (
    IsOver,
    Measured,
    Visitor,
    measured,
    run_rounds,
    run_search,
)
from data.collect.measuring.search import Choices, Space, start_search
from data.collect.measuring.session import Session
from data.collect.measuring.timing import Figures, clock_for, figures
from data.collect.measuring.worker import Description
from data.graphs.configs import distinct_rows, hash_rows
from data.npz.write import write_npz
from data.withheld import WITHHELD, read_withheld, read_withheld_normalizers, write_withheld

MIN_SPREAD = 1.2
REMEASURED = 30  # a second measurement of that many configs tells how well the first repeats


@dataclass(frozen=True)
class Outcome:
    """What became of one graph: its file, or None and the reason why it was left out.

    `was_there` tells that an earlier call had measured it.
    """

    job: Job
    path: Path | None
    entry: dict[str, Any]
    was_there: bool = False

    def row(self) -> tuple[object, ...]:
        """Return name, configs, failed ones, spread, the two taus and seconds, for a table."""
        keys = ("spread", "repeat_tau", "again_tau", "seconds")
        values = (self.entry[key] for key in keys)
        return self.job.submission_id, self.entry["n_configs"], len(self.entry["failed"]), *values

    def line(self) -> str:
        """Return one line for a log: what it is, and how well it was measured or why not."""
        if self.path is None:
            return f"left out: {self.job.submission_id}: {self.entry['reason']}"
        entry = self.entry
        tau = "-" if entry["again_tau"] is None else f"{entry['again_tau']:.2f}"
        return (
            f"{self.job.submission_id}  {entry['n_configs']} configs  "
            f"spread {entry['spread']:.2f}  again tau {tau}  {entry['seconds']:.0f} s"
        )


def collect_graph(
    job: Job,
    out: Path,
    *,
    remeasure: bool = False,
    is_over: IsOver = out_of_time,
    core: int | None = None,
) -> Outcome:
    """Measure one graph and write it below `out`, unless that is done.

    A graph whose slowest config takes less than 1.2 times its fastest is left out and named in
    the manifest. Its journal stays, for a second measurement.

    Args:
        remeasure: measure up to 30 of its distinct configs once more, in a process of their own,
            and note the Kendall tau between the two measurements.
        is_over: asked before each visit, so that a collection can be stopped.
        core: to measure on; None for the idlest.

    Raises:
        OutOfTime: `is_over` said so; the same call goes on.
        UsageError: it is there already, measured with other options.
        ProgramFailed: the program cannot be opened, or none of its configs runs.
        PipelineError: the disk is full, or a file of `out` is damaged.
    """
    manifest = read_manifest(out)
    check_family(manifest, job)
    was_there = is_done(manifest, job)
    if not was_there:
        _measure_and_write(job, out, is_over, core)
    elif ":" in getattr(job.source, "program", ""):
        _check_unchanged(job, manifest)
    manifest = read_manifest(out)
    entry = manifest["graphs"].get(job.submission_id)
    if entry is None:
        return Outcome(job, None, manifest["left_out"][job.submission_id], was_there)
    if remeasure and entry["again_tau"] is None:
        n_configs, tau = _measure_again(job, out, is_over, core)
        with edit_manifest(out) as manifest:
            entry = manifest["graphs"][job.submission_id]
            entry |= {"again_configs": n_configs, "again_tau": tau}
    return Outcome(job, job.file(out).path, entry, was_there)


def _measure_and_write(job: Job, out: Path, is_over: IsOver, core: int | None) -> None:
    """Measure one graph, write its file and then its entry in the manifest."""
    start = time.monotonic()
    with Session(job.source, timeout_s=job.timeout_s, core=core) as session:
        description = session.describe()
        journal = open_journal(job.journal(out), _header(job, description))
        journal.forget_timeouts(below_s=job.timeout_s)
        space = Space(description.n_options, description.groups)
        total = job.n_configs * (job.n_rounds + 1)
        visitor = Visitor(session, journal, what=job.program, total=total, is_over=is_over)
        rng = generator(job.seed, "search", job.search, job.program)
        choices = run_search(visitor, start_search(job.search, space, job.n_configs, rng))
        order = generator(job.seed, "rounds", job.search, job.program)
        run_rounds(visitor, choices, n_rounds=job.n_rounds, rng=order)
        result = measured(journal, choices, n_rounds=job.n_rounds)
        config_feat = session.spell(result.choices)
    found = figures(result.rounds_ns)
    entry = _entry(job, description, result, found) | {"seconds": time.monotonic() - start}
    is_default = _is_default(result.choices)
    with edit_manifest(out) as manifest:
        entry["environment"] = add_environment(manifest, description.facts)
        if problem := _why_left_out(found, default_ran=bool(is_default.any())):
            manifest["left_out"][job.submission_id] = entry | {"reason": problem}
            return
        # The order of the search would tell good configs from bad ones.
        rows = generator(job.seed, "rows", job.search, job.program).permutation(len(is_default))
        write_graph(
            out,
            job,
            description,
            config_feat[rows],
            runtime_ns=found.runtime_ns[rows],
            default_ns=int(found.runtime_ns[is_default].min()),
        )
        manifest["graphs"][job.submission_id] = entry


def write_graph(
    out: Path,
    job: Job,
    description: Description,
    config_feat: NDArray[Any],
    *,
    runtime_ns: NDArray[np.int64],
    default_ns: int,
) -> None:
    """Write one graph; in the test split its runtimes go to the withheld file first.

    Args:
        description: holds what no config changes.
        config_feat: (c, 24) of tiles or (c, k, 18) of layouts.
        runtime_ns: (c,) int64.
        default_ns: runtime of the compiler's own choice, the normalizer of tiles.

    Raises:
        PipelineError: the file cannot be written.
    """
    is_tile = job.collection.kind == "tile"
    normalizers = np.full_like(runtime_ns, default_ns)
    if job.split == "test":
        _withhold(out, job.submission_id, runtime_ns, normalizers if is_tile else None)
        runtime_ns, normalizers = np.zeros_like(runtime_ns), np.ones_like(normalizers)
    arrays = description.arrays
    members = {key: arrays[key] for key in ("node_feat", "node_opcode", "edge_index")}
    if is_tile:
        members["config_feat"] = config_feat.astype(np.float32)
        members["config_runtime"] = runtime_ns
        members["config_runtime_normalizers"] = normalizers
    else:
        members["node_config_feat"] = config_feat.astype(np.float32)
        members["node_config_ids"] = arrays["node_config_ids"]
        members["config_runtime"] = runtime_ns
        members["node_splits"] = arrays["node_splits"]
    write_npz(job.file(out).path, members)


def _withhold(
    out: Path,
    submission_id: str,
    runtime_ns: NDArray[np.int64],
    normalizers: NDArray[np.int64] | None,
) -> None:
    """Add one graph's runtimes (c,) to the withheld file of `out`."""
    path = out / WITHHELD
    runtimes = read_withheld(out) if path.is_file() else {}
    known_normalizers = read_withheld_normalizers(out) if path.is_file() else {}
    runtimes[submission_id] = runtime_ns
    if normalizers is not None:
        known_normalizers[submission_id] = normalizers
    write_withheld(path, runtimes, normalizers=known_normalizers)


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
    program = {"n_genes": n_genes, "program_digest": _digest(description)}
    return job.request() | program | dict(description.facts)


def _check_unchanged(job: Job, manifest: dict[str, dict[str, Any]]) -> None:
    """Refuse a user's own program that was edited since it was measured."""
    known = {**manifest["left_out"], **manifest["graphs"]}[job.submission_id]
    with Session(job.source, timeout_s=job.timeout_s) as session:
        if _digest(session.describe()) != known.get("program_digest"):
            raise UsageError(
                f"{job.submission_id}: the program is another one than was measured; "
                "give another --out"
            )


def _digest(description: Description) -> str:
    """Digest what is measured, so that an edited program is not taken for the one before."""
    digest = hashlib.blake2b(description.n_options.tobytes(), digest_size=8)
    for name, values in sorted(description.arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


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
        "program_digest": _digest(description),
        "failed": [{"config": c, "reason": r} for c, r in sorted(result.failed.items())],
        "spread": found.spread,
        "default_over_fastest": float(default_ns / found.runtime_ns.min()),
        "repeat_tau": found.repeat_tau,
        "relative_noise": found.relative_noise,
        "again_configs": 0,
        "again_tau": None,
    }


def _measure_again(job: Job, out: Path, is_over: IsOver, core: int | None) -> tuple[int, float]:
    """Measure some configs a second time; return how many, and tau with the first runtimes."""
    with Session(job.source, timeout_s=job.timeout_s, core=core) as session:
        header = _header(job, session.describe())
        first = open_journal(job.journal(out), header)
        second = open_journal(job.journal(out, again=True), header)
        known = first.shortest_ns()
        rng = generator(job.seed, "again", job.search, job.program)
        # Of equal configs one is enough: their order is noise alone.
        distinct = {tuple(first.choices[config]): config for config in sorted(known)}
        picked = rng.permutation(sorted(distinct.values()))[:REMEASURED].tolist()
        choices = np.array([first.choices[config] for config in picked], np.int64)
        total = len(picked) * job.n_rounds
        what = f"{job.program} again"
        visitor = Visitor(session, second, what=what, total=total, is_over=is_over)
        run_rounds(visitor, choices, n_rounds=job.n_rounds, rng=rng)
    repeated = second.shortest_ns()
    both = sorted(repeated)
    before = np.array([known[picked[row]] for row in both])
    after = np.array([repeated[row] for row in both])
    return len(both), kendall_tau(before, after) if both else float("nan")
