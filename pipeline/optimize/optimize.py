"""Choose a configuration of a JAX function that is verified to be faster on this machine.

Screen: a menu of compiler options and the usual layouts, the first picks of a ranker, then a
genetic search over all decisions, whose children the ranker picks too. Verify: the few that were
fastest, in a fresh process: the fastest of many by one visit is mostly lucky. Confirm: the best of
these, without decisions that change nothing, in some others, on one thread; last, in as many more,
on all cores, where no gain is asked for but a loss must be ruled out. That is a pass. A call makes
some while there is time and something to decide; what processes measured of a candidate is pooled
with all that earlier passes and calls measured of it. Every visit goes to a journal, so that a call
that was killed goes on.

c candidates of g genes, r rounds, p processes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.atomic import alone_in
from common.errors import OutOfTime, PipelineError, UsageError
from common.metrics import CONFIDENCE, DRAWS, interval_of
from common.progress import log, out_of_time, seconds_left, time_limit
from common.reproducibility import generator
from data.collect.collect import program_digest
from data.collect.measuring.search import (
    Choices,
    Guide,
    Journal,
    Space,
    Visitor,
    draw_choices,
    genetic_search,
    open_journal,
    run_rounds,
    run_search,
)
from data.collect.measuring.session import ConfigFailed, Description, Session, Subject, Told
from data.collect.measuring.timing import MIN_RUNS, VISIT_BUDGET_NS
from data.collect.spaces import SPACES, TILES, menu, open_decided, undecided
from data.graphs.distinct import hash_rows
from pipeline.jobs.workers import granted

JOURNALS, VERIFY, CONFIRM, ON_ALL_CORES = "journal", "verify", "confirm", "all-cores"
N_AGAIN, AGAIN_ROUNDS = 8, 3  # the fastest by one visit, visited again while screening
N_FINALISTS, LEAST_ROUNDS = 4, 8
N_PROCESSES = 4  # that a pass adds to confirm: they differ by more than rounds of one do
FEWEST_PROCESSES, FEWEST_ROUNDS = 2, 2  # where the time ends; rounds of each
ALIKE = 1.05  # screened times that may be one and the same
LEAST_GAIN = 0.02  # code that is placed elsewhere in memory alone may differ by so much
MOST_LOSS = 1.02  # on all cores, below which all of the interval must lie
SCREEN_SHARE, VERIFY_SHARE, SIMPLIFY_SHARE = 0.6, 0.5, 0.1  # of the time; of what is left then
LEAST_SHARE = 0.2  # of the time for screening, however long confirming takes
DRAWN, PICKED = 1_000, 15  # layouts that a ranker picks from, and how many it proposes

# Ranks choices (c, g) of layouts, of what is described: the best first.
Pick = Callable[[Description, NDArray[Any]], NDArray[np.int64]]
Times = NDArray[np.float64]
Choice = tuple[int, ...]  # the option of each gene


@dataclass(frozen=True)
class Ask:
    """What is to be optimised, and how hard.

    Attributes:
        program: module:function, a program of the catalogue, or for "tiles" a kernel.
        spaces: names in SPACES, or "tiles", which is of kernels as the others are of functions.
        n_candidates: how many are screened at most, the default included.
        n_rounds: in which a pass compares the best with the default; the finalists in 3/8 of these.
        timeout_s: after which a candidate counts as failed.
        run: the run whose models propose some, to tell one call's journals from another's.
        open_decided: opens the program in the worker, given its name, the spaces and the device.
    """

    program: str
    spaces: tuple[str, ...] = ("options",)
    n_candidates: int = 60
    n_rounds: int = 40
    timeout_s: float = 60.0
    seed: int = 0
    device: str | None = None
    run: str | None = None
    open_decided: Callable[..., Subject] = open_decided

    def __post_init__(self) -> None:
        """Refuse spaces that there are not; raises UsageError."""
        known = (*SPACES, TILES)
        for space in self.spaces:
            if space not in known:
                raise UsageError(f"--space {space}: no such space; known: {', '.join(known)}")


@dataclass(frozen=True)
class Candidate:
    """A choice that was screened; `source` says where it came from.

    `ratio` is its shortest run over the default's, `reason` why it failed.
    """

    choice: Choice
    source: str
    ratio: float = inf
    reason: str = ""

    @property
    def n_decided(self) -> int:
        return int(np.count_nonzero(self.choice))


class Ratio(NamedTuple):
    """A runtime over another's, and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Verified:
    """A finalist as a fresh process measured it, over the default."""

    candidate: Candidate
    ratio: Ratio
    told: Told


