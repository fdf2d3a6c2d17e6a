"""A program that rejects settings with wrong outputs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.program import Loaded, MeasurableProgram
from autotune.programs.compiled import raw, share_finite
from common.errors import PipelineError
from data.hlo.choices import Choices

# Outputs may differ by rounding, by this share of the largest value of each output.
TOLERANCE = {"float64": 1e-6, "float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}
TOLERANCE |= {"complex128": 1e-6, "complex64": 1e-4}
# One unit of the last of two or three bits of the fraction.
TOLERANCE |= {"float8_e5m2": 0.25, "float8_e4m3fn": 0.125}


class SameOutputs:
    """A program that rejects settings whose outputs differ from the default's."""

    def __init__(self, program: MeasurableProgram) -> None:
        self.describe, self.spell = program.describe, program.spell
        self.describe_setting = program.describe_setting
        self._load = program.load
        self._expected: list[NDArray[Any]] | None = None

    def load(self, setting: Choices) -> Loaded:
        """Compile for one setting (g,) and compare its outputs with the default's."""
        executable = self._load(setting)
        if self._expected is None:
            default = self._load(np.zeros_like(setting)) if setting.any() else executable
            reference = _flat(default.run())
            if not share_finite(reference):
                fault = "no number of the outputs is finite, so nothing can be compared"
                raise PipelineError(f"{fault}; expected other arguments (--arguments of a file)")
            self._expected = reference
        owner = "the default's" if setting.any() else "its own of another call"
        for number, pair in enumerate(zip(_flat(executable.run()), self._expected, strict=True)):
            _check_same(f"output {number} differs from {owner}", *pair)
        return executable


def _flat(outputs: object) -> list[NDArray[Any]]:
    import jax

    return [np.asarray(raw(leaf)) for leaf in jax.tree.leaves(outputs)]


def _check_same(problem: str, output: NDArray[Any], reference: NDArray[Any]) -> None:
    if output.shape != reference.shape:
        raise PipelineError(f"{problem}: {list(output.shape)}; expected {list(reference.shape)}")
    tolerance = TOLERANCE.get(str(reference.dtype), 0.0)
    if not tolerance:
        difference = float((output != reference).mean())
    else:
        is_finite = np.isfinite(reference)
        wide_type = np.complex128 if reference.dtype.kind == "c" else np.float64
        wide, exact = output[is_finite].astype(wide_type), reference[is_finite].astype(wide_type)
        difference = float(
            np.abs(wide - exact).max(initial=0) / max(np.abs(exact).max(initial=0), 1e-30)
        )
        difference = difference if np.array_equal(np.isfinite(output), is_finite) else np.inf
    if not difference <= tolerance:
        raise PipelineError(
            f"{problem} by {difference:.2g} of its largest value; expected at most {tolerance:g}"
        )
