"""What fresh processes measure of candidates, pooled over all passes and calls in one folder.

c candidates of g genes, r rounds, p processes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.collect import program_digest
from autotune.measure.search import Journal, Visitor, open_journal, run_rounds
from autotune.measure.worker import ConfigFailed, Description, Session, Subject, Told
from autotune.programs.catalogue import catalogue as programs
from autotune.spaces import SPACES, TILES, open_decided
from autotune.tiles.catalogue import catalogue as kernels
from common.errors import OutOfTime, PipelineError, UsageError
from common.machine import granted
from common.metrics import CONFIDENCE, DRAWS, interval_of
from common.progress import log, out_of_time, seconds_left, time_limit
from common.reproducibility import generator
from data.graphs.graph import hash_rows
from data.hlo.choices import Choices

JOURNALS, CONFIRM, ON_ALL_CORES = "journal", "confirm", "all-cores-median"
N_PROCESSES = 4  # that a pass adds to confirm: they differ by more than rounds of one do
FEWEST_PROCESSES, FEWEST_ROUNDS = 2, 2  # where the time ends; rounds of each
MOST_PROCESSES = 8  # of one that stays undecided, before others get their turn
LEAST_GAIN = 0.02  # code that is placed elsewhere in memory alone may differ by so much
MOST_LOSS = 1.02  # on all cores, below which all of the interval must lie
MOST_ORDERS = 6  # instructions of a choice are told with their layouts; more by name alone
RANKED = ("layouts", TILES)  # the spaces that models rank
SEARCH = "search"  # the source of what the genetic search bred
STEPS = "fewest steps"  # by which tiles are proposed where no run does
DEFAULT = "as the compiler has it"
MAX_TOLD = 120  # characters of what a line of progress says of a candidate

# Ranks choices (c, g) of layouts, of what is described: the best first.
Pick = Callable[[Description, NDArray[Any]], NDArray[np.int64]]
Times = NDArray[np.float64]
Choice = tuple[int, ...]  # the option of each gene
Decided = frozenset[tuple[int, int]]  # genes that are not the default's, each with its option


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
        """Refuse spaces and kernels that there are not, and a run of no use; raises UsageError."""
        known = (*SPACES, TILES)
        for space in self.spaces:
            if space not in known:
                raise UsageError(f"--space {space}: no such space; known: {', '.join(known)}")
        if self.run and not set(RANKED) & set(self.spaces):
            told = f"models rank {' and '.join(RANKED)} alone, not {', '.join(self.spaces)}"
            raise UsageError(f"--run {self.run}: {told}; expected --space with one of these")
        if self.spaces == (TILES,) and ":" not in self.program:
            names = {*kernels(), *(source.name for source in programs())}
            if self.program not in names:
                told = "no such kernel; `collect --list --kind tile` names all"
                raise UsageError(f"--program {self.program}: {told}")


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
    def decided(self) -> Decided:
        return frozenset((gene, option) for gene, option in enumerate(self.choice) if option)

    @property
    def n_decided(self) -> int:
        return len(self.decided)


class Ratio(NamedTuple):
    """A runtime over another's, and its interval."""

    value: float
    low: float
    high: float


NEVER = Ratio(inf, inf, inf)  # a candidate that failed


