"""What each stage of a run took: time and memory, added up over the calls that a run took."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from common.atomic import write_bytes
from common.checksums import SEAL_KEY, UNSEALED, check_seal, sealed
from common.errors import PipelineError
from common.peak_memory import peak_mib, reset_peak

COSTS = "costs.json"


@dataclass
class Costs:
    """Stages that have ended, in the order in which they first did.

    Attributes:
        seconds: wall time by stage; of a stage that was cut off, only what followed.
        peak_mib: peak of resident memory by stage, of the run's own process; None where the system
            does not tell.
        cpu_seconds: processor time by stage, of all threads of the run's own process and of the
            processes it has begun and that have ended.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, float | None] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage; stages do not overlap. One that fails is not counted."""
        resets = reset_peak()
        start, cpu_start = time.perf_counter(), _cpu_s()
        yield
        cpu_s = _cpu_s() - cpu_start
        self._count(name, time.perf_counter() - start, cpu_s, peak_mib() if resets else None)

    def add(self, other: "Costs") -> None:
        """Count the stages of another measurement as well."""
        for name, seconds in other.seconds.items():
            self._count(name, seconds, other.cpu_seconds.get(name, 0.0), other.peak_mib[name])

    def _count(self, name: str, seconds: float, cpu_s: float, peak: float | None) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + cpu_s
        peaks = [value for value in (self.peak_mib.get(name), peak) if value is not None]
        self.peak_mib[name] = max(peaks, default=None)

    def rounded(self) -> dict[str, dict[str, float | None]]:
        """Return the tables as the report holds them."""
        return {
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "cpu_seconds": {name: round(value, 2) for name, value in self.cpu_seconds.items()},
            "peak_mib": {
                name: None if value is None else round(value)
                for name, value in self.peak_mib.items()
            },
        }


def _cpu_s() -> float:
    """Return the processor seconds of this process, and of those it has begun that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def read_costs(out: Path, *, name: str = COSTS) -> Costs:
    """Read what earlier calls of a run took; nothing where there was none.

    Raises:
        PipelineError: the file is damaged.
    """
    path = out / name
    if not path.exists():
        return Costs()
    check_seal(path, "remove the file, and costs are counted from now on")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        cpu_s = dict(table.get("cpu_seconds", {}))  # runs begun before have none
        return Costs(dict(table["seconds"]), dict(table["peak_mib"]), cpu_s)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{path}: cannot be read: {error!r}; expected seconds and peak_mib by stage; remove it"
        ) from error


def write_costs(out: Path, costs: Costs, *, name: str = COSTS) -> None:
    """Write what the run's calls have taken so far."""
    text = json.dumps({**costs.rounded(), SEAL_KEY: UNSEALED}, indent=1) + "\n"
    write_bytes(out / name, sealed(text.encode()))
