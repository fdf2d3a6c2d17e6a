"""A request whose program has known runtimes; a worker imports this module."""

from dataclasses import dataclass, field
from typing import Any

from autotune.measure.program import MeasurableProgram
from autotune.optimize.session import OptimizeRequest
from tests.autotune.fakes import SpinSource


@dataclass(frozen=True)
class SpinRequest(OptimizeRequest):
    """A request that opens `source` in place of its program."""

    source: SpinSource = field(default_factory=SpinSource)

    def open(self) -> MeasurableProgram:
        return self.source()


def spin_request(source: SpinSource | None = None, **changes: object) -> SpinRequest:
    fields: dict[str, Any] = {"spaces": ("layouts",), "n_candidates": 12, "n_rounds": 8} | changes
    return SpinRequest("mine:step", **fields, source=source or SpinSource())
