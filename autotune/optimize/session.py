"""The request of `optimize`, and the journals in which a call and its repetitions record visits.

Each fresh process has a separate journal, so a call that was killed resumes. c settings of g
knobs, r rounds.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from autotune.collect import program_digest
from autotune.measure.journal import (
    Journal,
    Visitor,
    open_journal,
    run_rounds,
    whole_rounds,
)
from autotune.measure.program import Decisions, Description, MeasurableProgram
from autotune.measure.worker import ConfigFailed, Session
from autotune.optimize.candidate import (
    CONFIRM,
    FAILED,
    MIN_PROCESSES,
    N_PROCESSES,
    ON_ALL_CORES,
    RESUMES,
    Comparison,
    OptimizeCandidate,
    Setting,
    Times,
    compare_rounds,
    pool_processes,
)
from autotune.plan import JOURNALS, check_choice
from autotune.programs.catalogue import NO_INPUTS, ProgramInputs
from autotune.spaces import SPACES, open_program
from common.errors import OutOfTime, PipelineError, UsageError
from common.machine import granted
from common.progress import out_of_time, seconds_left, time_limit
from common.reproducibility import generator
from data.hlo.choices import Choices
from data.hlo.compiler_options import EXTRA, extra_flag
from models.run_folder import missing_run

# A process with fewer rounds is ignored.
MIN_ROUNDS = 2
# The journal of the screening.
SCREEN = "screen"
# The shortest call that confirms something: a process that screens, one that verifies, and those of
# two stages. Each opens the program, and compiles it up to twice more.
MIN_OPENINGS = 2 * (2 + 2 * MIN_PROCESSES)
SEARCHES = ("portfolio", "random", "genetic", "ranker")


class TooFewMinutes(PipelineError):  # noqa: N818
    """The time limit came before a result. `minutes` is a sufficient one, by the time so far."""

    def __init__(self, problem: str, minutes: int) -> None:
        super().__init__(f"{problem}; expected --minutes {minutes} or more; {RESUMES} with it")
        self.minutes = minutes


@contextmanager
def enough_time(problem: str, minutes: float, start_s: float) -> Iterator[None]:
    """Turn OutOfTime of the block into an error that names the minutes to ask for.

    Args:
        problem: Work of one process that is not done.
        minutes: Time limit of the call.
        start_s: Monotonic time at which that work began.
    """
    try:
        yield
    except OutOfTime:
        spent_s = time.monotonic() - start_s
        needed = ceil(max(2 * minutes, MIN_OPENINGS * spent_s / 60))
        raise TooFewMinutes(f"{problem} in the {minutes:g} minutes", needed) from None


@dataclass(frozen=True)
class OptimizeRequest:
    """The program and the options of `optimize`.

    Attributes:
        program: module:function, FILE, FILE#MODULE or a program of the catalogue.
        spaces: Names in SPACES.
        n_candidates: Maximum number of screened candidates, the default included.
        n_rounds: Rounds in which a pass compares the best candidate with the default. Finalists
            get 3/8 of them.
        timeout_s: Time after which a candidate counts as failed.
        device: "cpu", "gpu", "tpu", or None for JAX's setting.
        run: Folder of the run whose models propose layouts.
    """

    program: str
    spaces: tuple[str, ...] = ("options",)
    n_candidates: int = 150
    n_rounds: int = 40
    timeout_s: float = 60.0
    seed: int = 0
    device: str | None = None
    run: str | None = None
    search: str = "portfolio"
    inputs: ProgramInputs = NO_INPUTS

    def __post_init__(self) -> None:
        """Check names and their combination."""
        for space in self.spaces:
            check_choice("--space", space, SPACES)
        check_choice("--search", self.search, SEARCHES)
        spaces = ",".join(self.spaces)
        if self.run and "layouts" not in self.spaces:
            reason = f"models rank only layouts, not {spaces}"
            raise UsageError(f"--run {self.run}: {reason}; expected --space layouts")
        if self.run and self.search not in ("portfolio", "ranker"):
            raise UsageError(f"--run {self.run}: --search {self.search} uses no models; leave out")
        if self.run and not Path(self.run).is_dir():
            raise missing_run(Path(self.run))
        if self.search == "ranker" and not self.run:
            raise UsageError("--search ranker: expected --run RUN, whose models rank candidates")

    def open(self) -> MeasurableProgram:
        """Open the program. A worker calls this in its process."""
        return open_program(self.program, self.spaces, self.device, self.inputs)

    def start_worker(self, *, on_all_cores: bool = False, flags: str = "") -> Session:
        """Return a worker process for the program, with more flags in XLA_FLAGS."""
        how: dict[str, Any] = {"label": self.program, "on_all_cores": on_all_cores}
        return Session(self.open, timeout_s=self.timeout_s, flags=flags, **how)


@dataclass(frozen=True)
class OptimizeSession:
    """One call of `optimize`.

    Attributes:
        worker: The process that screens. It stays open.
        process_s: Seconds of a confirming process, which opens the program and compiles it up to
            twice more.
        start: The best setting of an earlier call, from which the search starts.
    """

    request: OptimizeRequest
    out: Path
    worker: Session
    description: Description
    process_s: float = 0.0
    start: Setting | None = None
    _decisions: dict[Setting, Decisions] = field(default_factory=dict)

    @property
    def default(self) -> Setting:
        return (0,) * len(self.description.n_options)

    @property
    def needs_all_cores(self) -> bool:
        """Return True if a gain on one thread has to be checked on all cores."""
        return granted()[0] > 1 and self.description.facts["platform"] == "cpu"

    def journal(self, name: str) -> Journal:
        request = self.request
        header = {
            "program": request.program,
            "spaces": list(request.spaces),
            "seed": request.seed,
            "run": request.run,
            "search": request.search,
            "start": list(self.start) if self.start else None,
            **self.description.facts,
            "program_digest": program_digest(self.description),
        }
        return open_journal(self.out / JOURNALS / f"{name}.jsonl", header)

    def describe(self, setting: Setting) -> Decisions:
        """Return the decisions of a setting."""
        if setting not in self._decisions:
            self._decisions[setting] = self.worker.describe_setting(np.array(setting))
        return self._decisions[setting]

    def code(self, setting: Setting) -> str:
        """Return a digest of a setting's code, or the setting itself if it has none."""
        with suppress(ConfigFailed, OutOfTime):
            return self.worker.code(np.array(setting)) or repr(setting)
        return repr(setting)

    def check_flags(self, name: str, setting: Setting) -> bool:
        """Return whether XLA_FLAGS has the effect of a setting's extra options.

        If a process with these flags compiles other code, the setting has failed.

        Args:
            name: Name of the journal that records the failure.
        """
        if not (flag := extra_flag(self.describe(setting).decisions.get("options", {}).get(EXTRA))):
            return True
        with self.request.start_worker(flags=flag) as fresh, suppress(ConfigFailed):
            if fresh.code(np.array(setting)) == self.code(setting):
                return True
        self.journal(name).add(2, setting, failed=f"XLA_FLAGS={flag} gives other code")
        return False

    def measure(
        self, name: str, settings: Choices, n_rounds: tuple[int, int], share_s: float
    ) -> tuple[list[int], Times]:
        """Visit the default, the default again and other settings in a fresh process.

        Args:
            name: Name of the journal.
            settings: Settings (c, g). The first two are the default.
            n_rounds: Minimum and maximum number of rounds.
            share_s: Seconds that it may take. The minimum of rounds may take more.
        """
        journal, request = self.journal(name), self.request
        earlier = whole_rounds(journal, len(settings))
        if len(earlier[1]) >= n_rounds[1] or out_of_time():
            return earlier
        label, rest_s = f"{request.program}: {name}", seconds_left() - share_s
        if self.description.facts["platform"] != "cpu":
            # Only one process can use an accelerator.
            self.worker.stop()
        with request.start_worker(on_all_cores=name.startswith(ON_ALL_CORES)) as fresh:
            visitor = Visitor(fresh, journal, label=label, total=len(settings) * n_rounds[1])
            rng = generator(request.seed, name, request.program)
            with suppress(OutOfTime):
                if fresh.describe().facts["function"] != self.description.facts["function"]:
                    fault = "is another program when it is traced again; expected the same each"
                    how = "time: random numbers only from arguments, and no edit meanwhile"
                    raise PipelineError(f"{request.program}: {fault} {how}")
                run_rounds(visitor, settings, n_rounds=n_rounds[0], rng=rng)
                with time_limit((seconds_left() - rest_s) / 60):
                    run_rounds(visitor, settings, n_rounds=n_rounds[1], rng=rng)
        if journal.failed.keys() & {0, 1}:
            reason = next(iter(journal.failed.values()))
            raise PipelineError(f"{label}: the default failed: {reason}")
        return whole_rounds(journal, len(settings))

    def confirming_processes(self, stage: str) -> dict[Setting, list[Comparison]]:
        """Return the comparisons of the processes of a stage that had enough time, by setting."""
        comparisons: dict[Setting, list[Comparison]] = {}
        for path in sorted((self.out / JOURNALS).glob(f"{stage}-*.jsonl")):
            journal = self.journal(path.stem)
            ran, times = whole_rounds(journal, 3)
            if 2 in journal.failed:
                comparison = FAILED
            elif len(ran) == 3 and len(times) >= MIN_ROUNDS:
                comparison = compare_rounds(*times.T)
            else:
                continue
            comparisons.setdefault(tuple(journal.settings[2]), []).append(comparison)
        return comparisons

    def measured(
        self, candidates: Iterable[OptimizeCandidate], verified: Mapping[Setting, Comparison]
    ) -> list[OptimizeCandidate]:
        """Return candidates with all measurements in the journals.

        Each batch of processes of any candidate is one more chance of a lucky result. So all
        intervals share 5 % of error.
        """
        pools: list[dict[Setting, Comparison | None]] = []
        for stage in (CONFIRM, ON_ALL_CORES):
            by_setting = self.confirming_processes(stage)
            n_looks = sum(ceil(len(processes) / N_PROCESSES) for processes in by_setting.values())
            pools.append({key: pool_processes(ran, n_looks) for key, ran in by_setting.items()})
        alone, together = pools
        return [
            replace(
                candidate,
                description=self.describe(candidate.setting),
                verified=verified.get(candidate.setting),
                alone=alone.get(candidate.setting),
                together=together.get(candidate.setting),
                needs_all_cores=self.needs_all_cores,
            )
            if candidate.setting in verified or candidate.setting in alone
            else candidate
            for candidate in candidates
        ]
