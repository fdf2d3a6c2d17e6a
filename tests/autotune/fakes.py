"""Programs with known runtimes, which may crash, hang or refuse; no jax.

A worker imports this module to open them.
"""

import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure import worker
from autotune.measure.program import (
    WHOLE_PROGRAM,
    Decisions,
    Description,
    Knobs,
    Loaded,
    MeasurableProgram,
)
from autotune.optimize.session import OptimizeRequest
from autotune.plan import CollectRequest
from autotune.programs.catalogue import ProgramSource
from common.errors import PipelineError

STEP_NS = 60_000
HANG_S = 60.0
# The later options of a reversed program are faster, so its default is slow.
DEFAULT_STEPS = 17
# As an option that refuses, it stands for every setting but the default.
ALL_BUT_DEFAULT = -2


@dataclass(frozen=True)
class SpinSource:
    """Two knobs of four options: option (a, b) spins for 0.06 ms · (1 + 4 a + b).

    Attributes:
        crashes: Option of the first knob that does so, like `hangs` and `refuses`.
        is_reversed: The default is the slowest setting.
        is_flat: Every setting takes the same time.
        is_broken: The program cannot be opened.
        opens_s: Seconds to open the program, like `loads_s` to compile a setting.
        kind: "layout" or "tile", the arrays that it has.
        function: Digest of the lowered function. None if each process has another one.
    """

    crashes: int = -1
    hangs: int = -1
    refuses: int = -1
    is_reversed: bool = False
    is_flat: bool = False
    is_broken: bool = False
    opens_s: float = 0.0
    loads_s: float = 0.0
    kind: str = "layout"
    n_nodes: int = 3
    space: str = "layouts"
    usual: tuple[int, int] | None = None
    function: str | None = "digest"

    def __call__(self) -> "SpinProgram":
        if self.is_broken:
            raise PipelineError("no such device")
        time.sleep(self.opens_s)
        # All runs of a spin take the same time, so short visits are enough.
        worker.VISIT_BUDGET_NS = 5_000_000
        return SpinProgram(self)


class SpinProgram:
    def __init__(self, source: SpinSource) -> None:
        self._source = source

    def describe(self) -> Description:
        source = self._source
        arrays: dict[str, NDArray[Any]] = {
            "node_feat": np.zeros((source.n_nodes, 140), np.float32),
            "node_opcode": np.array([*[63] * (source.n_nodes - 1), 34], np.uint8),
            "edge_index": np.array([[2, 0], [2, 1]], np.int64),
        }
        if source.kind == "layout":
            arrays["node_config_ids"] = np.array([1, 2], np.int64)
            arrays["node_splits"] = np.array([[0, source.n_nodes]], np.int64)
        facts = {"platform": "cpu", "jax": "none", "device": "fake"}
        facts["function"] = source.function or str(os.getpid())
        knobs = Knobs(np.array([4, 4]), np.array([0, 1]), np.full(2, WHOLE_PROGRAM))
        usual = np.array(source.usual) if source.usual else None
        names = tuple(f"step.{node}" for node in range(source.n_nodes))
        return Description({source.space: knobs}, arrays, facts, usual, names)

    def spell(self, settings: NDArray[np.int64]) -> NDArray[Any]:
        if self._source.kind == "tile":
            return np.repeat(settings[:, :1], 24, axis=1).astype(np.float32)
        configs = np.full((*settings.shape, 18), -1, np.int8)
        configs[:, :, 6] = settings - 1  # the first dimension of the input's order
        return configs

    def load(self, setting: NDArray[np.int64]) -> Loaded:
        first = int(setting[0])
        if first == self._source.crashes:
            os.write(2, b"Check failed: layout\n")
            os.abort()
        if first == self._source.hangs:
            time.sleep(HANG_S)
        is_all = self._source.refuses == ALL_BUT_DEFAULT
        if first == self._source.refuses or (is_all and setting.any()):
            raise ValueError("layout is\nnot supported")
        time.sleep(self._source.loads_s)
        steps = self.steps(setting)
        return Loaded(lambda: spin(steps * STEP_NS), str(steps))

    def steps(self, setting: NDArray[np.int64]) -> int:
        first, second = setting.tolist()
        n_more = 0 if self._source.is_flat else 4 * first + second
        return DEFAULT_STEPS - n_more if self._source.is_reversed else 1 + n_more

    def describe_setting(self, setting: NDArray[np.int64]) -> Decisions:
        return Decisions({"options": {"first": int(setting[0])}}) if setting[0] else Decisions({})


def spin(ns: int) -> None:
    end = time.process_time_ns() + ns
    while time.process_time_ns() < end:
        sum(range(50))  # asking the clock all the time is work of the system's


@dataclass(frozen=True)
class SpinOptimizeRequest(OptimizeRequest):
    """A request of `optimize` that opens `spin` in place of its program."""

    spin: SpinSource = field(default_factory=SpinSource)

    def open(self) -> MeasurableProgram:
        return self.spin()


def spin_request(spin: SpinSource | None = None, **changes: object) -> SpinOptimizeRequest:
    fields: dict[str, Any] = {"spaces": ("layouts",), "n_candidates": 12, "n_rounds": 8} | changes
    return SpinOptimizeRequest("mine:step", **fields, spin=spin or SpinSource())


@dataclass(frozen=True)
class SpinCollectRequest(CollectRequest):
    """A request of `collect` that opens `spin` in place of its program."""

    spin: SpinSource = field(default_factory=SpinSource)
    family: str = "spin"

    @property
    def source(self) -> ProgramSource:  # type: ignore[override]
        name = self.program.replace(":", ".")
        return ProgramSource(name, self.family, "xla", lambda: (spin, ()))

    @property
    def open_measurable(self) -> SpinSource:
        return self.spin


def collect_request(spin: SpinSource | None = None, **changes: Any) -> SpinCollectRequest:
    fields: dict[str, Any] = {"program": "spin_b8", "n_configs": 10, "timeout_s": 20.0}
    if changes.get("kind") == "options":
        spin = SpinSource(kind="tile")
    return SpinCollectRequest(**(fields | changes), spin=spin or SpinSource())
