"""Visit the configs of one graph in rounds, through a journal; c configs of g genes."""

import math

import numpy as np
from numpy.typing import NDArray

from common.errors import OutOfTime
from common.progress import out_of_time, progress
from data.collect.measuring.journal import Journal
from data.collect.measuring.search import Choices, Search
from data.collect.measuring.session import ConfigFailed, ProgramFailed, Session

SEARCH_ROUND = 0
MAX_FAILED_AT_START = 10


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
