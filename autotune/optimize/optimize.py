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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autotune.measure.search import SEARCH_ROUND, Guide, Visitor, genetic_search, run_search
from autotune.measure.timing import MIN_RUNS, VISIT_BUDGET_NS
from autotune.measure.worker import NOT_DONE, Description, Told, opening_s
from autotune.optimize.confirm import (
    FEWEST_ROUNDS,
    JOURNALS,
    LEAST_GAIN,
    N_PROCESSES,
    RANKED,
    SEARCH,
    STEPS,
    Ask,
    Call,
    Candidate,
    Choice,
    Contestant,
    Decided,
    Pick,
    Pool,
    Ratio,
    confirm,
    contestants,
    half_confirmed,
    measured,
    of_one_process,
    rounds_of,
    session_of,
)
from autotune.spaces import TILES, menu, undecided
from common.errors import OutOfTime, PipelineError
from common.files import alone_in
from common.progress import log, out_of_time, seconds_left, time_limit
from common.reproducibility import generator
from data.graphs.graph import hash_rows
from data.hlo.choices import Choices, Space, draw_choices

VERIFY = "verify"
N_AGAIN, AGAIN_ROUNDS = 8, 3  # the fastest by one visit, visited again while screening
N_FINALISTS, LEAST_ROUNDS = 4, 8
ALIKE = 1.05  # screened times that may be one and the same
SCREEN_SHARE, VERIFY_SHARE, SIMPLIFY_SHARE = 0.6, 0.25, 0.1  # of the time; of what is left then
LEAST_SHARE = 0.2  # of the time for screening, however long confirming takes
DRAWN, PICKED = 1_000, 15  # layouts that a ranker picks from, and how many it proposes


@dataclass(frozen=True)
class Optimized:
    """What was found. All ratios are of runtimes over the default's: below 1 is faster.

    Attributes:
        spaces: those that there were to decide.
        candidates: the distinct ones; `n_drawn` counts those that equal another too, and `is_over`
            tells that the search ended before its time did.
        finalists: as one process verified them, of the last pass that had the time.
        waiting: finalists that gain and were not confirmed.
        contestants: the best first; without time to confirm any the best of the finalists.
        halves: what the time was over in the middle of confirming.
        verified: by choice what all processes that verified it measured, of all calls.
        default: the default and itself, beside the finalists.
        default_told: what the default is; of a kernel its first tile.
    """

    ask: Ask
    spaces: tuple[str, ...]
    facts: Mapping[str, str]
    candidates: list[Candidate]
    n_drawn: int
    is_over: bool
    finalists: list[Contestant]
    default: Pool
    default_told: Told
    waiting: list[Contestant] = field(default_factory=list)
    contestants: list[Contestant] = field(default_factory=list)
    halves: list[Told] = field(default_factory=list)
    verified: Mapping[Choice, list[Ratio]] = field(default_factory=dict)

    @property
    def best(self) -> Contestant | None:
        return next(iter(self.contestants), None)

    @property
    def measured(self) -> Pool:
        """Return what stands behind the figures: the best's, or the default's own."""
        return self.best.alone if self.best else self.default

    @property
    def why_not(self) -> str:
        """Say why nothing is called faster; "" if something is."""
        return self.best.why_not if self.best else "nothing that was tried was faster"

    @property
    def is_faster(self) -> bool:
        return not self.why_not

    @property
    def is_open(self) -> bool:
        """Tell whether another candidate may be faster where the one that was confirmed is not."""
        return not self.is_faster and any(one.alone.gains for one in self.finalists)

    def earlier(self, finalist: Contestant) -> list[Ratio]:
        """Return what other processes measured of a finalist that verified it, the oldest first."""
        ratios = self.verified.get(finalist.candidate.choice, [])
        return [ratio for ratio in ratios if ratio != finalist.alone.ratio]

    @property
    def undecided(self) -> Contestant | None:
        """Return the best that more processes may decide; after some, if there is nothing else."""
        left = [one for one in self.contestants if one.is_undecided]
        is_all = not (self.is_faster or self.is_open)
        return next((one for one in left if one.is_due or is_all), None)


class _Screened(NamedTuple):
    """The distinct candidates, how many were drawn for them, and whether the search ended.

    `left_out` counts by source what is tried first, but that so few candidates leave no room for.
    """

    candidates: list[Candidate]
    n_drawn: int
    default_ns: float
    is_over: bool
    left_out: Counter[str]


