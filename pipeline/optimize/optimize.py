"""Choose a configuration of a JAX function that is verified to be faster on this machine.

Screen: a menu of compiler options and the usual layouts, the first picks of a ranker, then a
genetic search over all decisions, whose children the ranker picks too. Verify: the few that were
fastest, in a fresh process. Confirm: the best of these, in some others. All this on one thread;
last, in as many more, on all cores, where no gain is asked for but no loss is taken: the fastest of
many by one visit is mostly lucky. Every visit goes to a journal, so that a call that was killed
goes on.

c candidates of g genes, r rounds.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.atomic import alone_in
from common.errors import OutOfTime, PipelineError, UsageError
from common.metrics import CONFIDENCE, DRAWS, interval_of
from common.progress import log, seconds_left, time_limit
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
from data.collect.measuring.session import Description, Session, Subject, Told
from data.collect.measuring.timing import MIN_RUNS, VISIT_BUDGET_NS
from data.collect.spaces import SPACES, TILES, menu, open_decided, undecided
from data.graphs.distinct import hash_rows
from pipeline.jobs.workers import granted

JOURNALS, VERIFY, CONFIRM, ON_ALL_CORES = "journal", "verify", "confirm", "all-cores"
N_AGAIN, AGAIN_ROUNDS = 8, 3  # the fastest by one visit, visited again while screening
N_FINALISTS, LEAST_ROUNDS = 4, 8
N_PROCESSES = 4  # that confirm: they differ by more than rounds of one do
FEWEST_PROCESSES = 2  # of these, where the time ends
ALIKE = 1.05  # screened times that may be one and the same
LEAST_GAIN = 0.02  # code that is placed elsewhere in memory alone may differ by so much
SCREEN_SHARE, VERIFY_SHARE = 0.6, 0.5  # of the time; and of what is left then, stage by stage
LEAST_SHARE = 0.2  # of the time for screening, however long confirming takes
DRAWN, PICKED = 1_000, 15  # layouts that a ranker picks from, and how many it proposes

# Ranks choices (c, g) of layouts, of what is described: the best first.
Pick = Callable[[Description, NDArray[Any]], NDArray[np.int64]]
Times = NDArray[np.float64]


@dataclass(frozen=True)
class Ask:
    """What is to be optimised, and how hard.

    Attributes:
        program: module:function, a program of the catalogue, or for "tiles" a kernel.
        spaces: names in SPACES, or "tiles", which is of kernels as the others are of functions.
        n_candidates: how many are screened at most, the default included.
        n_rounds: in which the best is compared with the default; the finalists in 3/8 of these.
        timeout_s: after which a candidate counts as failed.
        open_decided: opens the program in the worker, given its name, the spaces and the device.
    """

    program: str
    spaces: tuple[str, ...] = ("options",)
    n_candidates: int = 60
    n_rounds: int = 40
    timeout_s: float = 60.0
    seed: int = 0
    device: str | None = None
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

    choice: tuple[int, ...]
    source: str
    ratio: float = float("inf")
    reason: str = ""


@dataclass(frozen=True)
class Ratio:
    """A runtime over another's, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Verified:
    """A finalist as a fresh process measured it, over the default."""

    candidate: Candidate
    ratio: Ratio
    told: Told


class Compared(NamedTuple):
    """What fresh processes measured: those that ran, the default in ms, and over itself."""

    verified: list[Verified]
    n_rounds: int
    default_ms: float
    same: Ratio


