"""What each stage of a run took: time and memory, added up over the calls that a run took."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from data.atomic import write_bytes
from data.errors import PipelineError
from data.peak_memory import peak_mib, reset_peak
from data.sealed import SEAL_KEY, UNSEALED, check_seal, sealed

COSTS = "costs.json"


@dataclass
class Costs:
    """Stages that have ended, in the order in which they first did.

    Attributes:
        seconds: wall time by stage; of a stage that was cut off, only what followed.
        peak_mib: peak of resident memory by stage, of the run's own process; None where the system
            does not tell.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, float | None] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage; stages do not overlap. One that fails is not counted."""
        resets = reset_peak()
        start = time.perf_counter()
        yield
        self._count(name, time.perf_counter() - start, peak_mib() if resets else None)

    def add(self, other: "Costs") -> None:
        """Count the stages of another measurement as well."""
        for name, seconds in other.seconds.items():
            self._count(name, seconds, other.peak_mib[name])

    def _count(self, name: str, seconds: float, peak: float | None) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        peaks = [value for value in (self.peak_mib.get(name), peak) if value is not None]
        self.peak_mib[name] = max(peaks, default=None)

    def rounded(self) -> dict[str, dict[str, float | None]]:
        """Return both tables as the report holds them."""
        return {
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "peak_mib": {
                name: None if value is None else round(value)
                for name, value in self.peak_mib.items()
            },
        }


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
        found = json.loads(path.read_text(encoding="utf-8"))
        return Costs(dict(found["seconds"]), dict(found["peak_mib"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineError(
            f"{path}: cannot be read: {error!r}; expected seconds and peak_mib by stage; remove it"
        ) from error


def write_costs(out: Path, costs: Costs, *, name: str = COSTS) -> None:
    """Write what the run's calls have taken so far."""
    text = json.dumps({**costs.rounded(), SEAL_KEY: UNSEALED}, indent=1) + "\n"
    write_bytes(out / name, sealed(text.encode()))