def optimize(ask: Ask, out: Path, *, minutes: float = 10.0, pick: Pick | None = None) -> Optimized:
    """Search, verify and confirm; see the module.

    Args:
        out: holds the journals; the same call goes on, also with other `n_candidates`.
        minutes: how long it may take; the search gets what verifying and confirming leave.
        pick: ranks layouts or tiles, and proposes some; one of a run's models leads the search too.

    Raises:
        UsageError: `out` holds another call's journals, or no space can be decided.
        ProgramFailed: the program cannot be opened, or its default does not run.
        PipelineError: too little time to verify anything, or the disk is full.
    """
    with time_limit(minutes), session_of(ask) as session:
        start = time.monotonic()
        description = session.describe(timeout_s=opening_s())
        if not ask.run and TILES not in _spaces_of(description):
            pick = None  # what needs no training knows tiles alone
        call = Call(ask, out, pick, session, description)
        # A process that confirms opens the program, and compiles it up to twice more.
        needed_s = (1 + N_PROCESSES * (1 + call.is_checked)) * 2 * (time.monotonic() - start)
        with alone_in(out / JOURNALS):  # makes it: only what can be opened does
            _say_what_is_screened(call)
            screened = _screened(call, needed_s)
            if screened.left_out:
                told = ", ".join(f"{source} {n}" for source, n in screened.left_out.items())
                n_first = ask.n_candidates + screened.left_out.total()
                left_out = f"--candidates {ask.n_candidates} leaves out what is tried first: {told}"
                log.info(f"{left_out}; {n_first} would try it all")
            if not screened.is_over:
                log.info("the time for screening is over")
            start = time.monotonic()
            found = _judged(call, screened, is_first=True)
            needed_s = time.monotonic() - start
            while seconds_left() > needed_s / N_PROCESSES:
                undecided_one = found.undecided
                if found.is_open and not undecided_one:
                    found = _judged(call, screened, is_first=False)
                elif not screened.is_over:
                    screened = _screened(call, needed_s)
                    found = _judged(call, screened, is_first=False)
                elif undecided_one:
                    confirm(call, undecided_one.candidate.choice, is_first=False)
                    found = _pooled(call, found)
                else:
                    break
    return found


