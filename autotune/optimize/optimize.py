"""Choose a configuration of a JAX function that is verified to be faster on this machine.

1. `screen` visits candidates in one process. `--search` names the way to choose them.
2. `verify` measures the fastest few in a fresh process: the fastest of many by one visit is mostly
   lucky.
3. `confirm` measures the best of these in several more processes: on one thread, and then on all
   cores, where a loss must be ruled out. If it is not faster, the next finalist that gains follows.

Each visit goes to the journals of a session, so a call that was killed resumes, and processes of
all calls are pooled.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import numpy as np

from autotune.measure.journal import SEARCH_ROUND, Journal, Visitor, run_search
from autotune.measure.program import Decisions, Description
from autotune.measure.timing import MIN_RUNS, VISIT_BUDGET_NS
from autotune.measure.worker import NOT_DONE
from autotune.optimize.candidate import (
    CONFIRM,
    FAILED,
    MIN_GAIN,
    MIN_PROCESSES,
    N_PROCESSES,
    Comparison,
    OptimizeCandidate,
    Setting,
    Status,
    compare_rounds,
    setting_text,
)
from autotune.optimize.session import (
    MIN_ROUNDS,
    SCREEN,
    OptimizeRequest,
    OptimizeSession,
    TooFewMinutes,
    enough_time,
)
from autotune.optimize.stored import start_of, store_best, stored_path
from autotune.optimize.strategies import SEARCH, STORED, search_for
from autotune.plan import JOURNALS
from autotune.spaces import note_unknown_options, why_without
from common.errors import OutOfTime, PipelineError
from common.files import alone_in
from common.progress import log, out_of_time, seconds_left, time_limit
from common.reproducibility import generator
from data.graphs.graph import hash_rows

# The fastest by one visit are visited again while screening.
N_REVISITED, REVISIT_ROUNDS = 8, 3
MAX_FINALISTS, MIN_VISITS = 4, 8
# Rounds in which several finalists are compared.
MIN_VERIFY_ROUNDS = 8
# Screened times closer than 5 % count as equal: one visit is noisier than that.
EQUAL_TIME_RATIO = 1.05
# Shares of the time that is left. Screening gets its minimum even if confirming takes long.
SCREEN_SHARE, MIN_SCREEN_SHARE, VERIFY_SHARE = 0.6, 0.2, 0.25
# Batches of processes in which a call confirms a candidate, on one thread and on all cores.
MAX_BATCHES = 3


def budget(needed_s: float = 0.0) -> tuple[float, float]:
    """Return the seconds for screening, which leaves `needed_s` if it can, and for verifying."""
    left_s = seconds_left()
    screen_s = min(SCREEN_SHARE * left_s, left_s - needed_s)
    return max(MIN_SCREEN_SHARE * left_s, screen_s), VERIFY_SHARE * left_s


class Screening(NamedTuple):
    """The result of `screen`.

    Attributes:
        candidates: Distinct candidates, the default first.
        default_ns: The default's runtime in ns.
    """

    candidates: list[OptimizeCandidate]
    n_drawn: int
    default_ns: float


@dataclass(frozen=True)
class OptimizeResult:
    """All candidates of a call with their measurements.

    Attributes:
        default: The default over itself, next to the finalists. None if nothing was verified, but
            the stored candidate is confirmed.
    """

    request: OptimizeRequest
    description: Description
    screening: Screening
    candidates: list[OptimizeCandidate]
    default: Comparison | None
    default_description: Decisions

    @property
    def finalists(self) -> list[OptimizeCandidate]:
        return sorted((c for c in self.candidates if c.verified), key=lambda c: c.setting)

    @property
    def confirmed(self) -> list[OptimizeCandidate]:
        """Return the confirmed candidates: faster ones first, then undecided ones."""
        ran = [c for c in self.candidates if c.alone and c.status is not Status.FAILED]
        places = {Status.FASTER: 0, Status.UNDECIDED: 1}
        return sorted(ran, key=lambda c: (places.get(c.status, 2), c.comparison.ratio.value))

    @property
    def best(self) -> OptimizeCandidate | None:
        """Return the first confirmed candidate, or else the best finalist."""
        finalists = [c for c in self.finalists if c.status is not Status.FAILED]
        probable = [c for c in finalists if c.is_probable]
        for first in self.confirmed[:1]:
            if first.status is Status.FASTER or first.is_probable or not probable:
                return first
        unharmed = [c for c in finalists if c.verified and not c.verified.loses]
        able = probable or unharmed or finalists
        return _simplest_of_best(able) if able else None

    @property
    def measured(self) -> Comparison:
        """Return the comparison of the best candidate, or the default's with itself."""
        comparison = self.best.comparison if self.best else self.default
        assert comparison, "something was measured"
        return comparison

    @property
    def why_not(self) -> str:
        """Return the reason why no candidate is called faster, or ""."""
        return self.best.why_not if self.best else "no candidate was faster"

    @property
    def is_faster(self) -> bool:
        return not self.why_not

    @property
    def usable(self) -> OptimizeCandidate | None:
        """Return the best candidate if it is faster, or probably so."""
        return self.best if self.best and (self.is_faster or self.best.is_probable) else None


