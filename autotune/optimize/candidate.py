"""A candidate of `optimize`: one setting, its measurements, and the status that follows from them.

All ratios are runtimes over the default's: below 1 is faster. r rounds, p processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.measure.program import Decisions
from common.metrics import CONFIDENCE, DRAWS, interval_of

# The same code gains up to 2 % if it only is at another address.
MIN_GAIN = 0.02
# The whole interval on all cores must be below this ratio.
MAX_LOSS = 1.02
# One process has measured .34 where four measured .49, so only an interval below this ratio makes a
# gain probable.
PROBABLE_RATIO = 0.7
# Rounds of one process agree more closely than processes do.
N_PROCESSES, MIN_PROCESSES = 4, 2
# The stages that confirm a candidate; journals have these names.
CONFIRM, ON_ALL_CORES = "confirm", "all-cores-median"
# Layouts of more instructions are not printed.
MAX_ORDERS = 6
DEFAULT, RESUMES = "as the compiler has it", "the same command resumes"

Times = NDArray[np.int64]
Setting = tuple[int, ...]


class Ratio(NamedTuple):
    """A runtime over another one, with its 95 % interval."""

    value: float
    low: float
    high: float


FAILED_RATIO = Ratio(inf, inf, inf)


class Comparison(NamedTuple):
    """A candidate and the default, measured in the same rounds.

    Attributes:
        ratio: The candidate's runtime over the default's. Its interval is over rounds if there is
            one process, and over processes if there are several.
        same: The default's runtime over its own.
        default_ms: The default's runtime in milliseconds.
        n_looks: Number of intervals that share the 5 % of error (Bonferroni).
    """

    ratio: Ratio
    same: Ratio
    n_processes: int
    n_rounds: int
    default_ms: float
    n_looks: int = 1

    @property
    def required(self) -> float:
        """Return the ratio that a gain must be below: the default may differ from itself."""
        return 1 - max(MIN_GAIN, 1 - self.same.low, self.same.high - 1)

    @property
    def gains(self) -> bool:
        return self.ratio.high < self.required

    @property
    def loses(self) -> bool:
        """Return True if the candidate is slower by more than the default differs from itself."""
        return self.ratio.low > max(1.0, self.same.high)


# A process in which the candidate failed.
FAILED = Comparison(FAILED_RATIO, FAILED_RATIO, 1, 0, inf)


class Status(StrEnum):
    """How far a candidate came."""

    FAILED = "failed"
    SCREENED = "screened"
    VERIFIED = "verified"
    UNDECIDED = "undecided"
    SLOWER = "slower"
    NO_GAIN = "no gain"
    LOSS = "loss on all cores"
    FASTER = "faster"


@dataclass(frozen=True)
class OptimizeCandidate:
    """A setting and all measurements of it.

    Attributes:
        setting: The option of each knob. 0 is the compiler's own.
        source: Name of the proposer, for example "menu".
        screened: Shortest screened runtime over the default's. inf if it was not screened.
        failure: Reason why it failed, or "".
        description: Decisions of the setting. Only verified candidates have it.
        alone: Comparison on one thread, pooled over processes. None with less than two processes.
        together: The same on all cores.
        needs_all_cores: True if a gain on one thread has to be checked on all cores.
    """

    setting: Setting
    source: str
    screened: float = inf
    failure: str = ""
    description: Decisions = field(default=Decisions({}), hash=False)
    verified: Comparison | None = None
    alone: Comparison | None = None
    together: Comparison | None = None
    needs_all_cores: bool = True

    @property
    def decided(self) -> frozenset[tuple[int, int]]:
        """Return the knobs that are not the default's, each with its option."""
        return frozenset((knob, option) for knob, option in enumerate(self.setting) if option)

    @property
    def comparison(self) -> Comparison:
        """Return the comparison with the most processes; the candidate must have one."""
        comparison = self.alone or self.verified
        assert comparison, "was verified"
        return comparison

    @property
    def status(self) -> Status:
        """Return how far the candidate came, by all that was measured of it."""
        alone, together = self.alone, self.together
        if self.failure or any(c and not isfinite(c.ratio.value) for c in (alone, together)):
            return Status.FAILED
        if alone is None:
            return Status.VERIFIED if self.verified else Status.SCREENED
        if alone.loses:
            return Status.SLOWER
        if not alone.gains:
            # A default that differs from itself hides gains. An interval of less than 1 % next to
            # the required gain needs no more processes.
            is_close = alone.ratio.high - alone.ratio.low < MIN_GAIN / 2
            is_close &= alone.required == 1 - MIN_GAIN
            is_open = alone.ratio.low < 1 - MIN_GAIN and not is_close
            return Status.UNDECIDED if is_open else Status.NO_GAIN
        if not self.needs_all_cores or (together and together.ratio.high < MAX_LOSS):
            return Status.FASTER
        is_open = together is None or together.ratio.low < MAX_LOSS
        return Status.UNDECIDED if is_open else Status.LOSS

    @property
    def is_probable(self) -> bool:
        """Return whether only time was lacking, and an interval is far below 1."""
        compared = [comparison for comparison in (self.verified, self.alone) if comparison]
        return (
            self.status in (Status.VERIFIED, Status.UNDECIDED)
            and any(c.ratio.high < min(PROBABLE_RATIO, c.required) for c in compared)
            and all(c.ratio.value < PROBABLE_RATIO for c in compared)
            and (self.together is None or self.together.ratio.value < 1)
        )

    @property
    def open_stage(self) -> str:
        """Return the stage that needs more processes; "" if the candidate is decided."""
        if self.status not in (Status.SCREENED, Status.VERIFIED, Status.UNDECIDED):
            return ""
        return ON_ALL_CORES if self.alone and self.alone.gains else CONFIRM

    @property
    def why_not(self) -> str:
        """Return the reason why it is not called faster; "" if it is."""
        comparison, status = self.comparison, self.status
        is_undecided = status is Status.UNDECIDED
        if status is Status.FASTER:
            return ""
        if comparison.loses:
            return f"the {'confirmed' if self.alone else 'verified'} candidate is slower"
        if status is Status.VERIFIED:
            return f"not confirmed in the time; {RESUMES}, with more --minutes"
        if status is Status.LOSS:
            return "on all cores it is a loss"
        if comparison.gains and is_undecided:
            fault = f"undecided whether it is a loss on all cores (not surely below {MAX_LOSS})"
            return f"{fault}; {RESUMES}, with more --minutes"
        is_least = comparison.required == 1 - MIN_GAIN
        why = "the least that counts" if is_least else "by which the default itself may differ"
        required = f"{100 * (1 - comparison.required):.1f} %, {why}"
        reason = f"the confirmed candidate does not surely gain {required}"
        return f"undecided: {reason}; {RESUMES}" if is_undecided else reason