class Pool(NamedTuple):
    """What all processes measured of a candidate; of a single one, over its rounds."""

    ratio: Ratio
    same: Ratio
    n_processes: int
    n_rounds: int
    default_ms: float
    n_looks: int = 1

    @property
    def most(self) -> float:
        """Return what the ratio must surely lie below: by more than the default differs by."""
        return 1 - max(LEAST_GAIN, 1 - self.same.low, self.same.high - 1)

    @property
    def gains(self) -> bool:
        return self.ratio.high < self.most

    @property
    def loses(self) -> bool:
        """Tell whether it is slower, by more than the default differs by."""
        return self.ratio.low > max(1.0, self.same.high)


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
    def runs(self) -> bool:
        return all(isfinite(pool.ratio.value) for pool in (self.alone, self.together) if pool)

    @property
    def is_confirmed(self) -> bool:
        return self.alone.n_processes >= FEWEST_PROCESSES

    @property
    def gains(self) -> bool:
        return self.is_confirmed and self.alone.gains

    @property
    def is_undecided(self) -> bool:
        """Tell whether more processes may call it faster, or surely not.

        A default that differs from itself hides gains, and rules none out. On which side of the
        least gain it lies is not waited for where it lies so close.
        """
        if not self.gains:
            ratio = self.alone.ratio
            is_close = ratio.high - ratio.low < LEAST_GAIN / 2 and self.alone.most == 1 - LEAST_GAIN
            return ratio.low < 1 - LEAST_GAIN and not is_close
        if not self.is_checked:
            return False
        return not self.together or self.together.ratio.low < MOST_LOSS <= self.together.ratio.high

    @property
    def is_due(self) -> bool:
        """Tell whether it is undecided, and by too few processes to wait for others."""
        pool = self.together if self.gains else self.alone
        return self.is_undecided and (not pool or pool.n_processes < MOST_PROCESSES)

    @property
    def why_not(self) -> str:
        """Say why it is not called faster; "" if it is."""
        if self.alone.loses:
            return f"what was {'confirmed' if self.is_confirmed else 'verified'} is slower"
        if not self.is_confirmed:
            return "not confirmed in the time; the same command goes on, with more --minutes"
        if not self.gains:
            least, is_least = 1 - self.alone.most, self.alone.most == 1 - LEAST_GAIN
            why = "the least that counts" if is_least else "by which the default itself may differ"
            told = f"what was confirmed does not surely gain {100 * least:.1f} %, {why}"
            return f"undecided: {told}; the same command goes on" if self.is_undecided else told
        if not self.is_checked or (self.together and self.together.ratio.high < MOST_LOSS):
            return ""
        if self.is_undecided:
            return (
                f"undecided whether it is a loss on all cores (not surely below {MOST_LOSS}); "
                "the same command measures on, with more --minutes"
            )
        return "on all cores it is a loss"


@dataclass(frozen=True)
class Call:
    """What a call works with: the process that screens stays open."""

    ask: Ask
    out: Path
    pick: Pick | None
    session: Session
    description: Description
    told: dict[Choice, Told] = field(default_factory=dict)
    codes: dict[Choice, str] = field(default_factory=dict)

    @property
    def is_checked(self) -> bool:
        return granted()[0] > 1 and self.description.facts["platform"] == "cpu"

    def journal(self, name: str) -> Journal:
        ask = self.ask
        asked = {"program": ask.program, "spaces": list(ask.spaces), "seed": ask.seed}
        asked["run"] = ask.run or (STEPS if self.pick else None)
        program = {"program_digest": program_digest(self.description)}
        header = asked | dict(self.description.facts) | program
        return open_journal(self.out / JOURNALS / f"{name}.jsonl", header)

    def picked(self, choices: Choices) -> NDArray[np.int64]:
        assert self.pick, "asked where there is a ranker"
        return self.pick(self.description, self.session.spell(choices))

    def tell(self, choice: Choice) -> Told:
        if choice not in self.told:
            self.told[choice] = self.session.tell(np.array(choice))
        return self.told[choice]

    def code(self, choice: Choice) -> str:
        """Return what tells the code of a choice from others; itself where it does not compile."""
        if choice not in self.codes:
            self.codes[choice] = repr(choice)
            with suppress(ConfigFailed):
                self.codes[choice] = self.session.code(np.array(choice))
        return self.codes[choice]


def measured(
    call: Call,
    name: str,
    choices: Choices,
    n_rounds: tuple[int, int],
    share_s: float,
    *,
    said: str = "",
) -> tuple[list[int], Times]:
    """Visit the default, the default again and others in a fresh process; as `rounds_of`.

    It takes its share of the time, and more of it only for the least of rounds. What is `said`
    is logged where something is left to measure.

    Raises:
        PipelineError: the default does not run, or the program is another one.
    """
    journal, ask = call.journal(name), call.ask
    known = rounds_of(journal, len(choices))
    if len(known[1]) >= n_rounds[1]:
        return known
    what, rest_s = f"{ask.program}: {name}", seconds_left() - share_s
    if said:
        log.info(said)
    if call.description.facts["platform"] != "cpu":
        call.session.stop()  # an accelerator serves one process; it starts anew when it is asked
    with session_of(ask, on_all_cores=name.startswith(ON_ALL_CORES)) as session:
        visitor = Visitor(session, journal, what=what, total=len(choices) * n_rounds[1])
        order = generator(ask.seed, name, ask.program)
        with suppress(OutOfTime):
            _open_again(call, session)
            run_rounds(visitor, choices, n_rounds=n_rounds[0], rng=order)
            with time_limit((seconds_left() - rest_s) / 60):
                run_rounds(visitor, choices, n_rounds=n_rounds[1], rng=order)
    if journal.failed.keys() & {0, 1}:
        reason = next(iter(journal.failed.values()))
        raise PipelineError(f"{what}: the default failed: {reason}")
    return rounds_of(journal, len(choices))