def optimize(
    request: OptimizeRequest,
    out: Path,
    *,
    minutes: float = 10.0,
    cache: Path | None = None,
    is_fresh: bool = False,
) -> OptimizeResult:
    """Screen and verify candidates, and confirm finalists until one is faster.

    Args:
        out: Folder of the journals. The same call resumes, also with other `n_candidates`.
        minutes: Time limit. The search gets the time that verifying and confirming leave.
        cache: Folder of the best settings of all programs. The call starts from the program's, and
            stores a better one. None uses no folder.
        is_fresh: Whether the call does not start from the stored setting.

    Raises:
        TooFewMinutes: The time was over before a candidate was verified.
    """
    start_s = time.monotonic()
    with time_limit(minutes), request.start_worker() as worker:
        with enough_time(f"{request.program}: the default was not compiled", minutes, start_s):
            description = worker.describe()
            process_s = 2 * (time.monotonic() - start_s)
            session = OptimizeSession(request, out, worker, description, process_s)
            default_description = session.describe(session.default)
            path = stored_path(session, cache) if cache else None
            if path and not is_fresh:
                session = replace(session, start=start_of(session, path))
        note_unknown_options(description)
        if missing := [space for space in request.spaces if space not in description.knobs]:
            reason = why_without(request.program, missing)
            log.info(f"{reason}; continues with {', '.join(description.knobs)}")
        # This makes the folder, so it comes after the program was opened.
        with alone_in(out / JOURNALS):
            with enough_time(f"{request.program}: the default was not measured", minutes, start_s):
                visitor = visit_default(session)
            start = _confirm_start(session)
            with enough_time(f"{request.program}: no candidate was verified", minutes, start_s):
                screening = screen(session, visitor)
                default, candidates = _verify_and_confirm(session, screening, start, minutes)
    facts = description, screening, candidates, default, default_description
    result = OptimizeResult(request, *facts)
    if path:
        store_best(session, path, result.usable, start.status if start else None)
    return result


def _confirm_start(session: OptimizeSession) -> OptimizeCandidate | None:
    """Confirm the stored setting in fresh processes. The search gets the rest of the time."""
    if not session.start:
        return None
    limit_s = max((1 - SCREEN_SHARE) * seconds_left(), MIN_PROCESSES * session.process_s)
    with time_limit(limit_s / 60):
        return confirm(session, OptimizeCandidate(session.start, STORED))


def _verify_and_confirm(
    session: OptimizeSession,
    screening: Screening,
    start: OptimizeCandidate | None,
    minutes: float,
) -> tuple[Comparison | None, list[OptimizeCandidate]]:
    """Return the default over itself, and all candidates with their measurements."""
    default, verified, least_ratio = None, dict[Setting, Comparison](), inf
    candidates = screening.candidates
    if start and start.setting not in {c.setting for c in candidates}:
        candidates = [*candidates, start]
    if start and start.status is Status.FASTER:
        least_ratio = start.comparison.ratio.value - MIN_GAIN
    problem = f"{session.request.program}: no candidate was verified"
    try:
        with enough_time(problem, minutes, time.monotonic()):
            default, verified = verify(session, screening)
    except TooFewMinutes:
        # One process of the stored setting is as much as verifying is.
        processes = session.confirming_processes(CONFIRM).get(session.start or (), [FAILED])
        if not start or FAILED in processes:
            raise
        verified = {start.setting: processes[0]}
    for candidate in _confirm_order(session.measured(candidates, verified)):
        is_better = candidate.comparison.ratio.value < least_ratio
        if not is_better or confirm(session, candidate).status is Status.FASTER:
            break
    return default, session.measured(candidates, verified)


