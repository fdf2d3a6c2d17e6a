"""Options of the XLA compiler that a config may set, as knobs; g knobs."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Options = Mapping[str, str | bool]  # by name

DISABLED = "xla_disable_hlo_passes"
# Flags of the CPU compiler that are no options of a compilation. XLA reads them from XLA_FLAGS.
EXTRA = "xla_backend_extra_options"
# Several decisions may add to the list of one of these options.
_LISTS = (DISABLED, EXTRA)
_FUSION = "xla_cpu_experimental_ynn_fusion_type"
_FUSED = ("DOT", "ELTWISE", "REDUCE", "INDIVIDUAL_DOT", "INDIVIDUAL_CONVOLUTION")

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
    "library fusion": tuple(
        {_FUSION: ",".join(f"LIBRARY_FUSION_TYPE_{name}" for name in names)}
        for names in (_FUSED[:2], _FUSED)
    ),
    "loop unrolling": ({EXTRA: "xla_cpu_disable_loop_unrolling"},),
    "small loops": ({EXTRA: "xla_cpu_small_while_loop_byte_threshold=1000000000"},),
    "multi-output fusion": ({EXTRA: "xla_cpu_use_multi_output_fusion"},),
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
    """Merge two sets of options. Lists of passes and of extra flags are joined."""
    both = [name for name in _LISTS if name in first and name in second]
    lists = {name: f"{first[name]},{second[name]}" for name in both}
    return {**first, **second, **lists}


def extra_flag(extra: object) -> str:
    """Return the flag of XLA_FLAGS that sets extra options, "" if there are none."""
    return f"--{EXTRA}={extra}" if extra else ""