class Process(NamedTuple):
    """What one process measured: medians of a candidate and of the default again over the default.

    `ratio` is inf where the candidate failed.
    """

    ratio: float
    same: float
    n_rounds: int
    default_ms: float


class Pool(NamedTuple):
    """What all processes measured of a candidate; of a single one, over its rounds."""

    ratio: Ratio
    same: Ratio
    n_processes: int
    n_rounds: int
    default_ms: float
    n_looks: int = 1


@dataclass(frozen=True)
class Contestant:
    """A candidate that was confirmed, on one thread and, where it gains there, on all cores.

    Attributes:
        together: on all cores, None without two processes; where there is one core it is not asked.
    """

    candidate: Candidate
    told: Told
    alone: Pool
    together: Pool | None
    is_checked: bool

    @property
    def most(self) -> float:
        """Return what its ratio must surely lie below: more than the default differs by."""
        return 1 - band(self.alone.same)

    @property
    def runs(self) -> bool:
        return all(isfinite(pool.ratio.value) for pool in (self.alone, self.together) if pool)

    @property
    def is_confirmed(self) -> bool:
        return self.alone.n_processes >= FEWEST_PROCESSES

    @property
    def gains(self) -> bool:
        return self.is_confirmed and self.alone.ratio.high < self.most

    @property
    def is_undecided(self) -> bool:
        """Tell whether more processes may call it faster, or surely not."""
        if not self.gains:
            return self.alone.ratio.low < self.most
        if not self.is_checked:
            return False
        return not self.together or self.together.ratio.low < MOST_LOSS <= self.together.ratio.high

    @property
    def why_not(self) -> str:
        """Say why it is not called faster; "" if it is."""
        if not self.is_confirmed:
            return "not confirmed in the time; the same command goes on, with more --minutes"
        if not self.gains:
            return f"what was confirmed is not surely below {self.most:.3f}"
        if not self.is_checked or (self.together and self.together.ratio.high < MOST_LOSS):
            return ""
        if self.is_undecided:
            return (
                f"undecided whether it is a loss on all cores (not surely below {MOST_LOSS}); "
                "the same command measures on, with more --minutes"
            )
        return "on all cores it is a loss"


@dataclass(frozen=True)
class Optimized:
    """What was found. All ratios are of runtimes over the default's: below 1 is faster.

    Attributes:
        spaces: those that there were to decide.
        candidates: the distinct ones; `n_drawn` counts those that equal another too.
        finalists: as the last pass verified them.
        contestants: the best first; without time to confirm any the best as verified.
        default: the default and itself, beside the finalists.
    """

    ask: Ask
    spaces: tuple[str, ...]
    facts: Mapping[str, str]
    candidates: list[Candidate]
    n_drawn: int
    finalists: list[Verified]
    contestants: list[Contestant]
    default: Pool

    @property
    def best(self) -> Contestant | None:
        return next(iter(self.contestants), None)

    @property
    def measured(self) -> Pool:
        """Return what stands behind the figures: the best's, or the default's own."""
        return self.best.alone if self.best else self.default

    @property
    def is_faster(self) -> bool:
        return self.best is not None and not self.best.why_not

    @property
    def is_decided(self) -> bool:
        return not any(contestant.is_undecided for contestant in self.contestants)


class _Screened(NamedTuple):
    """The distinct candidates, how many were drawn for them, and whether the search ended."""

    candidates: list[Candidate]
    n_drawn: int
    default_ns: float
    is_over: bool