def visit_default(session: OptimizeSession) -> Visitor:
    """Begin the screening. All ratios need the default, so it may take all of the time."""
    request, journal = session.request, session.journal(SCREEN)
    log.info(f"screen: up to {request.n_candidates} candidates")
    visitor = Visitor(session.worker, journal, label=request.program, total=request.n_candidates)
    visitor.visit(0, SEARCH_ROUND, np.array(session.default))
    if reason := journal.failed.get(0):
        fault = f"{request.program}: the default failed: {reason}; expected it to run"
        how = "; give more --timeout-s and another --out" * reason.startswith(NOT_DONE)
        raise PipelineError(fault + how)
    return visitor


def screen(session: OptimizeSession, visitor: Visitor) -> Screening:
    """Visit candidates once, and the fastest several times."""
    journal, sources = visitor.journal, ["default"]
    screen_s, _ = budget(session.process_s * (1 + N_PROCESSES * (1 + session.needs_all_cores)))
    try:
        with time_limit(screen_s / 60):
            search, sources = search_for(session)
            run_search(visitor, search)
            _visit_fastest_again(session, visitor)
    except OutOfTime:
        if len(journal.settings) == 1 and not session.start:
            raise
        log.info("the time for screening is over")
    default_ns = journal.runtimes_ns()[0]
    candidates = _distinct_settings(journal, sources, default_ns)
    failures = [candidate.failure for candidate in candidates[1:]]
    if failures and all(failures):
        fault = f"all {len(failures)} candidates but the default failed"
        raise PipelineError(f"{session.request.program}: {fault}: {failures[0]}")
    return Screening(candidates, len(journal.settings), default_ns)


def _visit_fastest_again(session: OptimizeSession, visitor: Visitor) -> None:
    journal = visitor.journal
    fastest = sorted(journal.runtimes_ns().items(), key=lambda pair: pair[1])[:N_REVISITED]
    configs = sorted({0, *(config for config, _ in fastest)})
    rng = generator(session.request.seed, "revisit", session.request.program)
    for turn in range(1, 1 + REVISIT_ROUNDS):
        for config in rng.permutation(configs).tolist():
            visitor.visit(config, turn, np.array(journal.settings[config]))


def _distinct_settings(
    journal: Journal, sources: Sequence[str], default_ns: int
) -> list[OptimizeCandidate]:
    """Return the settings of a journal. A search visits fast settings again."""
    runtimes_ns = journal.runtimes_ns()
    candidates: dict[Setting, OptimizeCandidate] = {}
    for config, options in sorted(journal.settings.items()):
        source = sources[config] if config < len(sources) else SEARCH
        ratio = runtimes_ns.get(config, inf) / default_ns
        candidate = OptimizeCandidate(tuple(options), source, ratio, journal.failed.get(config, ""))
        earlier = candidates.setdefault(candidate.setting, candidate)
        if ratio < earlier.screened and any(options):
            candidates[candidate.setting] = replace(earlier, screened=ratio)
    return [*candidates.values()]