def _judged(call: Call, screened: _Screened, *, is_first: bool) -> Optimized:
    """Verify finalists and confirm the best, after the first pass only what is undecided or new."""
    candidates, n_drawn, default_ns, is_over, _ = screened
    known = contestants(call, candidates)
    kept = [one.candidate for one in known if not one.why_not or one.is_due]
    begun = {one.candidate.choice for one in known}
    kept += [Candidate(c, "simplified") for c in half_confirmed(call) if c not in begun]
    lost = [one for one in known if one.candidate not in kept]
    suspect = shared_by([one.candidate for one in lost if one.gains])
    unchanged = (0,) * len(call.description.n_options)
    others = [unchanged, *(one.candidate.choice for one in lost)]
    ordered = [*kept[: N_FINALISTS // 2], *chosen_finalists(candidates, suspect)]
    finalists = distinct(ordered, others, call.code, n_affordable(default_ns))
    verified, default = _verified(call, finalists)
    if default is None:  # no time: what an earlier pass or call verified is no less true
        verified, default = _verified_before(call, candidates)
    if default is None and not known:
        raise PipelineError(
            f"{call.ask.program}: there was no time to verify anything; expected {FEWEST_ROUNDS} "
            "rounds beside the default or more; the same command goes on, with more --minutes"
        )
    if chosen := next_to_confirm(verified, kept, suspect):
        chosen = chosen if chosen in kept else simplified(chosen, call.code)
        confirm(call, chosen.choice, is_first=is_first)
    spaces, facts = tuple(_spaces_of(call.description)), call.description.facts
    beside = default or known[0].alone
    told = call.tell(unchanged)
    tried = candidates, n_drawn, is_over
    found = Optimized(call.ask, spaces, facts, *tried, verified, beside, told)
    return _pooled(call, replace(found, verified=_ever_verified(call)))


def _pooled(call: Call, found: Optimized) -> Optimized:
    """Look at all that was confirmed by now."""
    verified, known = found.finalists, contestants(call, found.candidates)
    codes = {call.code(one.candidate.choice) for one in known}
    waiting = [v for v in verified if v.alone.gains and call.code(v.candidate.choice) not in codes]
    able = [v for v in verified if not v.alone.loses] or verified
    best = [simplest_of_best(able, ())] if able else []
    ran = [one for one in known or best if one.runs]
    halves = [call.tell(choice) for choice in half_confirmed(call)]
    return replace(found, waiting=waiting, contestants=ran, halves=halves)


def screening_s(seconds: float, needed_s: float) -> float:
    """Return how much of the time is for screening, where confirming needs so many seconds."""
    return max(LEAST_SHARE * seconds, min(SCREEN_SHARE * seconds, seconds - needed_s))


def shared_by(lost: Sequence[Candidate]) -> Decided:
    """Return the decisions that all have in common which gained, but not on all cores."""
    return frozenset.intersection(*(c.decided for c in lost)) if lost else frozenset()


def chosen_finalists(
    candidates: Sequence[Candidate], suspect: Decided = frozenset()
) -> list[Candidate]:
    """Order what may be measured again: the fastest, the simplest of its equals, the next ones.

    Those with all decisions that are suspect come last; without any suspect that is all.
    """
    faster = sorted((c for c in candidates if c.ratio < 1), key=lambda c: c.ratio)
    alike = [c for c in faster if c.ratio < ALIKE * faster[0].ratio]
    simplest = sorted(alike, key=lambda c: (c.n_decided, c.ratio))
    ordered = dict.fromkeys([*faster[:1], *simplest[: N_FINALISTS // 2], *faster])
    return sorted(ordered, key=lambda c: suspect <= c.decided)


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


def n_affordable(default_ns: float) -> int:
    """Return how many can be verified in their share of the time, 1 to 4."""
    visit_s = max(VISIT_BUDGET_NS, MIN_RUNS * default_ns) / 1e9
    n_visits = VERIFY_SHARE * seconds_left() / visit_s
    return int(np.clip(n_visits / LEAST_ROUNDS - 2, 1, N_FINALISTS))


def next_to_confirm(
    verified: Sequence[Contestant], known: Sequence[Candidate], suspect: Decided
) -> Candidate | None:
    """Return the best that gains and lacks one of the suspect decisions; else the best of all.

    What verifying shows to be slower is none, unless known: it would have to gain 2 % to count.
    """
    able = [v for v in verified if v.candidate in known or not v.alone.loses]
    others = [v for v in able if v.alone.gains and not suspect <= v.candidate.decided]
    return simplest_of_best(others or able, known).candidate if able else None


def simplest_of_best(verified: Sequence[Contestant], known: Sequence[Candidate]) -> Contestant:
    """Return the one that decides least of those that gain surely, and about as the fastest.

    One that is known to be a contestant comes first: another would be one more to choose from.
    """
    fastest = min(verified, key=lambda v: v.alone.ratio)
    most = min(fastest.alone.ratio.high + LEAST_GAIN, 1 - LEAST_GAIN)
    alike = [v for v in verified if v.alone.ratio.high < most] or [fastest]
    return min(
        alike, key=lambda v: (v.candidate not in known, v.candidate.n_decided, v.alone.ratio)
    )


def _say_what_is_screened(call: Call) -> None:
    ask, decided = call.ask, tuple(_spaces_of(call.description))
    if set(ask.spaces) > set(decided):
        left_out = undecided(ask.program, ask.spaces, decided)
        log.info(f"{left_out}; goes on with {', '.join(decided)}")
    log.info(f"screen: up to {ask.n_candidates} candidates")


def _screened(call: Call, needed_s: float) -> _Screened:
    """Visit candidates once, and the fastest some times more, but for the time that is needed."""
    ask, description = call.ask, call.description
    is_known = bool(set(RANKED) & set(_spaces_of(description)))  # to a ranker
    guide = call.picked if call.pick and is_known else None
    leads = guide if ask.run else None  # what needs no training is no guide to what is better
    journal, is_over = call.journal("screen"), False
    visitor = Visitor(call.session, journal, what=ask.program, total=ask.n_candidates)
    with suppress(OutOfTime):  # in all the time that is left: without the default nothing is told
        visitor.visit(0, SEARCH_ROUND, np.zeros(len(description.n_options), np.int64))
    with suppress(OutOfTime), time_limit(screening_s(seconds_left(), needed_s) / 60):
        sources, proposed = _proposed(ask, description, guide)
        space = Space(description.n_options, description.groups)
        rng = generator(ask.seed, "optimize", ask.program)
        n, first = ask.n_candidates, proposed[: ask.n_candidates]
        run_search(visitor, genetic_search(space, n, rng, first=first, guide=leads))
        fastest = sorted(journal.shortest_ns().items(), key=lambda pair: pair[1])[:N_AGAIN]
        again = sorted({0, *(config for config, _ in fastest)})
        for turn in range(1, 1 + AGAIN_ROUNDS):
            for config in rng.permutation(again).tolist():
                visitor.visit(config, turn, np.array(journal.choices[config]))
        is_over = True
    shortest = journal.shortest_ns()
    if 0 not in shortest:
        if (reason := journal.failed.get(0, "")) and not reason.startswith(NOT_DONE):
            raise PipelineError(f"{ask.program}: the default failed: {reason}; expected it to run")
        raise PipelineError(
            f"{ask.program}: the default was not measured ({reason or 'no time'}); "
            "expected it to run within the time; the same command goes on, with more --minutes or "
            "--timeout-s"
        )
    found: dict[Choice, Candidate] = {}
    for config, genes in sorted(journal.choices.items()):
        source = sources[config] if config < len(sources) else SEARCH
        ratio = shortest.get(config, float("inf")) / shortest[0]
        candidate = Candidate(tuple(genes), source, ratio, journal.failed.get(config, ""))
        known = found.setdefault(candidate.choice, candidate)
        if ratio < known.ratio and any(genes):  # a search comes back to what is fast
            found[candidate.choice] = replace(known, ratio=ratio)
    left_out = Counter(sources[ask.n_candidates :])
    return _Screened(list(found.values()), len(journal.choices), shortest[0], is_over, left_out)


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
        sources += ["ranker" if ask.run else STEPS] * len(best)
    return sources, np.array(rows)


def _verified(call: Call, finalists: Sequence[Candidate]) -> tuple[list[Contestant], Pool | None]:
    """Measure finalists beside the default, and the default again, in a fresh process.

    Returns:
        Those that ran, and the default over itself; none without time for enough rounds.
    """
    ordered = sorted(finalists, key=lambda candidate: candidate.choice)
    choices = np.zeros((2 + len(ordered), len(call.description.n_options)), np.int64)
    for row, candidate in zip(choices[2:], ordered, strict=True):
        row[:] = candidate.choice
    least = _least_rounds(len(ordered))
    n_rounds, share_s = max(least, 3 * call.ask.n_rounds // 8), VERIFY_SHARE * seconds_left()
    name = f"{VERIFY}-{hash_rows(choices).sum():016x}"
    who = f"{len(ordered)} beside the default" if ordered else "nothing but the default and itself"
    said = f"{VERIFY}: {who}, in a fresh process"
    ran, times = measured(call, name, choices, (least, n_rounds), share_s, said=said)
    if len(times) < least:
        return [], None
    default, same, *others = times.T
    verified = []
    for config, own in zip(ran[2:], others, strict=True):
        candidate, pool = ordered[config - 2], of_one_process(default, same, own)
        told = call.tell(candidate.choice)
        verified.append(Contestant(candidate, told, pool, None, call.is_checked))
    return verified, of_one_process(default, same, same)


def _verified_before(
    call: Call, candidates: Sequence[Candidate]
) -> tuple[list[Contestant], Pool | None]:
    """Return as `_verified` what the last pass measured that had the time for it, if one had."""
    known = {candidate.choice: candidate for candidate in candidates}
    for default, pools in reversed(_passes(call)):
        if default.n_rounds >= _least_rounds(len(pools)):
            return [
                Contestant(
                    known.get(choice, Candidate(choice, "simplified")),
                    *(call.tell(choice), pool, None, call.is_checked),
                )
                for choice, pool in pools.items()
            ], default
    return [], None


def _least_rounds(n_finalists: int) -> int:
    return LEAST_ROUNDS if n_finalists > 1 else FEWEST_ROUNDS  # of one nothing is chosen


def _ever_verified(call: Call) -> dict[Choice, list[Ratio]]:
    """Return by choice what each process measured that verified it, the oldest first."""
    found: dict[Choice, list[Ratio]] = {}
    for _, pools in _passes(call):
        for choice, pool in pools.items():
            found.setdefault(choice, []).append(pool.ratio)
    return found


def _passes(call: Call) -> list[tuple[Pool, dict[Choice, Pool]]]:
    """Return of each process that verified some the default over itself, and them by choice.

    The oldest first; what had no time for two rounds is left out.
    """
    found = []
    paths = (call.out / JOURNALS).glob(f"{VERIFY}-*.jsonl")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        journal = call.journal(path.stem)
        if journal.failed.keys() & {0, 1}:
            continue  # the default itself
        ran, times = rounds_of(journal, max(2, len(journal.choices)))
        if len(times) < FEWEST_ROUNDS:
            continue
        default, same, *others = times.T
        pools = {
            tuple(journal.choices[config]): of_one_process(default, same, own)
            for config, own in zip(ran[2:], others, strict=True)
        }
        found.append((of_one_process(default, same, same), pools))
    return found


def _spaces_of(description: Description) -> Mapping[str, int]:
    return description.spaces or {TILES: len(description.n_options)}