def _open_again(call: Call, session: Session) -> None:
    """Open the program in a fresh process; refuse one that is another than at first."""
    if out_of_time():
        raise OutOfTime(call.ask.program)
    if session.describe().facts["function"] != call.description.facts["function"]:
        raise PipelineError(
            f"{call.ask.program}: is another program when it is traced again; expected the same "
            "each time: no random numbers but from arguments, and no edit meanwhile"
        )


def rounds_of(journal: Journal, n_choices: int) -> tuple[list[int], Times]:
    """Return which of the choices never failed, and their runtimes (r, ran) in whole rounds."""
    ran = [config for config in range(n_choices) if config not in journal.failed]
    by_round = [
        [journal.visits.get((config, turn)) for config in ran]
        for turn in sorted({turn for _, turn in journal.visits})
    ]
    whole = [[visit.runtime_ns for visit in row if visit] for row in by_round if all(row)]
    return ran, np.array(whole, float).reshape(-1, len(ran))


def confirm(call: Call, choice: Choice, *, is_first: bool) -> None:
    """Add processes of a candidate on one thread; on all cores too where it gains."""

    def known() -> Contestant | None:
        return next((one for one in contestants(call) if one.candidate.choice == choice), None)

    before = known()
    if is_first or not before or not before.gains:
        with time_limit(seconds_left() / (1 + call.is_checked) / 60):
            _add_processes(call, CONFIRM, choice)
    after = known()
    if call.is_checked and after and after.gains and (is_first or after.is_undecided):
        _add_processes(call, ON_ALL_CORES, choice)


