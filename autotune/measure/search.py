"""Searches that choose configs of a program, and visits of them in rounds; c configs of g knobs.

A search is a generator that yields settings (b, g) and receives their runtimes (b,) in ns. The
runtime of a failed setting is inf. A search depends only on its random generator and on these
runtimes, so a collection that was killed replays it.

Each visit adds a line of JSON to a journal, so a kill loses one visit at most. The first line
describes the measurement. An incomplete last line is dropped.
"""

import json
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.timing import Visit
from autotune.measure.worker import ConfigFailed, ProgramFailed, Session
from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import out_of_time, progress
from data.hlo.choices import Choices, Space

Search = Generator[Choices, NDArray[np.float64], None]
# Returns the positions (b,) of settings (b, g), sorted by their predicted runtimes.
Guide = Callable[[Choices], NDArray[np.int64]]

# Share of random configs that are measured again.
REPEATED_SHARE = 0.05
# Expected number of changed knobs of a child, at least. Twice as much is usual.
MUTATIONS = 1.0
GENERATION = 16
ELITE = 8
# Children that a guide chooses from, for each measured child.
BRED_PER_CHILD = 8
SEARCH_ROUND = 0
MAX_FAILED_AT_START = 10
# Keys of a journal's header that differ after an edit of the program.
EDITED = ("program_digest", "function")


def random_search(space: Space, n_configs: int, rng: np.random.Generator) -> Search:
    """Yield the default and random settings. Each setting leaves a random share to the compiler.

    If all knobs change, every edge needs a copy, and all runtimes are similar. A random share gives
    a wider range of runtimes. Some settings are measured again.
    """
    settings = np.repeat(space.default, n_configs, axis=0)
    for row in range(1, n_configs):
        if rng.random() < REPEATED_SHARE:
            settings[row] = settings[rng.integers(row)]
        else:
            settings[row] = space.redraw(settings[row], rng.random(), rng)
    yield settings


def genetic_search(
    space: Space,
    n_configs: int,
    rng: np.random.Generator,
    *,
    first: Choices | None = None,
    guide: Guide | None = None,
) -> Search:
    """Yield first settings, then generations of children.

    A child crosses one of the fastest settings with any earlier setting, knob by knob. Then it
    changes a few knobs or groups, sometimes many. A search that stays near the best setting would
    only measure configs that differ by less than the noise.

    Args:
        space: The space of settings.
        n_configs: Number of settings.
        rng: Random generator.
        first: First settings, (b, g). None means the default.
        guide: Function that sorts children by predicted runtime. With a guide each generation has
            more children, and the first new ones are measured. The search ends without new ones.
    """
    settings = space.default if first is None else first
    runtime_ns = yield settings
    n_bred = GENERATION * (BRED_PER_CHILD if guide else 1)
    while len(settings) < n_configs:
        ran = np.flatnonzero(np.isfinite(runtime_ns))
        if not len(ran):
            ran = np.zeros(1, np.int64)
        fastest = ran[np.argsort(runtime_ns[ran], kind="stable")][:ELITE]
        children = np.stack(
            [
                _child(space, settings[rng.choice(fastest)], settings[rng.choice(ran)], rng)
                for _ in range(n_bred)
            ]
        )
        if guide:
            children = _new(children, settings)
            if not len(children):
                return
            children = children[guide(children)]
        children = children[: min(GENERATION, n_configs - len(settings))]
        children_ns = yield children
        settings = np.concatenate([settings, children])
        runtime_ns = np.concatenate([runtime_ns, children_ns])


def _new(children: Choices, known: Choices) -> Choices:
    """Return the distinct children (b, g) that are not among the known settings (c, g)."""
    seen = {row.tobytes() for row in known}
    new = {row.tobytes(): row for row in children if row.tobytes() not in seen}
    return np.array([*new.values()]).reshape(len(new), children.shape[1])


def _child(space: Space, one: Choices, two: Choices, rng: np.random.Generator) -> Choices:
    # The share of changed knobs has a long tail.
    crossed = np.where(rng.random(len(one)) < 0.5, one, two)
    share = min(1.0, MUTATIONS / len(one) / max(rng.random(), 1e-9))
    return space.redraw(crossed, share, rng)


SEARCHES: dict[str, Callable[[Space, int, np.random.Generator], Search]] = {
    "random": random_search,
    "default": genetic_search,
}


