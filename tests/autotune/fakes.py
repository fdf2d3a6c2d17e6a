"""Subjects whose runtimes are known, and which may crash, hang or refuse; no jax."""

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.job import Job
from autotune.measure.worker import Decisions, Description, Loaded
from common.errors import PipelineError
from data.tree import collection_named

STEP_NS = 60_000
HANG_S = 60.0


@dataclass(frozen=True)
class SpinSource:
    """Two knobs of four options: option (a, b) spins for 0.06 ms · (1 + 4 a + b)."""

    crashes: int = -1  # the option of the first knob that does so
    hangs: int = -1
    refuses: int = -1
    flat: bool = False  # every option takes the same time
    alike: bool = False  # odd options of the first knob are one module, and even ones another
    broken: bool = False  # the subject cannot be opened
    collection_kind: str = "layout"  # or "tile": whose arrays it has
    n_nodes: int = 3
    function: str = "digest"  # of what is lowered

    def __call__(self) -> "SpinSubject":
        if self.broken:
            raise PipelineError("no such device")
        return SpinSubject(self)


class SpinSubject:
    def __init__(self, source: SpinSource) -> None:
        self._source = source

    def describe(self) -> Description:
        arrays: dict[str, NDArray[Any]] = {
            "node_feat": np.zeros((self._source.n_nodes, 140), np.float32),
            "node_opcode": np.array([*[63] * (self._source.n_nodes - 1), 34], np.uint8),
            "edge_index": np.array([[2, 0], [2, 1]], np.int64),
        }
        if self._source.collection_kind == "layout":
            arrays["node_config_ids"] = np.array([1, 2], np.int64)
            arrays["node_splits"] = np.array([[0, self._source.n_nodes]], np.int64)
        facts = {"platform": "cpu", "jax": "none", "device": "fake"}
        facts["function"] = self._source.function
        names = tuple(f"step.{node}" for node in range(self._source.n_nodes))
        return Description(np.array([4, 4]), np.array([0, 1]), arrays, facts, names=names)

    def spell(self, settings: NDArray[np.int64]) -> NDArray[Any]:
        if self._source.collection_kind == "tile":
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
        if first == self._source.refuses:
            raise ValueError("layout is\nnot supported")
        steps = self.steps(setting)
        return Loaded(lambda: spin(steps * STEP_NS), str(steps))

    def steps(self, setting: NDArray[np.int64]) -> int:
        first, second = setting.tolist()
        if self._source.alike:
            return 1 + first % 2
        return 1 if self._source.flat else 1 + 4 * first + second

    def describe_setting(self, setting: NDArray[np.int64]) -> Decisions:
        return Decisions({})


def spin(ns: int) -> None:
    end = time.process_time_ns() + ns
    while time.process_time_ns() < end:
        sum(range(50))  # asking the clock all the time is work of the system's


def layout_job(source: SpinSource | None = None, **changes: Any) -> Job:
    given: dict[str, Any] = {
        "program": "spin_b8",
        "family": "spin",
        "collection": collection_named("layout:xla:random"),
        "decides": "layout",
        "n_configs": 10,
        "timeout_s": 20.0,
    }
    return Job(open_measurable=source or SpinSource(), **(given | changes))
