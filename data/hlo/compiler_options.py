"""Options of the XLA compiler that a config may set, as knobs; g knobs."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Options = Mapping[str, str | bool]  # by name

DISABLED = "xla_disable_hlo_passes"  # the one option that several decisions add to

# Knobs by name, with the compiler options of each value after 0. Measurements on a CPU with JAX
# 0.10 selected them: library calls for dots and reductions, vector widths, LLVM's effort. Each
# makes some programs much faster and others much slower.
GENES: Mapping[str, tuple[Options, ...]] = {
    "library": ({DISABLED: "dot-library-rewriter"},),
    "vector width": (
        {"xla_cpu_prefer_vector_width": "512"},
        {"xla_cpu_prefer_vector_width": "128"},
    ),
    "LLVM": ({"xla_backend_optimization_level": "1"},),
    "fusion emitters": ({"xla_cpu_use_fusion_emitters": False},),
    "expensive passes": ({"xla_llvm_disable_expensive_passes": True},),
    "scheduler": ({"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},),
}
N_OPTIONS = np.array([1 + len(values) for values in GENES.values()], np.int64)


def options_of(choice: NDArray[np.int64]) -> dict[str, str | bool]:
    """Return the compiler options of a choice (g,)."""
    options: dict[str, str | bool] = {}
    for values, value in zip(GENES.values(), choice.tolist(), strict=True):
        if value:
            options = joined(options, values[value - 1])
    return options


def joined(first: Options, second: Options) -> dict[str, str | bool]:
    """Merge two sets of options. Passes that either set disables are disabled."""
    options = {**first, **second}
    if DISABLED in first and DISABLED in second:
        options[DISABLED] = f"{first[DISABLED]},{second[DISABLED]}"
    return options