def _add_processes(call: Call, stage: str, choice: Choice) -> None:
    """Measure a candidate in up to four processes more, where the time is enough."""
    choices = np.array([[0] * len(choice)] * 2 + [choice])
    n_rounds = FEWEST_ROUNDS, max(FEWEST_ROUNDS, -(-call.ask.n_rounds // N_PROCESSES))
    n_known = len(_processes(call, stage).get(choice, ()))
    for number in range(n_known + 1, (n_known // N_PROCESSES + 1) * N_PROCESSES + 1):
        if out_of_time():
            return
        share_s = seconds_left() / (N_PROCESSES - (number - 1) % N_PROCESSES)
        name = f"{stage}-{hash_rows(choices[2:])[0]:016x}-{number}"
        who = shorten(told_text(call.tell(choice)), MAX_TOLD, placeholder=" …")
        said = f"{stage}: {who}, beside the default, in fresh processes" * (number == n_known + 1)
        ran, times = measured(call, name, choices, n_rounds, share_s, said=said)
        if len(ran) < 3 or len(times) < FEWEST_ROUNDS:
            return


def _processes(call: Call, stage: str) -> dict[Choice, list[Pool]]:
    """Return what each process of a stage measured that had enough time, by candidate."""
    found: dict[Choice, list[Pool]] = {}
    for path in sorted((call.out / JOURNALS).glob(f"{stage}-*.jsonl")):
        journal = call.journal(path.stem)
        ran, times = rounds_of(journal, 3)
        if 2 in journal.failed:
            own = Pool(NEVER, NEVER, 1, 0, inf)
        elif len(ran) == 3 and len(times) >= FEWEST_ROUNDS:
            own = of_one_process(*times.T)
        else:
            continue
        found.setdefault(tuple(journal.choices[2]), []).append(own)
    return found


def _pools(call: Call, stage: str) -> dict[Choice, Pool]:
    """Pool the processes of each candidate that has two, or that failed.

    Each batch of processes, of any candidate, was one more look that could have been lucky: the
    intervals share 5 % of error among them all (Bonferroni).
    """
    by_choice = _processes(call, stage)
    n_looks = sum(-(-len(own) // N_PROCESSES) for own in by_choice.values())
    return {
        choice: Pool(
            pooled([one.ratio.value for one in own], n_looks),
            pooled([one.same.value for one in own], n_looks),
            len(own),
            sum(one.n_rounds for one in own),
            min(one.default_ms for one in own),
            n_looks,
        )
        for choice, own in by_choice.items()
        if len(own) >= FEWEST_PROCESSES or own[0].ratio == NEVER
    }


def contestants(call: Call, candidates: Sequence[Candidate] = ()) -> list[Contestant]:
    """Return all that was ever confirmed, what is faster first, then what is undecided."""
    alone, together = _pools(call, CONFIRM), _pools(call, ON_ALL_CORES)
    sources = {candidate.choice: candidate.source for candidate in candidates}
    found = [
        Contestant(
            Candidate(choice, sources.get(choice, "simplified")),
            call.tell(choice),
            pool,
            together.get(choice),
            call.is_checked,
        )
        for choice, pool in alone.items()
    ]
    return sorted(
        found, key=lambda one: (bool(one.why_not), not one.is_undecided, one.alone.ratio.value)
    )


def half_confirmed(call: Call) -> list[Choice]:
    """Return what is not decided by processes that the time was over before all four of.

    All four are missing where it gains on one thread, and was not measured on all cores.
    """
    known = contestants(call)
    decided = {one.candidate.choice for one in known if not one.is_undecided}
    halves = [
        choice
        for stage in (CONFIRM, ON_ALL_CORES)
        for choice, own in _processes(call, stage).items()
        if len(own) % N_PROCESSES and choice not in decided
    ]
    halves += [
        one.candidate.choice for one in known if one.gains and one.is_checked and not one.together
    ]
    return [*dict.fromkeys(halves)]


def told_text(told: Told) -> str:
    """Write what a choice decides in one line."""
    parts = []
    for kind, what in told.decisions.items():
        if kind == "options":
            parts += [f"{option}={value}" for option, value in what.items()]
        elif kind == "layouts" and len(what) <= MOST_ORDERS:
            parts.append("layouts: " + ", ".join(_orders_text(*own) for own in what.items()))
        else:
            parts.append(f"{kind.replace('_', ' ')}: {', '.join(map(str, what))}")
    return "; ".join(parts) or DEFAULT


def _orders_text(name: str, orders: Mapping[str, Sequence[int]]) -> str:
    """Write the layouts of one instruction as XLA does, minor to major."""
    told = (f"{tensor} {{{','.join(map(str, order))}}}" for tensor, order in orders.items())
    return " ".join((name, *told))


def session_of(ask: Ask, *, on_all_cores: bool = False) -> Session:
    open_subject = partial(ask.open_decided, ask.program, ask.spaces, ask.device)
    return Session(
        open_subject, timeout_s=ask.timeout_s, what=ask.program, on_all_cores=on_all_cores
    )


def paired_ratio(own_ns: Times, base_ns: Times, *, seed: int = 0) -> Ratio:
    """Return the median of runtimes (r,) over others, by round: what disturbs one disturbs both."""
    ratios = own_ns / base_ns
    drawn = np.random.default_rng(seed).integers(0, len(ratios), (DRAWS, len(ratios)))
    return Ratio(float(np.median(ratios)), *interval_of(np.median(ratios[drawn], axis=1)))


def of_one_process(default_ns: Times, same_ns: Times, own_ns: Times) -> Pool:
    """Summarise runtimes (r,) of a process; its intervals are over rounds."""
    ratio, same = paired_ratio(own_ns, default_ns), paired_ratio(same_ns, default_ns)
    return Pool(ratio, same, 1, len(default_ns), float(default_ns.min()) / 1e6)


def pooled(ratios: Sequence[float], n_looks: int = 1) -> Ratio:
    """Return the mean of processes' ratios (p,) and Student's interval, both of their logarithms.

    Args:
        n_looks: at how many such intervals somebody looks, which together err in 5 % of all cases.
    """
    from scipy.stats import t

    if not np.isfinite(ratios).all():
        return NEVER
    logs = np.log(ratios)
    quantile = t.isf((1 - CONFIDENCE) / n_looks / 2, len(logs) - 1)
    half = quantile * logs.std(ddof=1) / np.sqrt(len(logs))
    return Ratio(*np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).tolist())
