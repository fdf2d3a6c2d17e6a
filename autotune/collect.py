"""Measure graphs and write them: search, rounds, files and manifest.

Each step may be repeated. A graph that was begun resumes from its journal, and a graph that is done
is skipped.
"""

import hashlib
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.journal import (
    Journal,
    Visitor,
    open_journal,
    run_rounds,
    run_search,
    whole_rounds,
)
from autotune.measure.program import Description
from autotune.measure.search import SEARCHES
from autotune.measure.timing import clock_for, figures, median_ns
from autotune.measure.worker import ProgramFailed, Session
from autotune.plan import JOURNALS, CollectRequest, check_family, is_done
from autotune.spaces import note_unknown_options
from common.errors import OutOfTime, UsageError
from common.files import alone_in, write_text
from common.metrics import kendall_tau
from common.progress import log, out_of_time
from data.graphs.graph import distinct_rows, hash_rows
from data.hlo.choices import Choices
from data.hlo.layouts import numbered
from data.labels import WITHHELD, Labels, read_withheld, write_withheld
from data.manifest import add_environment, edit_manifest, read_manifest
from data.npz.archive import write_npz
from data.npz.graphs import KEYS_OF
from data.tree import names_beside

# A call fails if this number of programs cannot be opened, and no other one was measured.
MAX_BROKEN_AT_START = 3
MIN_SPREAD = 1.2
# Configs of a second measurement. Its agreement with the first is the noise ceiling.
REMEASURED = 30
# Facts of a program. All other facts are of the machine.
PROGRAM_FACTS = ("function", "arguments", "values")


@dataclass(frozen=True)
class Outcome:
    """The result of one graph.

    Attributes:
        path: The file of the graph. None if the graph was left out.
        was_there: Whether earlier calls had measured the graph completely.
    """

    request: CollectRequest
    path: Path | None
    entry: dict[str, Any]
    was_there: bool = False

    def row(self) -> tuple[object, ...]:
        """Return a table row: name, numbers of configs, spread, two taus, seconds."""
        entry = self.entry
        values = (entry[key] for key in ("spread", "repeat_tau", "again_tau", "seconds"))
        counts = entry["n_configs"], entry["n_distinct"], len(entry["failed"])
        return self.request.submission_id, *counts, *values

    def line(self) -> str:
        """Return a log line with the quality of the measurement, or the reason of its absence."""
        if self.path is None:
            return f"left out: {self.request.submission_id}: {self.entry['reason']}"
        entry = self.entry
        tau = "-" if entry["again_tau"] is None else f"{entry['again_tau']:.2f}"
        return (
            f"{self.request.submission_id}  {entry['n_configs']} configs  "
            f"spread {entry['spread']:.2f}  again tau {tau}  {entry['seconds']:.0f} s"
        )


def collect_graphs(
    requests: Sequence[CollectRequest], out: Path, *, remeasure: bool = False
) -> list[Outcome]:
    """Measure graphs until the time is over. The same call resumes.

    The folder is a valid dataset at any moment. If there are several graphs, a program that cannot
    be opened is skipped.

    Args:
        remeasure: As of `collect_graph`.
    """
    outcomes: list[Outcome] = []
    n, n_failed = len(requests), 0
    with alone_in(out / JOURNALS), suppress(OutOfTime):
        for number, request in enumerate(requests, start=1):
            if out_of_time():
                break
            try:
                outcomes.append(collect_graph(request, out, remeasure=remeasure))
                line = outcomes[-1].line()
            except ProgramFailed as failure:
                n_failed += 1
                if n == 1 or (n_failed >= MAX_BROKEN_AT_START and not outcomes):
                    raise
                line = f"left out: {failure}"
            if n > 1:
                log.info(f"{number}/{n}  {line}")
    return outcomes