@dataclass(frozen=True)
class _Call:
    """What a call works with: the process that screens stays open."""

    ask: Ask
    out: Path
    pick: Pick | None
    session: Session
    description: Description

    @property
    def is_checked(self) -> bool:
        return granted()[0] > 1 and self.description.facts["platform"] == "cpu"

    def journal(self, name: str) -> Journal:
        ask = self.ask
        asked = {"program": ask.program, "spaces": list(ask.spaces), "seed": ask.seed}
        asked |= {"run": ask.run, "program_digest": program_digest(self.description)}
        header = asked | dict(self.description.facts)
        return open_journal(self.out / JOURNALS / f"{name}.jsonl", header)

    def code(self, choice: Choice) -> str:
        """Return what tells the code of a choice from others; itself where it does not compile."""
        try:
            return self.session.code(np.array(choice))
        except ConfigFailed:
            return repr(choice)


def optimize(ask: Ask, out: Path, *, minutes: float = 10.0, pick: Pick | None = None) -> Optimized:
    """Search, verify and confirm; see the module.

    Args:
        out: holds the journals; the same call goes on, also with other `n_candidates`.
        minutes: how long it may take; the search gets what verifying and confirming leave.
        pick: a ranker of layouts, which proposes some; None for none.

    Raises:
        UsageError: `out` holds another call's journals, or no space can be decided.
        ProgramFailed: the program cannot be opened, or its default does not run.
        PipelineError: too little time to verify anything, or the disk is full.
    """
    with time_limit(minutes), _session(ask) as session:
        start = time.monotonic()
        call = _Call(ask, out, pick, session, session.describe())
        # A process that confirms opens the program, and compiles it up to twice more.
        needed_s = (1 + N_PROCESSES * (1 + call.is_checked)) * 2 * (time.monotonic() - start)
        with alone_in(out / JOURNALS):  # makes it: only what can be opened does
            is_first = True
            while True:
                with time_limit(screening_s(seconds_left(), needed_s) / 60):
                    screened = _screened(call)
                start = time.monotonic()
                found = _judged(call, screened, seconds_left() - needed_s, is_first=is_first)
                took_s = time.monotonic() - start
                needed_s = took_s if is_first else max(needed_s, took_s)
                is_first = False
                if seconds_left() < needed_s or (screened.is_over and found.is_decided):
                    return found


