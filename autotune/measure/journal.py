"""Visits of configs in rounds, and the journal that has a line for each; c configs of g knobs.

Each visit adds a line of JSON, so a kill loses one visit at most. The first line describes the
measurement. An incomplete last line is dropped.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.search import Search
from autotune.measure.timing import Visit
from autotune.measure.worker import ConfigFailed, ProgramFailed, Session
from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import out_of_time, progress
from data.hlo.choices import Choices

SEARCH_ROUND = 0
MAX_FAILED_AT_START = 10
# Keys of a journal's header that differ after an edit of the program.
EDITED = ("program_digest", "function")


@dataclass
class Journal:
    """Visits of one graph, in memory and in a file."""

    path: Path
    visits: dict[tuple[int, int], Visit] = field(default_factory=dict)
    settings: dict[int, list[int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    codes: dict[int, str] = field(default_factory=dict)

    def add(self, config: int, setting: Sequence[int], **result: Any) -> None:
        """Record a visit or a failure of a config with a setting (g,).

        Args:
            **result: Either `round` and the fields of `Visit`, or the reason as `failed`.
        """
        line: dict[str, Any] = {"config": config, **result}
        if config not in self.settings:
            line["choice"] = list(setting)
        _append(self.path, line)
        self.take(line)

    def take(self, line: Mapping[str, Any]) -> None:
        """Add a line of the file to memory."""
        config = int(line["config"])
        if "choice" in line:
            self.settings[config] = list(line["choice"])
        if "failed" in line:
            self.failed[config] = str(line["failed"])
        else:
            visit = Visit(int(line["runtime_ns"]), int(line["n_runs"]))
            self.visits[config, int(line["round"])] = visit
            self.codes[config] = line.get("code") or str(self.settings[config])

    def runtimes_ns(self) -> dict[int, int]:
        """Return the median visit in ns, by config. Configs that failed are left out."""
        visits = dict[int, list[int]]()
        for (config, _), visit in self.visits.items():
            visits.setdefault(config, []).append(visit.runtime_ns)
        return {c: round(median(ns)) for c, ns in visits.items() if c not in self.failed}


def open_journal(path: Path, header: Mapping[str, Any]) -> Journal:
    """Open a journal, or begin it.

    Args:
        header: Description of the measurement, the first line of the file.
    """
    try:
        content = path.read_bytes() if path.is_file() else b""
        whole_lines = content[: content.rfind(b"\n") + 1]
        if len(whole_lines) < len(content):
            os.truncate(path, len(whole_lines))
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    # A journal without a visit may begin again, with another header.
    if whole_lines.count(b"\n") < 2:
        if content:
            path.unlink()
        _append(path, header)
        return Journal(path)
    journal = Journal(path)
    for number, line in enumerate(whole_lines.splitlines(), start=1):
        try:
            values = json.loads(line)
            if number > 1:
                journal.take(values)
        except (ValueError, KeyError, TypeError) as error:
            fault = f"line {number} is damaged ({error})"
            how = "remove the file to measure this graph again"
            raise PipelineError(f"{path}: {fault}; {how}") from error
        if number == 1:
            _check_header(path, values, header)
    return journal


def header_of(path: Path) -> dict[str, Any]:
    """Return the first line of a journal with visits, or an empty dict."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    with suppress(ValueError):
        return dict(json.loads(lines[0])) if len(lines) > 1 else {}
    return {}


def _check_header(path: Path, earlier: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    for key, value in header.items():
        # A key that an older journal lacks is no difference.
        if earlier.get(key, value) == value:
            continue
        reason = f"was begun with {key} {earlier[key]}, not {value}"
        if key in EDITED:
            reason = "the program was edited since, or differs each time it is traced"
        raise UsageError(f"{path}: {reason}; give another --out")


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error


class Visitor:
    """Visits configs that the journal does not have yet, and reports the progress.

    Args:
        total: Number of configs.
        n_visits: Number of visits of each config.
    """

    def __init__(
        self, session: Session, journal: Journal, *, label: str, total: int, n_visits: int = 1
    ) -> None:
        self._session, self.journal = session, journal
        self._label, self._total, self._n_visits = label, total, n_visits
        # Visits of the journal, and of settings that have failed.
        self._finished = {*journal.visits}
        progress(label, len(self._finished) // n_visits, total)

    def visit(self, config: int, turn: int, setting: Choices) -> float:
        """Return the runtime of a config in a round, in ns. inf if it fails or has failed.

        Raises:
            OutOfTime: The time is over.
            ProgramFailed: The first ten configs all failed.
        """
        journal = self.journal
        if (config, turn) not in journal.visits and config not in journal.failed:
            if out_of_time():
                raise OutOfTime(self._label)
            try:
                result = self._session.visit(setting)._asdict() | {"round": turn}
            except ConfigFailed as failure:
                result = {"failed": str(failure)}
            journal.add(config, setting.tolist(), **result)
            if not journal.visits and len(journal.failed) >= MAX_FAILED_AT_START:
                # The program has a fault, not its configs.
                reason = f"the first {len(journal.failed)} configs all failed"
                raise ProgramFailed(f"{self._label}: {reason}: {journal.failed[config]}")
        if (config, turn) not in self._finished:
            self._finished.add((config, turn))
            if len(self._finished) % self._n_visits == 0:
                progress(self._label, len(self._finished) // self._n_visits, self._total)
        visit = journal.visits.get((config, turn))
        return visit.runtime_ns if visit else math.inf


def run_search(visitor: Visitor, search: Search) -> Choices:
    """Visit all settings of a search.

    Returns:
        All settings with the failed ones, (c, g).
    """
    batches: list[Choices] = []
    n_visited = 0
    try:
        batch = next(search)
        while True:
            batches.append(batch)
            runtimes = [
                visitor.visit(config, SEARCH_ROUND, setting)
                for config, setting in enumerate(batch, start=n_visited)
            ]
            n_visited += len(batch)
            batch = search.send(np.array(runtimes))
    except StopIteration:
        return np.concatenate(batches)


def run_rounds(
    visitor: Visitor, settings: Choices, *, n_rounds: int, rng: np.random.Generator
) -> None:
    """Visit all settings (c, g) in rounds, each in a new random order."""
    for turn in range(1, n_rounds + 1):
        for config in rng.permutation(len(settings)).tolist():
            visitor.visit(config, turn, settings[config])


def whole_rounds(journal: Journal, n_configs: int) -> tuple[list[int], NDArray[np.int64]]:
    """Gather the visits of the configs that never failed.

    Returns:
        The numbers of the configs that ran, and their runtimes in ns, (r, ran). Rounds that lack a
        visit are left out.
    """
    ran = [config for config in range(n_configs) if config not in journal.failed]
    by_round = [
        [journal.visits.get((config, turn)) for config in ran]
        for turn in sorted({turn for _, turn in journal.visits})
    ]
    rows = [[visit.runtime_ns for visit in row if visit] for row in by_round if all(row)]
    return ran, np.array(rows, np.int64).reshape(-1, len(ran))