@dataclass(frozen=True)
class Optimized:
    """What was found. All ratios are of runtimes over the default's: below 1 is faster.

    Attributes:
        spaces: those that there were to decide.
        candidates: the distinct ones; `n_drawn` counts those that equal another too.
        confirmed: of the best alone, or of none where none is left.
        on_all_cores: as the best's ratio and `confirmed.same`; None = no gain to check.
        is_confirmed: whether there was time for both; else `confirmed` may be as verified.
    """

    ask: Ask
    spaces: tuple[str, ...]
    facts: Mapping[str, str]
    candidates: list[Candidate]
    n_drawn: int
    finalists: list[Verified]
    confirmed: Compared
    on_all_cores: tuple[Ratio, Ratio] | None
    is_confirmed: bool = True

    @property
    def best(self) -> Verified | None:
        return next(iter(self.confirmed.verified), None)

    @property
    def is_faster(self) -> bool:
        """Tell whether the best is faster by more than A/A, and not slower so on all cores."""
        if self.best is None or not is_faster(self.best.ratio, self.confirmed.same):
            return False
        if not self.is_confirmed:
            return False
        return not self.on_all_cores or not is_slower(*self.on_all_cores)


class _TooFewRoundsError(PipelineError):
    """There was no time to compare."""


def optimize(ask: Ask, out: Path, *, minutes: float = 10.0, pick: Pick | None = None) -> Optimized:
    """Search, verify and confirm; see the module.

    Args:
        out: holds the journals; the same call goes on, also with other `n_candidates`.
        minutes: how long it may take; the search gets what verifying and confirming leave.
        pick: a ranker of layouts, which proposes some; None for none.

    Raises:
        UsageError: `out` holds another call's journals, or no space can be decided.
        ProgramFailed: the program cannot be opened, or its default does not run.
        PipelineError: too little time to verify or confirm anything, or the disk is full.
    """
    with ExitStack() as whole:
        whole.enter_context(time_limit(minutes))
        start = time.monotonic()
        with _session(ask) as session:
            description = session.describe()
            opened_s = time.monotonic() - start
            whole.enter_context(alone_in(out / JOURNALS))  # makes it: only what can be opened does
            is_checked = granted()[0] > 1 and description.facts["platform"] == "cpu"
            # A process that confirms opens the program, and compiles it up to twice more.
            needed_s = N_PROCESSES * (1 + is_checked) * 2 * opened_s
            with time_limit(screening_s(seconds_left(), needed_s) / 60):
                candidates, n_drawn, default_ns = _screened(ask, out, pick, session, description)
        spare_s = seconds_left() - needed_s
        finalists = chosen_finalists(candidates)[: n_affordable(default_ns, spare_s - opened_s)]
        chosen, compared, is_confirmed = finalists[:1], None, True
        if len(finalists) > 1:
            n_rounds = max(LEAST_ROUNDS, 3 * ask.n_rounds // 8)
            # Without time for it the screened best is but confirmed.
            limit = time_limit(min(VERIFY_SHARE * seconds_left(), spare_s) / 60)
            with suppress(_TooFewRoundsError), limit:
                compared = _compared(ask, out, VERIFY, finalists, n_rounds)
        verified = compared.verified if compared else []
        if compared:
            best = [simplest_of_best(verified)] if verified else []
            chosen, compared = [own.candidate for own in best], compared._replace(verified=best)
        try:
            confirmed, together = _confirmed(ask, out, chosen, is_checked=is_checked)
        except _TooFewRoundsError:
            if compared is None:
                raise
            confirmed, together, is_confirmed = compared, None, False
    found = candidates, n_drawn, verified, confirmed, together, is_confirmed
    return Optimized(ask, tuple(_spaces_of(description)), description.facts, *found)


def _confirmed(
    ask: Ask, out: Path, chosen: Sequence[Candidate], *, is_checked: bool
) -> tuple[Compared, tuple[Ratio, Ratio] | None]:
    """Confirm the one chosen, if any, on one thread; a gain is then checked on all cores."""
    with time_limit(seconds_left() / (1 + (is_checked and bool(chosen))) / 60):
        confirmed = _in_processes(ask, out, CONFIRM, chosen)
    if not is_checked or not any(is_faster(v.ratio, confirmed.same) for v in confirmed.verified):
        return confirmed, None
    there = _in_processes(ask, out, ON_ALL_CORES, chosen)
    if not there.verified:  # it fails there
        return confirmed._replace(verified=[]), None
    return confirmed, (there.verified[0].ratio, there.same)


def screening_s(seconds: float, needed_s: float) -> float:
    """Return how much of the time is for screening, where confirming needs so many seconds."""
    return max(LEAST_SHARE * seconds, min(SCREEN_SHARE * seconds, seconds - needed_s))


def chosen_finalists(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return what is measured again: the fastest, the simplest of its equals, the next fastest."""
    faster = sorted((c for c in candidates if c.ratio < 1), key=lambda c: c.ratio)
    alike = [c for c in faster if c.ratio < ALIKE * faster[0].ratio]
    simplest = sorted(alike, key=lambda c: (np.count_nonzero(c.choice), c.ratio))
    chosen = dict.fromkeys([*faster[:1], *simplest[: N_FINALISTS // 2], *faster])
    return list(chosen)[:N_FINALISTS]


def n_affordable(default_ns: float, seconds: float) -> int:
    """Return how many can be verified in half of the time, 1 to 4; one alone is but confirmed."""
    visit_s = max(VISIT_BUDGET_NS, MIN_RUNS * default_ns) / 1e9
    return int(np.clip(seconds / 2 / visit_s / LEAST_ROUNDS - 2, 1, N_FINALISTS))


def simplest_of_best(verified: Sequence[Verified]) -> Verified:
    """Return the one that decides least of those that gain surely, and about as the fastest."""
    fastest = min(verified, key=lambda v: v.ratio.value)
    most = min(fastest.ratio.high + LEAST_GAIN, 1 - LEAST_GAIN)
    alike = [v for v in verified if v.ratio.high < most] or [fastest]
    return min(alike, key=lambda v: (np.count_nonzero(v.candidate.choice), v.ratio.value))


def _screened(
    ask: Ask, out: Path, pick: Pick | None, session: Session, description: Description
) -> tuple[list[Candidate], int, float]:
    """Visit the candidates once, and the fastest some times more; the default is the first.

    Returns:
        The distinct candidates, how many were drawn for them, and the default's shortest run in ns.
    """
    decided = tuple(_spaces_of(description))
    if set(ask.spaces) > set(decided):
        left_out = undecided(ask.program, ask.spaces, decided)
        log.info(f"{left_out}; goes on with {', '.join(decided)}")
    log.info(f"screen: up to {ask.n_candidates} candidates")
    guide = None
    if pick and {"layouts", TILES} & set(decided):  # else there is nothing that it knows
        guide = partial(_picked, pick, session, description)
    journal = _journal(ask, out, "screen", description)
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
    return list(found.values()), len(journal.choices), shortest[0]


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


def _compared(
    ask: Ask,
    out: Path,
    stage: str,
    candidates: Sequence[Candidate],
    n_rounds: int,
    *,
    share_s: float = float("inf"),
) -> Compared:
    """Measure candidates beside the default and the default again, in a fresh process.

    It takes its share of the time, and more of it only for the least of rounds.

    Raises:
        PipelineError: the default does not run.
        _TooFewRoundsError: the time is too short.
    """
    least = LEAST_ROUNDS if stage == VERIFY else LEAST_ROUNDS // N_PROCESSES
    rest_s = seconds_left() - share_s  # of those that come after
    with _session(ask, on_all_cores=stage.startswith(ON_ALL_CORES)) as session:
        description = session.describe()
        choices = np.zeros((2 + len(candidates), len(description.n_options)), np.int64)
        for row, candidate in zip(choices[2:], candidates, strict=True):
            row[:] = candidate.choice
        journal = _journal(ask, out, f"{stage}-{hash_rows(choices).sum():016x}", description)
        what = f"{ask.program}: {stage}"
        log.info(f"{stage}: {len(candidates)} beside the default, in a fresh process")
        visitor = Visitor(session, journal, what=what, total=len(choices) * n_rounds)
        with suppress(OutOfTime):
            order = generator(ask.seed, stage, ask.program)
            run_rounds(visitor, choices, n_rounds=min(least, n_rounds), rng=order)
            with time_limit((seconds_left() - rest_s) / 60):
                run_rounds(visitor, choices, n_rounds=n_rounds, rng=order)
        if journal.failed.keys() & {0, 1}:
            reason = next(iter(journal.failed.values()))
            raise PipelineError(f"{what}: the default failed: {reason}")
        ran = [config for config in range(len(choices)) if config not in journal.failed]
        turns = range(1, n_rounds + 1)
        done = [t for t in turns if all((config, t) in journal.visits for config in ran)]
        if len(done) < least:
            raise _TooFewRoundsError(
                f"{what}: {len(done)} rounds beside the default were done; expected "
                f"{least} or more; the same command goes on, with more --minutes"
            )
        default, same, *others = (
            np.array([journal.visits[config, t].runtime_ns for t in done], float) for config in ran
        )
        verified = [
            Verified(
                candidates[config - 2], paired_ratio(own, default), session.tell(choices[config])
            )
            for config, own in zip(ran[2:], others, strict=True)
        ]
    return Compared(verified, len(done), float(default.min()) / 1e6, paired_ratio(same, default))


def _in_processes(ask: Ask, out: Path, stage: str, chosen: Sequence[Candidate]) -> Compared:
    """Measure the one chosen, if any, in some processes; the intervals are over these.

    Where the time ends two are enough to confirm, with a wide interval; not to rule out a loss.
    """
    n_rounds, found = -(-ask.n_rounds // N_PROCESSES), list[Compared]()
    for left in range(N_PROCESSES, 0, -1):
        share_s = seconds_left() / left
        try:
            found.append(_compared(ask, out, f"{stage}-{left}", chosen, n_rounds, share_s=share_s))
        except _TooFewRoundsError:
            if stage != CONFIRM or len(found) < FEWEST_PROCESSES:
                raise
            break
    verified = [
        replace(alone[0], ratio=pooled([own.ratio.value for own in alone]))
        for alone in zip(*(own.verified for own in found), strict=False)  # none where one has none
    ]
    return Compared(
        verified,
        sum(own.n_rounds for own in found),
        min(own.default_ms for own in found),
        pooled([own.same.value for own in found]),
    )


def _spaces_of(description: Description) -> Mapping[str, int]:
    return description.spaces or {TILES: len(description.n_options)}


def _session(ask: Ask, *, on_all_cores: bool = False) -> Session:
    open_subject = partial(ask.open_decided, ask.program, ask.spaces, ask.device)
    return Session(open_subject, timeout_s=ask.timeout_s, on_all_cores=on_all_cores)


def _journal(ask: Ask, out: Path, name: str, description: Description) -> Journal:
    asked = {"program": ask.program, "spaces": list(ask.spaces), "seed": ask.seed}
    header = asked | {"program_digest": program_digest(description)} | dict(description.facts)
    return open_journal(out / JOURNALS / f"{name}.jsonl", header)


def paired_ratio(own_ns: Times, base_ns: Times, *, seed: int = 0) -> Ratio:
    """Return the median of runtimes (r,) over others, by round: what disturbs one disturbs both."""
    ratios = own_ns / base_ns
    drawn = np.random.default_rng(seed).integers(0, len(ratios), (DRAWS, len(ratios)))
    return Ratio(float(np.median(ratios)), *interval_of(np.median(ratios[drawn], axis=1)))


def pooled(ratios: Sequence[float]) -> Ratio:
    """Return the mean of processes' ratios and Student's interval, both of their logarithms."""
    from scipy.stats import t

    logs = np.log(ratios)
    half = t.isf((1 - CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return Ratio(*np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).tolist())


def is_faster(candidate: Ratio, same: Ratio) -> bool:
    """Tell whether a candidate is faster by more than the default differs from itself.

    Args:
        same: the default over the default, in the same rounds: the A/A pair.
    """
    return candidate.high < 1 - band(same)


def is_slower(candidate: Ratio, same: Ratio) -> bool:
    """Tell whether a candidate is slower by more than that."""
    return candidate.low > 1 + band(same)


def band(same: Ratio) -> float:
    """Return how far from 1 a ratio must lie to count, beside the A/A pair's."""
    return max(LEAST_GAIN, 1 - same.low, same.high - 1)