def _judged(call: _Call, screened: _Screened, spare_s: float, *, is_first: bool) -> Optimized:
    """Verify finalists; confirm the best, or, after the first pass, one that is undecided."""
    candidates, n_drawn, default_ns, _ = screened
    known = _contestants(call, candidates)
    kept = [one.candidate for one in known if not one.why_not or one.is_undecided]
    lost = {one.candidate.choice for one in known} - {candidate.choice for candidate in kept}
    others = [(0,) * len(call.description.n_options), *lost]
    ordered = [*kept[: N_FINALISTS // 2], *chosen_finalists(candidates)]
    finalists = distinct(ordered, others, call.code, n_affordable(default_ns, spare_s))
    verified, default = _verified(call, finalists)
    if default is None and not known:
        raise PipelineError(
            f"{call.ask.program}: there was no time to verify anything; expected {FEWEST_ROUNDS} "
            "rounds beside the default or more; the same command goes on, with more --minutes"
        )
    chosen = [simplest_of_best(verified, kept).candidate] if verified else []
    if chosen and chosen[0] not in kept:
        chosen = [simplified(chosen[0], call.code)]
    elif not is_first:
        chosen = [one.candidate for one in known if one.is_undecided]
    for candidate in chosen[:1]:
        _confirm(call, candidate, candidates, is_first=is_first)
    contestants = [one for one in _contestants(call, candidates) if one.runs]
    if not contestants and verified and default:
        best = simplest_of_best(verified, ())
        alone = default._replace(ratio=best.ratio)
        contestants = [Contestant(best.candidate, best.told, alone, None, call.is_checked)]
    spaces, facts = tuple(_spaces_of(call.description)), call.description.facts
    measured = default or known[0].alone
    return Optimized(call.ask, spaces, facts, candidates, n_drawn, verified, contestants, measured)


def screening_s(seconds: float, needed_s: float) -> float:
    """Return how much of the time is for screening, where confirming needs so many seconds."""
    return max(LEAST_SHARE * seconds, min(SCREEN_SHARE * seconds, seconds - needed_s))


def chosen_finalists(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order what may be measured again: the fastest, the simplest of its equals, the next ones."""
    faster = sorted((c for c in candidates if c.ratio < 1), key=lambda c: c.ratio)
    alike = [c for c in faster if c.ratio < ALIKE * faster[0].ratio]
    simplest = sorted(alike, key=lambda c: (c.n_decided, c.ratio))
    return [*dict.fromkeys([*faster[:1], *simplest[: N_FINALISTS // 2], *faster])]


def distinct(
    ordered: Sequence[Candidate],
    others: Sequence[Choice],
    code: Callable[[Choice], str],
    n_wanted: int,
) -> list[Candidate]:
    """Return candidates whose code is neither one another's, of which the simplest is kept.

    Nor is it that of `others`. No more are compiled for it than it takes to have so many.
    """
    left_out, found = {code(choice) for choice in others}, dict[str, Candidate]()
    for candidate in ordered:
        if len(found) == n_wanted:
            break
        own = code(candidate.choice)
        if own not in left_out:
            found[own] = min(found.get(own, candidate), candidate, key=lambda c: c.n_decided)
    return [*found.values()]


def simplified(candidate: Candidate, code: Callable[[Choice], str]) -> Candidate:
    """Return a candidate without the decisions that its code is the same without."""
    choice, whole = candidate.choice, code(candidate.choice)
    with time_limit(SIMPLIFY_SHARE * seconds_left() / 60):
        for gene in np.flatnonzero(choice).tolist():
            without = (*choice[:gene], 0, *choice[gene + 1 :])
            if not out_of_time() and code(without) == whole:
                choice = without
    return replace(candidate, choice=choice)


def n_affordable(default_ns: float, seconds: float) -> int:
    """Return how many can be verified in half of the time, 1 to 4."""
    visit_s = max(VISIT_BUDGET_NS, MIN_RUNS * default_ns) / 1e9
    return int(np.clip(seconds / 2 / visit_s / LEAST_ROUNDS - 2, 1, N_FINALISTS))


def simplest_of_best(verified: Sequence[Verified], known: Sequence[Candidate]) -> Verified:
    """Return the one that decides least of those that gain surely, and about as the fastest.

    One that is known to be a contestant comes first: another would be one more to choose from.
    """
    fastest = min(verified, key=lambda v: v.ratio.value)
    most = min(fastest.ratio.high + LEAST_GAIN, 1 - LEAST_GAIN)
    alike = [v for v in verified if v.ratio.high < most] or [fastest]
    return min(
        alike, key=lambda v: (v.candidate not in known, v.candidate.n_decided, v.ratio.value)
    )


def _screened(call: _Call) -> _Screened:
    """Visit the candidates once, and the fastest some times more; the default is the first."""
    ask, session, description = call.ask, call.session, call.description
    decided = tuple(_spaces_of(description))
    if set(ask.spaces) > set(decided):
        left_out = undecided(ask.program, ask.spaces, decided)
        log.info(f"{left_out}; goes on with {', '.join(decided)}")
    log.info(f"screen: up to {ask.n_candidates} candidates")
    guide = None
    if call.pick and {"layouts", TILES} & set(decided):  # else there is nothing that it knows
        guide = partial(_picked, call.pick, session, description)
    journal, is_over = call.journal("screen"), False
    try:
        visitor = Visitor(session, journal, what=ask.program, total=ask.n_candidates)
        sources, proposed = _proposed(ask, description, guide)
        space = Space(description.n_options, description.groups)
        rng = generator(ask.seed, "optimize", ask.program)
        n, first = ask.n_candidates, proposed[: ask.n_candidates]
        run_search(visitor, genetic_search(space, n, rng, first=first, guide=guide))
        fastest = sorted(journal.shortest_ns().items(), key=lambda pair: pair[1])[:N_AGAIN]
        again = sorted({0, *(config for config, _ in fastest)})
        for turn in range(1, 1 + AGAIN_ROUNDS):
            for config in rng.permutation(again).tolist():
                visitor.visit(config, turn, np.array(journal.choices[config]))
        is_over = True
    except OutOfTime:
        log.info("the time for screening is over")
    shortest = journal.shortest_ns()
    if 0 not in shortest:
        raise PipelineError(
            f"{ask.program}: the default was not measured ({journal.failed.get(0, 'no time')}); "
            "expected it to run within the time; give it more --minutes or --timeout-s"
        )
    found: dict[tuple[int, ...], Candidate] = {}
    for config, genes in sorted(journal.choices.items()):
        source = sources[config] if config < len(sources) else "search"
        ratio = shortest.get(config, float("inf")) / shortest[0]
        candidate = Candidate(tuple(genes), source, ratio, journal.failed.get(config, ""))
        known = found.setdefault(candidate.choice, candidate)
        if ratio < known.ratio and any(genes):  # a search comes back to what is fast
            found[candidate.choice] = replace(known, ratio=ratio)
    return _Screened(list(found.values()), len(journal.choices), shortest[0], is_over)


def _picked(
    pick: Pick, session: Session, description: Description, choices: Choices
) -> NDArray[np.int64]:
    return pick(description, session.spell(choices))


def _proposed(ask: Ask, description: Description, guide: Guide | None) -> tuple[list[str], Choices]:
    """Return what is visited before the search, the default first; and where each comes from.

    However many candidates there may be: a call with fewer or more then goes on with a journal.
    """
    spaces = _spaces_of(description)
    ends = np.cumsum([*spaces.values()])
    genes = {name: slice(end - spaces[name], end) for name, end in zip(spaces, ends, strict=True)}
    default = np.zeros(len(description.n_options), np.int64)
    rows, sources = [default], ["default"]
    if "options" in genes:
        for tried in menu():
            rows.append(default.copy())
            rows[-1][genes["options"]] = tried
            sources.append("menu")
    if description.usual is not None and description.usual.any():
        rows.append(description.usual)
        sources.append("menu")
    if guide:
        part = genes["layouts" if "layouts" in genes else TILES]
        space = Space(description.n_options[part], description.groups[part])
        own = draw_choices(space, DRAWN, generator(ask.seed, "drawn", ask.program))
        drawn = np.zeros((len(own), len(default)), np.int64)
        drawn[:, part] = own
        best = [choice for choice in drawn[guide(drawn)] if choice.any()][:PICKED]
        rows += best
        sources += ["ranker"] * len(best)
    return sources, np.array(rows)


def _verified(call: _Call, finalists: Sequence[Candidate]) -> tuple[list[Verified], Pool | None]:
    """Measure finalists beside the default, and the default again, in a fresh process.

    Returns:
        Those that ran, and the default over itself; none without time for enough rounds.
    """
    ordered = sorted(finalists, key=lambda candidate: candidate.choice)
    choices = np.zeros((2 + len(ordered), len(call.description.n_options)), np.int64)
    for row, candidate in zip(choices[2:], ordered, strict=True):
        row[:] = candidate.choice
    least = LEAST_ROUNDS if len(ordered) > 1 else FEWEST_ROUNDS  # of one nothing is chosen
    n_rounds, share_s = max(least, 3 * call.ask.n_rounds // 8), VERIFY_SHARE * seconds_left()
    name = f"{VERIFY}-{hash_rows(choices).sum():016x}"
    ran, times = _measured(call, name, choices, (least, n_rounds), share_s)
    if len(times) < least:
        return [], None
    default, same, *others = times.T
    verified = [
        Verified(
            ordered[config - 2], paired_ratio(own, default), call.session.tell(choices[config])
        )
        for config, own in zip(ran[2:], others, strict=True)
    ]
    itself = paired_ratio(same, default)
    return verified, Pool(itself, itself, 1, len(times), float(default.min()) / 1e6)


def _measured(
    call: _Call, name: str, choices: Choices, n_rounds: tuple[int, int], share_s: float
) -> tuple[list[int], Times]:
    """Visit the default, the default again and others in a fresh process; as `_rounds_of`.

    It takes its share of the time, and more of it only for the least of rounds.

    Raises:
        PipelineError: the default does not run.
    """
    journal, ask = call.journal(name), call.ask
    known = _rounds_of(journal, len(choices))
    if len(known[1]) >= n_rounds[1]:
        return known
    what, rest_s = f"{ask.program}: {name}", seconds_left() - share_s
    stage = name.rsplit("-", 1)[0]
    log.info(f"{stage}: {len(choices) - 2} beside the default, in a fresh process")
    with _session(ask, on_all_cores=name.startswith(ON_ALL_CORES)) as session:
        visitor = Visitor(session, journal, what=what, total=len(choices) * n_rounds[1])
        order = generator(ask.seed, name, ask.program)
        with suppress(OutOfTime):
            run_rounds(visitor, choices, n_rounds=n_rounds[0], rng=order)
            with time_limit((seconds_left() - rest_s) / 60):
                run_rounds(visitor, choices, n_rounds=n_rounds[1], rng=order)
    if journal.failed.keys() & {0, 1}:
        reason = next(iter(journal.failed.values()))
        raise PipelineError(f"{what}: the default failed: {reason}")
    return _rounds_of(journal, len(choices))


def _rounds_of(journal: Journal, n_choices: int) -> tuple[list[int], Times]:
    """Return which of the choices never failed, and their runtimes (r, ran) in whole rounds."""
    ran = [config for config in range(n_choices) if config not in journal.failed]
    by_round = [
        [journal.visits.get((config, turn)) for config in ran]
        for turn in sorted({turn for _, turn in journal.visits})
    ]
    whole = [[visit.runtime_ns for visit in row if visit] for row in by_round if all(row)]
    return ran, np.array(whole, float).reshape(-1, len(ran))


def _confirm(
    call: _Call, candidate: Candidate, candidates: Sequence[Candidate], *, is_first: bool
) -> None:
    """Add processes of a candidate on one thread; on all cores too where it gains."""

    def known() -> Contestant | None:
        found = _contestants(call, candidates)
        return next((one for one in found if one.candidate.choice == candidate.choice), None)

    before = known()
    if is_first or not before or not before.gains:
        with time_limit(seconds_left() / (1 + call.is_checked) / 60):
            _add_processes(call, CONFIRM, candidate.choice)
    after = known()
    if call.is_checked and after and after.gains and (is_first or after.is_undecided):
        _add_processes(call, ON_ALL_CORES, candidate.choice)


def _add_processes(call: _Call, stage: str, choice: Choice) -> None:
    """Measure a candidate in up to four processes more, where the time is enough."""
    choices = np.array([[0] * len(choice)] * 2 + [choice])
    n_rounds = FEWEST_ROUNDS, max(FEWEST_ROUNDS, -(-call.ask.n_rounds // N_PROCESSES))
    n_known = len(_processes(call, stage).get(choice, ()))
    for number in range(n_known + 1, (n_known // N_PROCESSES + 1) * N_PROCESSES + 1):
        share_s = seconds_left() / (N_PROCESSES - (number - 1) % N_PROCESSES)
        name = f"{stage}-{hash_rows(choices[2:])[0]:016x}-{number}"
        ran, times = _measured(call, name, choices, n_rounds, share_s)
        if len(ran) < 3 or len(times) < FEWEST_ROUNDS:
            return


def _processes(call: _Call, stage: str) -> dict[Choice, list[Process]]:
    """Return what all processes of a stage measured so far that had enough time, by candidate."""
    found: dict[Choice, list[Process]] = {}
    for path in sorted((call.out / JOURNALS).glob(f"{stage}-*.jsonl")):
        journal = call.journal(path.stem)
        ran, times = _rounds_of(journal, 3)
        if len(times) >= FEWEST_ROUNDS or 2 in journal.failed:
            default, same = times[:, 0], times[:, 1]
            ratio = float(np.median(times[:, 2] / default)) if 2 in ran else inf
            again = float(np.median(same / default)) if len(times) else 1.0
            least_ms = float(default.min(initial=inf)) / 1e6
            process = Process(ratio, again, len(times), least_ms)
            found.setdefault(tuple(journal.choices[2]), []).append(process)
    return found


def _pools(call: _Call, stage: str) -> dict[Choice, Pool]:
    """Pool the processes of each candidate that has two; one that failed is infinitely slow.

    Each batch of processes, of any candidate, was one more look that could have been lucky: the
    intervals share 5 % of error among them all (Bonferroni).
    """
    by_choice = _processes(call, stage)
    n_looks = sum(-(-len(own) // N_PROCESSES) for own in by_choice.values())
    return {
        choice: Pool(
            pooled([own.ratio for own in measured], n_looks),
            pooled([own.same for own in measured], n_looks),
            len(measured),
            sum(own.n_rounds for own in measured),
            min(own.default_ms for own in measured),
            n_looks,
        )
        for choice, measured in by_choice.items()
        if len(measured) >= FEWEST_PROCESSES or not isfinite(measured[0].ratio)
    }


def _contestants(call: _Call, candidates: Sequence[Candidate]) -> list[Contestant]:
    """Return all that was ever confirmed, what is faster first."""
    alone, together = _pools(call, CONFIRM), _pools(call, ON_ALL_CORES)
    sources = {candidate.choice: candidate.source for candidate in candidates}
    found = [
        Contestant(
            Candidate(choice, sources.get(choice, "simplified")),
            call.session.tell(np.array(choice)),
            pool,
            together.get(choice),
            call.is_checked,
        )
        for choice, pool in alone.items()
    ]
    return sorted(found, key=lambda one: (bool(one.why_not), one.alone.ratio.value))


def _spaces_of(description: Description) -> Mapping[str, int]:
    return description.spaces or {TILES: len(description.n_options)}


def _session(ask: Ask, *, on_all_cores: bool = False) -> Session:
    open_subject = partial(ask.open_decided, ask.program, ask.spaces, ask.device)
    return Session(open_subject, timeout_s=ask.timeout_s, on_all_cores=on_all_cores)


def paired_ratio(own_ns: Times, base_ns: Times, *, seed: int = 0) -> Ratio:
    """Return the median of runtimes (r,) over others, by round: what disturbs one disturbs both."""
    ratios = own_ns / base_ns
    drawn = np.random.default_rng(seed).integers(0, len(ratios), (DRAWS, len(ratios)))
    return Ratio(float(np.median(ratios)), *interval_of(np.median(ratios[drawn], axis=1)))


def pooled(ratios: Sequence[float], n_looks: int = 1) -> Ratio:
    """Return the mean of processes' ratios (p,) and Student's interval, both of their logarithms.

    Args:
        n_looks: at how many such intervals somebody looks, which together err in 5 % of all cases.
    """
    from scipy.stats import t

    if not np.isfinite(ratios).all():
        return Ratio(inf, inf, inf)
    logs = np.log(ratios)
    quantile = t.isf((1 - CONFIDENCE) / n_looks / 2, len(logs) - 1)
    half = quantile * logs.std(ddof=1) / np.sqrt(len(logs))
    return Ratio(*np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).tolist())


def is_faster(candidate: Ratio, same: Ratio) -> bool:
    """Tell whether a candidate is faster by more than the default differs from itself.

    Args:
        same: the default over the default, in the same rounds: the A/A pair.
    """
    return candidate.high < 1 - band(same)


def band(same: Ratio) -> float:
    """Return how far from 1 a ratio must lie to count, beside the A/A pair's."""
    return max(LEAST_GAIN, 1 - same.low, same.high - 1)
