"""Visit the configs of one graph in rounds, through a journal; c configs of g genes.

The journal has a line of JSON per visit, so that a kill loses one. Its first line says what is
measured, and where; the others are visits. A last line that was cut off is dropped.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import out_of_time, progress
from data.collect.measuring.search import Choices, Search
from data.collect.measuring.session import ConfigFailed, ProgramFailed, Session
from data.collect.measuring.timing import Visit

SEARCH_ROUND = 0
MAX_FAILED_AT_START = 10


@dataclass
class Journal:
    """Visits of one graph, in memory and in a file.

    Attributes:
        visits: (config, round) to what was measured.
        choices: config to its choice, the option of each gene.
        failed: config to the line that says why.
    """

    path: Path
    visits: dict[tuple[int, int], Visit] = field(default_factory=dict)
    choices: dict[int, list[int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, config: int, choice: Sequence[int], **found: Any) -> None:
        """Record a visit (round, and the fields of Visit) of a config, or why it `failed`."""
        line: dict[str, Any] = {"config": config, **found}
        if config not in self.choices:
            line["choice"] = list(choice)
        _append(self.path, line)
        self.take(line)

    def take(self, line: Mapping[str, Any]) -> None:
        """Take over what a line of the file says."""
        config = int(line["config"])
        if "choice" in line:
            self.choices[config] = list(line["choice"])
        if "failed" in line:
            self.failed[config] = str(line["failed"])
        else:
            visit = Visit(int(line["runtime_ns"]), int(line["n_runs"]), line["is_stopped"])
            self.visits[config, int(line["round"])] = visit

    def shortest_ns(self) -> dict[int, int]:
        """Return the shortest run in ns of each config that never failed."""
        shortest: dict[int, int] = {}
        for (config, _), visit in self.visits.items():
            if config not in self.failed:
                shortest[config] = min(visit.runtime_ns, shortest.get(config, visit.runtime_ns))
        return shortest


def open_journal(path: Path, header: Mapping[str, Any]) -> Journal:
    """Open the journal at `path`, or begin it with `header`.

    Raises:
        UsageError: the journal is of another measurement; names the first difference.
        PipelineError: it is damaged, or cannot be read or written.
    """
    try:
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    journal = Journal(path)
    if not whole:
        _append(path, header)
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            line = json.loads(text)
            if number > 1:
                journal.take(line)
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"{path}: line {number} is damaged ({error}); "
                "remove the file to measure this graph again"
            ) from error
        for key, value in header.items() if number == 1 else ():
            if line.get(key) != value:
                raise UsageError(
                    f"{path}: was begun with {key} {line.get(key)}, not {value}; "
                    "give another --out, or remove the file"
                )
    return journal


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error


class Visitor:
    """Visits configs unless the journal knows them already, and tells of the progress.

    Raises:
        OutOfTime: the time is over.
        ProgramFailed: no config has ever run.
        PipelineError: the journal cannot be written.
    """

    def __init__(self, session: Session, journal: Journal, *, what: str, total: int) -> None:
        self._session = session
        self._journal = journal
        self._what = what
        self._total = total
        progress(what, len(journal.visits), total)

    def visit(self, config: int, turn: int, choice: NDArray[np.int64]) -> float:
        """Return the runtime in ns of a config in a round; inf if it fails or has failed."""
        known = self._journal.visits.get((config, turn))
        if known is not None:
            return known.runtime_ns
        if config in self._journal.failed:
            return math.inf
        if out_of_time():
            raise OutOfTime(self._what)
        genes = choice.tolist()
        try:
            visit = self._session.visit(choice)
        except ConfigFailed as failure:
            self._journal.add(config, genes, failed=str(failure))
            n_failed = len(self._journal.failed)
            if not self._journal.visits and n_failed >= MAX_FAILED_AT_START:
                # The program is at fault, and not its configs.
                raise ProgramFailed(
                    f"{self._what}: the first {n_failed} configs all failed: {failure}"
                ) from failure
            return math.inf
        self._journal.add(config, genes, round=turn, **visit._asdict())
        progress(self._what, len(self._journal.visits), self._total)
        return visit.runtime_ns


def run_search(visitor: Visitor, search: Search) -> Choices:
    """Visit what a search asks for; return all its choices (c, g), those that failed included."""
    found: list[Choices] = []
    n_found = 0
    try:
        batch = next(search)
        while True:
            found.append(batch)
            runtimes = [
                visitor.visit(config, SEARCH_ROUND, choice)
                for config, choice in enumerate(batch, start=n_found)
            ]
            n_found += len(batch)
            batch = search.send(np.array(runtimes))
    except StopIteration:
        return np.concatenate(found)


def run_rounds(
    visitor: Visitor, choices: Choices, *, n_rounds: int, rng: np.random.Generator
) -> None:
    """Visit all configs `n_rounds` times, each time in a new random order."""
    for turn in range(1, n_rounds + 1):
        for config in rng.permutation(len(choices)).tolist():
            visitor.visit(config, turn, choices[config])


def measured(
    journal: Journal, choices: Choices, *, n_rounds: int
) -> tuple[Choices, NDArray[np.int64]]:
    """Gather the visits of those of the choices (a, g) that ran in every round.

    Returns:
        The c choices (c, g) and their shortest runs by round (r, c) in ns; row 0 is the search's.

    Raises:
        ProgramFailed: fewer than two configs ran.
    """
    kept = [config for config in range(len(choices)) if config not in journal.failed]
    if len(kept) < 2:
        reason = next(iter(journal.failed.values()))
        raise ProgramFailed(
            f"{journal.path}: {len(kept)} of {len(choices)} configs ran; expected 2 or more; "
            f"one says: {reason}"
        )
    rounds_ns = [
        [journal.visits[config, turn].runtime_ns for config in kept] for turn in range(n_rounds + 1)
    ]
    return choices[kept], np.array(rounds_ns, np.int64)