@dataclass
class Journal:
    """Visits of one graph, in memory and in a file."""

    path: Path
    visits: dict[tuple[int, int], Visit] = field(default_factory=dict)
    settings: dict[int, list[int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    codes: dict[int, str] = field(default_factory=dict)

    def add(self, config: int, setting: Sequence[int], **result: Any) -> None:
        """Record a visit or a failure of a config.

        Args:
            config: Number of the config.
            setting: Option of each knob, (g,).
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
            visit = Visit(int(line["runtime_ns"]), int(line["n_runs"]), line["is_stopped"])
            self.visits[config, int(line["round"])] = visit
            self.codes[config] = line.get("code") or str(self.settings[config])

    def shortest_ns(self) -> dict[int, int]:
        """Return the shortest run in ns, by config. Configs that failed are left out."""
        shortest: dict[int, int] = {}
        for (config, _), visit in self.visits.items():
            if config not in self.failed:
                shortest[config] = min(visit.runtime_ns, shortest.get(config, visit.runtime_ns))
        return shortest


def open_journal(path: Path, header: Mapping[str, Any]) -> Journal:
    """Open a journal, or begin it.

    Args:
        header: Description of the measurement, the first line of the file.

    Raises:
        UsageError: The journal is of another measurement.
    """
    try:
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    journal = Journal(path)
    # A journal without a visit may begin again, with another header.
    if whole.count(b"\n") == 1:
        path.unlink()
        whole = b""
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
            # A key that an older journal lacks is no difference.
            if line.get(key, value) != value:
                if key in EDITED:
                    reason = "the program was edited since, or differs each time it is traced"
                else:
                    reason = f"was begun with {key} {line[key]}, not {value}"
                raise UsageError(f"{path}: {reason}; give another --out")
    return journal


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error


class Visitor:
    """Visits configs that the journal does not have yet, and reports the progress."""

    def __init__(
        self, session: Session, journal: Journal, *, label: str, total: int, n_visits: int = 1
    ) -> None:
        self._session = session
        self._journal = journal
        self._label, self._total, self._n_visits = label, total, n_visits
        # Visits to configs that have failed count as done.
        self._n_skipped = 0
        self._n_reported = -1
        self._report()

    def _report(self) -> None:
        done = (len(self._journal.visits) + self._n_skipped) // self._n_visits
        if done != self._n_reported:
            self._n_reported = done
            progress(self._label, done, self._total)

    def visit(self, config: int, turn: int, setting: NDArray[np.int64]) -> float:
        """Return the runtime of a config in a round, in ns. inf if it fails or has failed.

        Args:
            config: Number of the config.
            turn: Number of the round.
            setting: Option of each knob, (g,).

        Raises:
            OutOfTime: The time is over.
            ProgramFailed: The first ten configs all failed.
        """
        known = self._journal.visits.get((config, turn))
        if known is not None:
            return known.runtime_ns
        if config in self._journal.failed:
            self._n_skipped += 1
            self._report()
            return math.inf
        if out_of_time():
            raise OutOfTime(self._label)
        knobs = setting.tolist()
        try:
            visit = self._session.visit(setting)
        except ConfigFailed as failure:
            self._journal.add(config, knobs, failed=str(failure))
            n_failed = len(self._journal.failed)
            if not self._journal.visits and n_failed >= MAX_FAILED_AT_START:
                # The program has a fault, not its configs.
                raise ProgramFailed(
                    f"{self._label}: the first {n_failed} configs all failed: {failure}"
                ) from failure
            return self.visit(config, turn, setting)
        self._journal.add(config, knobs, round=turn, **visit._asdict())
        self._report()
        return visit.runtime_ns


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
    """Visit all configs in rounds, each in a new random order.

    Args:
        visitor: Visits the settings.
        settings: All settings, (c, g).
        n_rounds: Number of rounds.
        rng: Random generator of the orders.
    """
    for turn in range(1, n_rounds + 1):
        for config in rng.permutation(len(settings)).tolist():
            visitor.visit(config, turn, settings[config])


def measured(
    journal: Journal, n_configs: int, *, n_rounds: int
) -> tuple[list[int], NDArray[np.int64]]:
    """Gather the visits of the configs that never failed.

    Returns:
        The numbers of the c configs, and their runtimes in ns by round, (r, c). Row 0 is of the
        search.

    Raises:
        ProgramFailed: Fewer than two configs ran.
    """
    kept = [config for config in range(n_configs) if config not in journal.failed]
    if len(kept) < 2:
        reason = next(iter(journal.failed.values()))
        raise ProgramFailed(
            f"{journal.path}: {len(kept)} of {n_configs} configs ran; expected 2 or more; "
            f"one says: {reason}"
        )
    rounds_ns = [
        [journal.visits[config, turn].runtime_ns for config in kept] for turn in range(n_rounds + 1)
    ]
    return kept, np.array(rounds_ns, np.int64)