def setting_text(description: Decisions) -> str:
    """Return the decisions of a setting in one line."""
    parts = []
    for kind, decided in description.decisions.items():
        if kind == "options":
            parts += [f"{option}={value}" for option, value in decided.items()]
        elif kind == "layouts" and len(decided) <= MAX_ORDERS:
            parts.append("layouts: " + ", ".join(_orders_text(*node) for node in decided.items()))
        else:
            parts.append(f"{kind.replace('_', ' ')}: {', '.join(map(str, decided))}")
    return "; ".join(parts) or DEFAULT


def _orders_text(name: str, orders: Mapping[str, Sequence[int]]) -> str:
    # XLA prints layouts minor to major.
    texts = (f"{tensor} {{{','.join(map(str, order))}}}" for tensor, order in orders.items())
    return " ".join((name, *texts))


def paired_ratio(candidate_ns: Times, base_ns: Times) -> Ratio:
    """Return the median ratio of runtimes (r,) over rounds: a disturbance is in both of them."""
    ratios = candidate_ns / base_ns
    rows = np.random.default_rng(0).integers(0, len(ratios), (DRAWS, len(ratios)))
    return Ratio(float(np.median(ratios)), *interval_of(np.median(ratios[rows], axis=1)))


def compare_rounds(default_ns: Times, same_ns: Times, candidate_ns: Times) -> Comparison:
    """Return the comparison of one process; its intervals are over rounds.

    Args:
        default_ns: Runtimes (r,) of the default.
        same_ns: Runtimes (r,) of the default's second visit in each round.
        candidate_ns: Runtimes (r,) of the candidate.
    """
    ratio, same = paired_ratio(candidate_ns, default_ns), paired_ratio(same_ns, default_ns)
    return Comparison(ratio, same, 1, len(default_ns), float(default_ns.min()) / 1e6)


def pool_ratios(ratios: Sequence[float], n_looks: int = 1) -> Ratio:
    """Return the mean of processes' ratios and Student's interval, both of their logarithms.

    Args:
        ratios: One ratio per process, (p,).
        n_looks: Number of intervals that together may err in 5 % of all cases.
    """
    # scipy.stats has the same quantile, but takes a second to import.
    from scipy.special import stdtrit

    if not np.isfinite(ratios).all():
        return FAILED_RATIO
    logs = np.log(ratios)
    quantile = -stdtrit(len(logs) - 1, (1 - CONFIDENCE) / n_looks / 2)
    half = quantile * logs.std(ddof=1) / np.sqrt(len(logs))
    return Ratio(*np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).tolist())


def pool_processes(processes: Sequence[Comparison], n_looks: int) -> Comparison | None:
    """Return the pooled comparison of processes (p,).

    None with fewer than two processes, unless one failed.
    """
    has_failed = any(process.ratio == FAILED_RATIO for process in processes)
    if len(processes) < MIN_PROCESSES and not has_failed:
        return None
    return Comparison(
        pool_ratios([process.ratio.value for process in processes], n_looks),
        pool_ratios([process.same.value for process in processes], n_looks),
        len(processes),
        sum(process.n_rounds for process in processes),
        min(process.default_ms for process in processes),
        n_looks,
    )