def collect_graph(request: CollectRequest, out: Path, *, remeasure: bool = False) -> Outcome:
    """Measure one graph and write it, unless that is done.

    A graph is left out if its slowest config takes less than 1.2 times its fastest. The manifest
    has the reason, and the journal stays. A request with more rounds resumes from the journal.

    Args:
        remeasure: Whether up to 30 distinct configs are measured again in a fresh process. The
            manifest gets Kendall's tau between the two measurements.

    Raises:
        OutOfTime: The time is over. The same call resumes.
        ProgramFailed: The program cannot be opened, or none of its configs runs.
    """
    manifest = read_manifest(out)
    check_family(manifest, request)
    was_there = is_done(manifest, request, out)
    if not was_there:
        _measure_and_write(request, out)
        manifest = read_manifest(out)
    entry = (manifest["left_out"] | manifest["graphs"])[request.submission_id]
    if was_there and request.is_users:
        _check_unchanged(request, entry)
    if request.submission_id in manifest["left_out"]:
        return Outcome(request, None, entry, was_there)
    if remeasure and entry["again_tau"] is None:
        was_there, start = False, time.monotonic()
        n_configs, tau = _measure_again(request, out)
        with edit_manifest(out) as manifest:
            entry = manifest["graphs"][request.submission_id]
            entry |= {"again_configs": n_configs, "again_tau": tau}
            entry["seconds"] += time.monotonic() - start
    return Outcome(request, request.file(out).path, entry, was_there)


def _measure_and_write(request: CollectRequest, out: Path) -> None:
    start = time.monotonic()
    with request.start_worker() as session:
        description = session.describe()
        note_unknown_options(description)
        journal = open_journal(request.journal(out), _header(request, description))
        # An old second measurement was compared with fewer rounds.
        request.journal(out, again=True).unlink(missing_ok=True)
        settings = _visit_all(request, session, journal, description)
        ran, rounds_ns = whole_rounds(journal, len(settings))
        if len(ran) < 2:
            reason = next(iter(journal.failed.values()))
            counts = f"{len(ran)} of {len(settings)} configs ran; expected 2 or more"
            raise ProgramFailed(f"{journal.path}: {counts}; one says: {reason}")
        settings = settings[ran]
        config_feat = session.spell(settings)
    module = numbered([journal.codes[config] for config in ran])
    runtime_ns = median_ns(rounds_ns)  # (c,)
    # A search may visit the default several times, (d,).
    default_ns = runtime_ns[(settings == 0).all(axis=1)]
    entry = _entry(request, description, settings, journal) | figures(rounds_ns, module)
    ratio = float(default_ns.min() / runtime_ns.min()) if len(default_ns) else None
    entry |= {"default_over_fastest": ratio, "seconds": time.monotonic() - start}
    if reason := _why_left_out(entry, math.prod(description.n_options.tolist())):
        entry["reason"] = reason
        for path in (request.file(out).path, names_beside(request.file(out).path)):
            # An earlier call with fewer rounds may have written these.
            path.unlink(missing_ok=True)
    else:
        runtimes = {"runtime_ns": runtime_ns, "default_ns": default_ns.min()}
        _write_graph(request, out, description, config_feat=config_feat, **runtimes)
    machine = {k: fact for k, fact in description.facts.items() if k not in PROGRAM_FACTS}
    with edit_manifest(out) as manifest:
        entry["environment"] = add_environment(manifest, machine)
        for part in ("graphs", "left_out"):
            manifest[part].pop(request.submission_id, None)
        manifest["left_out" if reason else "graphs"][request.submission_id] = entry


def _visit_all(
    request: CollectRequest, session: Session, journal: Journal, description: Description
) -> Choices:
    """Visit the configs of the search, then all of them in rounds. Return settings (c, g)."""
    label = f"configs of {request.name}, first measurement"
    n_visits = request.n_rounds + 1
    visitor = Visitor(session, journal, label=label, total=request.n_configs, n_visits=n_visits)
    search = SEARCHES[request.search]
    settings = run_search(
        visitor, search(description.space, request.n_configs, request.generator("search"))
    )
    run_rounds(visitor, settings, n_rounds=request.n_rounds, rng=request.generator("rounds"))
    return settings


