"""Which configs of a program to measure, and visits of these in rounds; c configs of g knobs.

A search is a generator
that yields settings (b, g) and is sent their (b,) runtimes in ns, inf for those that failed. It
depends on its generator of random numbers and on what it is sent alone, so that a collection
that was killed can replay it.

Configs are visited through a journal, which has a line of JSON per visit, so that a kill loses one.
Its first line says what is measured, and where; a last line that was cut off is dropped.
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
# Orders settings (b, g) by what it guesses of their runtimes, the fastest first; (b,) positions.
Guide = Callable[[Choices], NDArray[np.int64]]

REPEATED_SHARE = 0.05  # share of random configs that are measured again
MUTATIONS = 1.0  # knobs that change in a child at least, as an expectation; twice that is usual
GENERATION = 16
ELITE = 8
BRED_PER_CHILD = 8  # children that a guide chooses from, for each that is measured
SEARCH_ROUND = 0
MAX_FAILED_AT_START = 10
EDITED = ("program_digest", "function")  # of a journal's header, what an edit changes


def random_search(space: Space, n_configs: int, rng: np.random.Generator) -> Search:
    """Yield the default and settings that each leave a random share to the compiler.

    Choices that change everything all look alike to the compiler: every edge needs a copy. A
    share that varies from config to config gives a wider spread. Some are measured again.
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
    """Yield the default, or the `first` settings (b, g), then generations of children.

    A child crosses one of the fastest so far with any earlier setting, knob by knob, and changes a
    few knobs or groups, at times many: a search that stays near the best would only measure configs
    that differ by less than the noise. With a guide more are bred, of which those that were not
    measured yet and are guessed the fastest are; it ends where there are none.
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
    """Return the distinct children (b, g) that are not among the known (c, g), in their order."""
    seen = {row.tobytes() for row in known}
    new = {row.tobytes(): row for row in children if row.tobytes() not in seen}
    return np.array([*new.values()]).reshape(len(new), children.shape[1])


def _child(space: Space, one: Choices, two: Choices, rng: np.random.Generator) -> Choices:
    """Cross two settings (g,) and mutate: the share of changes has a long tail; (g,)."""
    crossed = np.where(rng.random(len(one)) < 0.5, one, two)
    share = min(1.0, MUTATIONS / len(one) / max(rng.random(), 1e-9))
    return space.redraw(crossed, share, rng)


def exhaustive_search(space: Space, n_configs: int, rng: np.random.Generator) -> Search:
    """Yield the default and up to `n_configs` - 1 other settings of the only knob, all distinct."""
    others = 1 + rng.permutation(int(space.n_options[0]) - 1)[: n_configs - 1]
    yield np.concatenate([[0], others])[:, None]


SEARCHES: dict[str, Callable[[Space, int, np.random.Generator], Search]] = {
    "random": random_search,
    "default": genetic_search,
    "tiles": exhaustive_search,
}


@dataclass
class Journal:
    """Visits of one graph, in memory and in a file."""

    path: Path
    visits: dict[tuple[int, int], Visit] = field(default_factory=dict)  # by config and round
    settings: dict[int, list[int]] = field(default_factory=dict)  # by config: an option per knob
    failed: dict[int, str] = field(default_factory=dict)  # by config: the line that says why
    codes: dict[int, str] = field(default_factory=dict)  # by config: what tells its code

    def add(self, config: int, setting: Sequence[int], **found: Any) -> None:
        """Record a visit (round, and the fields of Visit) of a config, or why it `failed`."""
        line: dict[str, Any] = {"config": config, **found}
        if config not in self.settings:
            line["choice"] = list(setting)
        _append(self.path, line)
        self.take(line)

    def take(self, line: Mapping[str, Any]) -> None:
        """Take over what a line of the file says."""
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
    if whole.count(b"\n") == 1:  # begun, and nothing was measured
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
            if line.get(key, value) != value:  # what an older one does not tell cannot differ
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
    """Visits configs unless the journal knows them already, and tells of the progress.

    Args:
        total: how many configs there are.
        n_visits: to each; so many in all count as one config done.

    Raises:
        OutOfTime: the time is over.
        ProgramFailed: no config has ever run.
        PipelineError: the journal cannot be written.
    """

    def __init__(
        self, session: Session, journal: Journal, *, what: str, total: int, n_visits: int = 1
    ) -> None:
        self._session = session
        self._journal = journal
        self._what, self._total, self._n_visits = what, total, n_visits
        self._n_spared = 0  # visits to configs that have failed
        self._told = -1
        self._tell()

    def _tell(self) -> None:
        done = (len(self._journal.visits) + self._n_spared) // self._n_visits
        if done != self._told:
            self._told = done
            progress(self._what, done, self._total)

    def visit(self, config: int, turn: int, setting: NDArray[np.int64]) -> float:
        """Return the runtime in ns of a config in a round; inf if it fails or has failed."""
        known = self._journal.visits.get((config, turn))
        if known is not None:
            return known.runtime_ns
        if config in self._journal.failed:
            self._n_spared += 1
            self._tell()
            return math.inf
        if out_of_time():
            raise OutOfTime(self._what)
        knobs = setting.tolist()
        try:
            visit = self._session.visit(setting)
        except ConfigFailed as failure:
            self._journal.add(config, knobs, failed=str(failure))
            n_failed = len(self._journal.failed)
            if not self._journal.visits and n_failed >= MAX_FAILED_AT_START:
                # The program is at fault, and not its configs.
                raise ProgramFailed(
                    f"{self._what}: the first {n_failed} configs all failed: {failure}"
                ) from failure
            return self.visit(config, turn, setting)
        self._journal.add(config, knobs, round=turn, **visit._asdict())
        self._tell()
        return visit.runtime_ns


def run_search(visitor: Visitor, search: Search) -> Choices:
    """Visit what a search asks for; return all its settings (c, g), those that failed included."""
    found: list[Choices] = []
    n_found = 0
    try:
        batch = next(search)
        while True:
            found.append(batch)
            runtimes = [
                visitor.visit(config, SEARCH_ROUND, setting)
                for config, setting in enumerate(batch, start=n_found)
            ]
            n_found += len(batch)
            batch = search.send(np.array(runtimes))
    except StopIteration:
        return np.concatenate(found)


def run_rounds(
    visitor: Visitor, settings: Choices, *, n_rounds: int, rng: np.random.Generator
) -> None:
    """Visit all configs `n_rounds` times, each time in a new random order."""
    for turn in range(1, n_rounds + 1):
        for config in rng.permutation(len(settings)).tolist():
            visitor.visit(config, turn, settings[config])


def measured(
    journal: Journal, n_configs: int, *, n_rounds: int
) -> tuple[list[int], NDArray[np.int64]]:
    """Gather the visits of those configs that ran in every round.

    Returns:
        Which c configs these are, and their shortest runs by round (r, c) in ns; row 0 is the
        search's.

    Raises:
        ProgramFailed: fewer than two configs ran.
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
