"""Choose a configuration of a JAX function that is verified to be faster on this machine.

1. `screen` visits candidates in one process. `--search` names the way to choose them.
2. `verify` measures the fastest few in a fresh process: the fastest of many by one visit is mostly
   lucky.
3. `confirm` measures the best of these in several more processes: on one thread, without
   decisions that change nothing, and then on all cores, where a loss must be ruled out.

A call repeats these steps while there is time and something to decide. Each visit goes to the
journals of a session, so a call that was killed resumes, and processes of all calls are pooled.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import numpy as np

from autotune.measure.search import SEARCH_ROUND, Visitor, run_search
from autotune.measure.timing import MIN_RUNS, VISIT_BUDGET_NS
from autotune.measure.worker import NOT_DONE, Decisions, opening_s
from autotune.optimize.candidate import (
    MIN_GAIN,
    N_PROCESSES,
    SIMPLIFIED,
    Candidate,
    Comparison,
    Decided,
    Setting,
    Status,
    setting_text,
)
from autotune.optimize.session import (
    CONFIRM,
    JOURNALS,
    MIN_ROUNDS,
    ON_ALL_CORES,
    SCREEN,
    VERIFY,
    OptimizeRequest,
    OptimizeSession,
    Pick,
    min_verify_rounds,
)
from autotune.optimize.strategies import SEARCH, search_for
from autotune.spaces import TILES, undecided
from common.errors import OutOfTime, PipelineError
from common.files import alone_in
from common.progress import log, out_of_time, seconds_left, time_limit
from common.reproducibility import generator
from data.graphs.graph import hash_rows

# The fastest by one visit are visited again while screening.
N_REVISITED, REVISIT_ROUNDS = 8, 3
MAX_FINALISTS, MIN_VISITS = 4, 8
# Screened times closer than 5 % count as equal: one visit is noisier than that.
EQUAL_TIME_RATIO = 1.05
# Shares of the time; VERIFY and SIMPLIFY are of the time that is left then.
SCREEN_SHARE, VERIFY_SHARE, SIMPLIFY_SHARE = 0.6, 0.25, 0.1
MIN_SCREEN_SHARE = 0.2  # however long confirming takes
MAX_MESSAGE = 120  # characters of a progress line about a candidate


class Screening(NamedTuple):
    """The result of `screen`.

    Attributes:
        candidates: Distinct candidates, the default first.
        n_drawn: Number of candidates with repetitions.
        default_ns: The default's shortest runtime in ns.
        is_over: True if the search ended before its time did.
    """

    candidates: list[Candidate]
    n_drawn: int
    default_ns: float
    is_over: bool


@dataclass(frozen=True)
class OptimizeResult:
    """All candidates of a call, and what was measured of them.

    Attributes:
        request: What was optimised.
        spaces: Spaces in which the program has something to decide.
        facts: The device, versions and the function's digest.
        candidates: Screened candidates in their order, then simplified ones.
        n_drawn: Number of screened candidates with repetitions.
        is_over: True if the search ended before its time did.
        default: The default over itself, next to the finalists.
        default_description: The default's decisions, for example a kernel's first tile.
    """

    request: OptimizeRequest
    spaces: tuple[str, ...]
    facts: Mapping[str, str]
    candidates: list[Candidate]
    n_drawn: int
    is_over: bool
    default: Comparison
    default_description: Decisions

    @property
    def tried(self) -> list[Candidate]:
        return [c for c in self.candidates if c.source != SIMPLIFIED]

    @property
    def finalists(self) -> list[Candidate]:
        """Return the candidates of the newest pass that had the time to verify some."""
        return sorted((c for c in self.candidates if c.is_finalist), key=lambda c: c.setting)

    @property
    def confirmed(self) -> list[Candidate]:
        """Return the confirmed candidates: faster ones first, then undecided ones."""
        ran = [c for c in self.candidates if c.alone and c.status is not Status.FAILED]
        order = (Status.FASTER, Status.UNDECIDED)

        def rank(candidate: Candidate) -> tuple[int, float]:
            place = order.index(candidate.status) if candidate.status in order else len(order)
            return place, candidate.comparison.ratio.value

        return sorted(ran, key=rank)

    @property
    def waiting(self) -> list[Candidate]:
        """Return finalists that gain and were not confirmed."""
        return [
            c
            for c in self.finalists
            if c.verified and c.verified.gains and not c.is_duplicate and not c.alone
        ]

    @property
    def half_confirmed(self) -> list[Candidate]:
        return [c for c in self.candidates if c.is_half_confirmed]

    @property
    def best(self) -> Candidate | None:
        """Return the first confirmed candidate; else the best finalist."""
        if self.confirmed:
            return self.confirmed[0]
        finalists = [c for c in self.finalists if c.status is not Status.FAILED]
        able = [c for c in finalists if c.verified and not c.verified.loses] or finalists
        return _simplest_of_best(able, ()) if able else None

    @property
    def measured(self) -> Comparison:
        """Return the best candidate's comparison, or the default's own."""
        return self.best.comparison if self.best else self.default

    @property
    def why_not(self) -> str:
        """Return the reason why nothing is called faster; "" if something is."""
        return self.best.why_not if self.best else "no candidate was faster"

    @property
    def is_faster(self) -> bool:
        return not self.why_not

    @property
    def is_open(self) -> bool:
        """Return True if another candidate may be faster than those that were confirmed."""
        return not self.is_faster and any(c.verified and c.verified.gains for c in self.finalists)

    @property
    def undecided(self) -> Candidate | None:
        """Return the best candidate that more processes may decide.

        One that had many processes comes only if nothing else can be faster.
        """
        left = [c for c in self.confirmed if c.status is Status.UNDECIDED]
        is_all = not (self.is_faster or self.is_open)
        return next((c for c in left if c.is_due or is_all), None)


def optimize(
    request: OptimizeRequest, out: Path, *, minutes: float = 10.0, pick: Pick | None = None
) -> OptimizeResult:
    """Screen, verify and confirm candidates until the time is over or all is decided.

    Args:
        request: What to optimise.
        out: Folder of the journals. The same call resumes, also with other `n_candidates`.
        minutes: Time limit. The search gets the time that verifying and confirming leave.
        pick: Ranker of layouts or tiles. One of a run's models also guides the search.

    Raises:
        UsageError: `out` has the journals of another call, or no space can be decided.
        ProgramFailed: The program cannot be opened, or its default does not run.
        PipelineError: There is too little time to verify anything, or the disk is full.
    """
    with time_limit(minutes), request.open_worker() as worker:
        start = time.monotonic()
        description = worker.describe(timeout_s=opening_s())
        if not request.run and description.spaces and TILES not in description.spaces:
            pick = None  # the heuristic without training ranks tiles only
        session = OptimizeSession(request, out, pick, worker, description)
        # A confirming process opens the program, and compiles it up to twice more.
        n_processes = 1 + N_PROCESSES * (1 + session.needs_all_cores)
        needed_s = n_processes * 2 * (time.monotonic() - start)
        if set(request.spaces) > set(session.spaces):
            left_out = undecided(request.program, request.spaces, tuple(session.spaces))
            log.info(f"{left_out}; goes on with {', '.join(session.spaces)}")
        log.info(f"screen: up to {request.n_candidates} candidates")
        with alone_in(out / JOURNALS):  # makes the folder, after the program was opened
            screening = screen(session, needed_s)
            if not screening.is_over:
                log.info("the time for screening is over")
            start = time.monotonic()
            result = _verify_and_confirm(session, screening, is_first=True)
            needed_s = time.monotonic() - start
            while seconds_left() > needed_s / N_PROCESSES:
                candidate = result.undecided
                if result.is_open and not candidate:
                    result = _verify_and_confirm(session, screening, is_first=False)
                elif not screening.is_over:
                    screening = screen(session, needed_s)
                    result = _verify_and_confirm(session, screening, is_first=False)
                elif candidate:
                    confirm(session, candidate.setting, is_first=False)
                    result = _read_result(session, screening)
                else:
                    break
    return result


def screen(session: OptimizeSession, needed_s: float) -> Screening:
    """Visit candidates once, and the fastest several times.

    Args:
        session: The call.
        needed_s: Seconds that verifying and confirming need.
    """
    request = session.request
    journal, is_over = session.journal(SCREEN), False
    visitor = Visitor(session.worker, journal, what=request.program, total=request.n_candidates)
    sources = ["default"]
    with suppress(OutOfTime):  # in all the time that is left: everything is relative to the default
        visitor.visit(0, SEARCH_ROUND, np.array(session.default))
    left_s = seconds_left()
    share_s = max(MIN_SCREEN_SHARE * left_s, min(SCREEN_SHARE * left_s, left_s - needed_s))
    with suppress(OutOfTime), time_limit(share_s / 60):
        search, sources = search_for(session)
        run_search(visitor, search)
        fastest = sorted(journal.shortest_ns().items(), key=lambda pair: pair[1])[:N_REVISITED]
        revisited = sorted({0, *(config for config, _ in fastest)})
        rng = generator(request.seed, "revisit", request.program)
        for turn in range(1, 1 + REVISIT_ROUNDS):
            for config in rng.permutation(revisited).tolist():
                visitor.visit(config, turn, np.array(journal.settings[config]))
        is_over = True
    shortest = journal.shortest_ns()
    if 0 not in shortest:
        if (reason := journal.failed.get(0, "")) and not reason.startswith(NOT_DONE):
            reason = f"failed: {reason}; expected it to run"
            raise PipelineError(f"{request.program}: the default {reason}")
        raise PipelineError(
            f"{request.program}: the default was not measured ({reason or 'no time'}); expected it "
            "to run within the time; the same command resumes, with more --minutes or --timeout-s"
        )
    found: dict[Setting, Candidate] = {}
    for config, options in sorted(journal.settings.items()):
        source = sources[config] if config < len(sources) else SEARCH
        ratio = shortest.get(config, float("inf")) / shortest[0]
        candidate = Candidate(tuple(options), source, ratio, journal.failed.get(config, ""))
        known = found.setdefault(candidate.setting, candidate)
        if ratio < known.screened and any(options):  # a search comes back to fast settings
            found[candidate.setting] = replace(known, screened=ratio)
    return Screening([*found.values()], len(journal.settings), shortest[0], is_over)


def verify(session: OptimizeSession, finalists: Sequence[Candidate]) -> None:
    """Measure finalists next to the default, and the default again, in a fresh process.

    Args:
        session: The call, whose journals get the visits.
        finalists: Candidates of distinct code.
    """
    settings = np.array([session.default] * 2 + sorted(c.setting for c in finalists))
    least = min_verify_rounds(len(finalists))
    n_rounds = max(least, 3 * session.request.n_rounds // 8)
    name = f"{VERIFY}-{hash_rows(settings).sum():016x}"
    n = len(finalists)
    what = f"{n} next to the default" if n else "nothing but the default and itself"
    message = f"{VERIFY}: {what}, in a fresh process"
    share_s = VERIFY_SHARE * seconds_left()
    session.measure(name, settings, (least, n_rounds), share_s, message=message)
    (session.out / JOURNALS / f"{name}.jsonl").touch()  # the newest pass


def confirm(session: OptimizeSession, setting: Setting, *, is_first: bool) -> None:
    """Measure a setting in more processes: on one thread, and on all cores if it gains.

    Args:
        session: The call, whose journals get the visits.
        setting: Setting of a candidate.
        is_first: True in the first pass of a call, which adds processes to a decided one too.
    """

    def read() -> Candidate:
        known = {c.setting: c for c in session.read_candidates([])}
        return known.get(setting, Candidate(setting, SIMPLIFIED))

    before = read()
    if is_first or not (before.alone and before.alone.gains):
        with time_limit(seconds_left() / (1 + session.needs_all_cores) / 60):
            _add_processes(session, CONFIRM, setting)
    after = read()
    gains = after.alone is not None and after.alone.gains
    if session.needs_all_cores and gains and (is_first or after.status is Status.UNDECIDED):
        _add_processes(session, ON_ALL_CORES, setting)


def _add_processes(session: OptimizeSession, stage: str, setting: Setting) -> None:
    """Measure a setting in up to four more processes, while there is time."""
    settings = np.array([session.default] * 2 + [setting])
    n_rounds = MIN_ROUNDS, max(MIN_ROUNDS, -(-session.request.n_rounds // N_PROCESSES))
    n_known = len(session.confirming_processes(stage).get(setting, ()))
    text = setting_text(session.describe(setting))
    message = f"{stage}: {shorten(text, MAX_MESSAGE, placeholder=' …')}, next to the default, in "
    for number in range(n_known + 1, (n_known // N_PROCESSES + 1) * N_PROCESSES + 1):
        if out_of_time():
            return
        share_s = seconds_left() / (N_PROCESSES - (number - 1) % N_PROCESSES)
        name = f"{stage}-{hash_rows(settings[2:])[0]:016x}-{number}"
        said = f"{message}fresh processes" * (number == n_known + 1)
        ran, times = session.measure(name, settings, n_rounds, share_s, message=said)
        if len(ran) < 3 or len(times) < MIN_ROUNDS:
            return


def _verify_and_confirm(
    session: OptimizeSession, screening: Screening, *, is_first: bool
) -> OptimizeResult:
    """Verify finalists and confirm the best; after the first pass only undecided or new ones."""
    known = session.read_candidates(screening.candidates)
    confirmed = [c for c in known if c.alone]
    confirmed.sort(key=lambda c: (c.status is not Status.FASTER, c.comparison.ratio.value))
    kept = [c for c in confirmed if c.status is Status.FASTER or c.is_due]
    kept += [c for c in known if c.is_half_confirmed and c not in kept and not c.alone]
    lost = [c for c in confirmed if c not in kept]
    # All candidates share these decisions that gained on one thread, but not on all cores.
    gained = [c.decided for c in lost if c.alone and c.alone.gains]
    suspect = frozenset.intersection(*gained) if gained else frozenset()
    others = [session.default, *(c.setting for c in lost)]
    ordered = [*kept[: MAX_FINALISTS // 2], *_chosen_finalists(screening.candidates, suspect)]
    n_wanted = _n_affordable(screening.default_ns)
    verify(session, _distinct(ordered, others, session.code, n_wanted))
    result = _read_result(session, screening)
    settings = [c.setting for c in kept]
    if candidate := _next_to_confirm(result.finalists, settings, suspect):
        setting = candidate.setting
        if setting not in settings:
            setting = _simplified(setting, session.code)
        confirm(session, setting, is_first=is_first)
    return _read_result(session, screening)


def _read_result(session: OptimizeSession, screening: Screening) -> OptimizeResult:
    """Return the result that the journals have by now."""
    candidates = session.read_candidates(screening.candidates)
    passes = session.verifying_processes()
    confirmed = [c.alone for c in candidates if c.alone]
    if not passes and not confirmed:
        raise PipelineError(
            f"{session.request.program}: there was no time to verify anything; expected "
            f"{MIN_ROUNDS} rounds next to the default or more; the same command resumes, with more "
            "--minutes"
        )
    return OptimizeResult(
        session.request,
        tuple(session.spaces),
        session.description.facts,
        candidates,
        screening.n_drawn,
        screening.is_over,
        passes[-1][0] if passes else confirmed[0],
        session.describe(session.default),
    )


def _chosen_finalists(candidates: Sequence[Candidate], suspect: Decided) -> list[Candidate]:
    """Order candidates: the fastest, the simplest of its equals, the next ones, suspect ones."""
    faster = sorted((c for c in candidates if c.screened < 1), key=lambda c: c.screened)
    equal = [c for c in faster if c.screened < EQUAL_TIME_RATIO * faster[0].screened]
    simplest = sorted(equal, key=lambda c: (c.n_decided, c.screened))
    ordered = dict.fromkeys([*faster[:1], *simplest[: MAX_FINALISTS // 2], *faster])
    return sorted(ordered, key=lambda c: suspect <= c.decided)


def _distinct(
    ordered: Sequence[Candidate],
    others: Sequence[Setting],
    code: Callable[[Setting], str],
    n_wanted: int,
) -> list[Candidate]:
    """Return candidates of distinct code, none that of `others`; of equal ones the simplest."""
    left_out, found = {code(setting) for setting in others}, dict[str, Candidate]()
    for candidate in ordered:
        if len(found) == n_wanted:
            break
        own = code(candidate.setting)
        if own not in left_out:
            found[own] = min(found.get(own, candidate), candidate, key=lambda c: c.n_decided)
    return [*found.values()]


def _simplified(setting: Setting, code: Callable[[Setting], str]) -> Setting:
    """Return a setting without the decisions that do not change its code."""
    whole = code(setting)
    with time_limit(SIMPLIFY_SHARE * seconds_left() / 60):
        for knob in np.flatnonzero(setting).tolist():
            without = (*setting[:knob], 0, *setting[knob + 1 :])
            if not out_of_time() and code(without) == whole:
                setting = without
    return setting


def _n_affordable(default_ns: float) -> int:
    """Return how many candidates can be verified in their share of the time, 1 to 4."""
    visit_s = max(VISIT_BUDGET_NS, MIN_RUNS * default_ns) / 1e9
    n_visits = VERIFY_SHARE * seconds_left() / visit_s
    return int(np.clip(n_visits / MIN_VISITS - 2, 1, MAX_FINALISTS))


def _next_to_confirm(
    verified: Sequence[Candidate], known: Sequence[Setting], suspect: Decided
) -> Candidate | None:
    """Return the best that gains and lacks a suspect decision; else the best of all."""
    able = [c for c in verified if c.setting in known or (c.verified and not c.verified.loses)]
    others = [c for c in able if c.verified and c.verified.gains and not suspect <= c.decided]
    return _simplest_of_best(others or able, known) if able else None


def _simplest_of_best(verified: Sequence[Candidate], known: Sequence[Setting]) -> Candidate:
    """Return the candidate that decides least of those that gain about as much as the fastest.

    Known settings come first: another one would be one more look that may be lucky.
    """
    ratios = {c.setting: c.verified.ratio for c in verified if c.verified}
    fastest = min(verified, key=lambda c: ratios[c.setting])
    most = min(ratios[fastest.setting].high + MIN_GAIN, 1 - MIN_GAIN)
    equal = [c for c in verified if ratios[c.setting].high < most] or [fastest]
    return min(equal, key=lambda c: (c.setting not in known, c.n_decided, ratios[c.setting]))