def _why_left_out(entry: dict[str, Any], n_choices: int) -> str:
    if entry["default_over_fastest"] is None:
        reason = next((f"; {failure['reason']}" for failure in entry["failed"]), "")
        return f"the compiler's own setting failed{reason}; expected it to run"
    if entry["spread"] < MIN_SPREAD:
        tried_text = f"{entry['n_distinct']} of {n_choices} settings were tried"
        is_most = 2 * entry["n_distinct"] >= n_choices
        advice = tried_text if is_most else "more --configs and another --out may reach further"
        return (
            f"slowest over fastest config is {entry['spread']:.3f}; expected {MIN_SPREAD} or more: "
            f"its time hardly depends on the settings; {advice}"
        )
    return ""


def _write_graph(
    request: CollectRequest,
    out: Path,
    description: Description,
    *,
    config_feat: NDArray[Any],
    runtime_ns: NDArray[np.int64],
    default_ns: int,
) -> None:
    """Write the file of a graph. Runtimes of the test split go to the withheld file first.

    Args:
        config_feat: Config features (c, …), in the order of the search.
        runtime_ns: Runtime of each config, (c,).
    """
    file, is_tile = request.file(out), request.collection.kind == "tile"
    # In the order of the search, later configs are better.
    rows = request.generator("rows").permutation(len(runtime_ns))
    runtime_ns = runtime_ns[rows]
    normalizers = np.full_like(runtime_ns, default_ns)
    if not is_tile and description.names:
        write_text(names_beside(file.path), "\n".join(description.names) + "\n")
    if request.split == "test":
        labels = read_withheld(out) if (out / WITHHELD).is_file() else {}
        labels[request.submission_id] = Labels(runtime_ns, normalizers if is_tile else None)
        write_withheld(out / WITHHELD, labels)
        runtime_ns, normalizers = np.zeros_like(runtime_ns), np.ones_like(runtime_ns)
    arrays = {
        **description.arrays,
        "config_feat" if is_tile else "node_config_feat": config_feat[rows].astype(np.float32),
        "config_runtime": runtime_ns,
        "config_runtime_normalizers": normalizers,
    }
    write_npz(file.path, {key: arrays[key] for key in KEYS_OF[request.collection.kind]})


def _header(request: CollectRequest, description: Description) -> dict[str, Any]:
    options = request.options()
    # A later call may have more rounds.
    del options["rounds"]
    return options | dict(description.facts) | {"program_digest": program_digest(description)}


def _check_unchanged(request: CollectRequest, entry: dict[str, Any]) -> None:
    with request.start_worker() as session:
        function = session.describe().facts["function"]
        if entry.get("function") not in (None, function):
            raise UsageError(
                f"{request.submission_id}: the program was edited after its measurement; "
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
    request: CollectRequest, description: Description, settings: Choices, journal: Journal
) -> dict[str, Any]:
    clock = clock_for(description.facts["platform"])
    return request.options() | {
        "clock": clock.name,
        "decides": request.kind,
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


def _measure_again(request: CollectRequest, out: Path) -> tuple[int, float]:
    """Measure configs in a fresh process. Return their number and the tau of both measurements."""
    with request.start_worker() as session:
        header = _header(request, session.describe())
        first = open_journal(request.journal(out), header)
        second = open_journal(request.journal(out, again=True), header)
        before_ns, rng = first.runtimes_ns(), request.generator("again")
        # One config of each module is enough: the order of equal modules is noise.
        distinct = {first.codes[config]: config for config in sorted(before_ns)}
        configs = rng.permutation(sorted(distinct.values()))[:REMEASURED].tolist()
        settings = np.array([first.settings[config] for config in configs], np.int64)
        label = f"configs of {request.name}, second measurement"
        n_visits = request.n_rounds
        visitor = Visitor(session, second, label=label, total=len(configs), n_visits=n_visits)
        run_rounds(visitor, settings, n_rounds=n_visits, rng=rng)
    after_ns = second.runtimes_ns()
    rows = sorted(after_ns)
    before = np.array([before_ns[configs[row]] for row in rows])
    after = np.array([after_ns[row] for row in rows])
    return len(rows), kendall_tau(before, after) if rows else float("nan")