def verify(
    session: OptimizeSession, screening: Screening
) -> tuple[Comparison, dict[Setting, Comparison]]:
    """Measure finalists next to the default, and the default again, in a fresh process.

    Returns:
        The default over itself, and the comparison of each finalist that ran.

    Raises:
        OutOfTime: There were too few rounds.
    """
    finalists = _finalists(session, screening)
    # At the end there may be no time to open the program again, if its worker was stopped.
    for setting in (session.default, *(c.setting for c in finalists)):
        session.describe(setting)
    settings = np.array([session.default] * 2 + sorted(c.setting for c in finalists))
    n, least = len(finalists), MIN_VERIFY_ROUNDS if len(finalists) > 1 else MIN_ROUNDS
    n_rounds = max(least, 3 * session.request.n_rounds // 8)
    name = f"verify-{hash_rows(settings).sum():016x}"
    settings_text = f"{n} next to the default" if n else "only the default and itself"
    log.info(f"verify: {settings_text}, in a fresh process")
    ran, times = session.measure(name, settings, (least, n_rounds), budget()[1])
    if len(times) < (MIN_VERIFY_ROUNDS if len(ran) > 3 else MIN_ROUNDS):
        raise OutOfTime(name)
    default, same, *all_ns = times.T
    verified = {
        tuple(settings[config].tolist()): compare_rounds(default, same, times_ns)
        for config, times_ns in zip(ran[2:], all_ns, strict=True)
    }
    return compare_rounds(default, same, same), verified


def confirm(session: OptimizeSession, candidate: OptimizeCandidate) -> OptimizeCandidate:
    """Measure a candidate in more processes: on one thread, and on all cores if it gains."""
    verified = {candidate.setting: candidate.verified} if candidate.verified else {}
    for _ in range(MAX_BATCHES):
        stage = candidate.open_stage
        if not stage or out_of_time():
            break
        n_stages = 2 if session.needs_all_cores and stage == CONFIRM else 1
        # Less than two processes in half of the time confirm nothing, so one stage gets all of it.
        if seconds_left() < n_stages * MIN_PROCESSES * session.process_s:
            n_stages = 1
        with time_limit(seconds_left() / n_stages / 60):
            _add_processes(session, stage, candidate.setting)
        (candidate,) = session.measured([candidate], verified)
    return candidate


def _add_processes(session: OptimizeSession, stage: str, setting: Setting) -> None:
    """Measure a setting in up to four more processes, while there is time."""
    settings = np.array([session.default] * 2 + [setting])
    n_rounds = MIN_ROUNDS, max(MIN_ROUNDS, -(-session.request.n_rounds // N_PROCESSES))
    process_name = f"{stage}-{hash_rows(settings[2:])[0]:016x}-{{}}".format
    n_known = len(session.confirming_processes(stage).get(setting, ()))
    text = shorten(setting_text(session.describe(setting)), width=120, placeholder=" …")
    log.info(f"{stage}: {text}, next to the default, in fresh processes")
    if stage == CONFIRM and not n_known and not session.check_flags(process_name(1), setting):
        return
    for number in range(n_known + 1, (n_known // N_PROCESSES + 1) * N_PROCESSES + 1):
        if out_of_time():
            return
        share_s = seconds_left() / (N_PROCESSES - (number - 1) % N_PROCESSES)
        ran, times = session.measure(process_name(number), settings, n_rounds, share_s)
        if len(ran) < 3 or len(times) < MIN_ROUNDS:
            return


def _finalists(session: OptimizeSession, screening: Screening) -> list[OptimizeCandidate]:
    """Return distinct candidates: the fastest, simple ones of equal time, then the next ones.

    One candidate shares no decision with the fastest, which may be a loss on all cores.
    """
    faster = sorted((c for c in screening.candidates if c.screened < 1), key=lambda c: c.screened)
    equal = [c for c in faster if c.screened < EQUAL_TIME_RATIO * faster[0].screened]
    simplest = sorted(equal, key=lambda c: (len(c.decided), c.screened))[: MAX_FINALISTS // 2]
    disjoint = [c for c in faster if not c.decided & faster[0].decided][:1]
    by_speed = [*dict.fromkeys([*faster[:1], *simplest, *disjoint, *faster])]
    return _distinct(by_speed, session.default, session.code, _n_affordable(screening.default_ns))


def _distinct(
    by_speed: Sequence[OptimizeCandidate],
    default: Setting,
    code: Callable[[Setting], str],
    n_wanted: int,
) -> list[OptimizeCandidate]:
    """Return candidates with distinct code. The simplest candidate of equal code is chosen."""
    by_code = dict[str, OptimizeCandidate]()
    for candidate in by_speed:
        if len(by_code) == n_wanted:
            break
        key = code(candidate.setting)
        if key != code(default):
            by_code[key] = min(by_code.get(key, candidate), candidate, key=lambda c: len(c.decided))
    return [*by_code.values()]


def _n_affordable(default_ns: float) -> int:
    visit_s = max(VISIT_BUDGET_NS, MIN_RUNS * default_ns) / 1e9
    return int(np.clip(budget()[1] / visit_s / MIN_VISITS - 2, 1, MAX_FINALISTS))


def _confirm_order(candidates: Sequence[OptimizeCandidate]) -> Iterator[OptimizeCandidate]:
    """Yield the finalists that gain, best first, or else the best one without a loss."""
    able = [c for c in candidates if c.verified and not c.verified.loses]
    gaining = [c for c in able if c.verified and c.verified.gains]
    if able and not gaining:
        yield _simplest_of_best(able)
    while gaining:
        yield (best := _simplest_of_best(gaining))
        gaining.remove(best)


def _simplest_of_best(finalists: Sequence[OptimizeCandidate]) -> OptimizeCandidate:
    """Return the simplest of the finalists that gain about as much as the fastest."""
    ratios = {c.setting: c.verified.ratio for c in finalists if c.verified}
    fastest = min(finalists, key=lambda c: ratios[c.setting])
    most = min(ratios[fastest.setting].high + MIN_GAIN, 1 - MIN_GAIN)
    equal = [c for c in finalists if ratios[c.setting].high < most] or [fastest]
    return min(equal, key=lambda c: (len(c.decided), ratios[c.setting]))
