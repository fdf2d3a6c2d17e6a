"""Options of the XLA compiler that a config may set, as genes; g genes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Options = Mapping[str, str | bool]  # of the compiler, by name

DISABLED = "xla_disable_hlo_passes"  # the one option that several decisions add to

# Compiler options by what is decided: the values of each gene after 0, each the options that it
# sets. Which are worth a try was found by measuring on a CPU, with JAX 0.10: whether dots and
# reductions go to a library, how wide vectors are, how hard LLVM tries. Each makes some programs
# much faster and others much slower; none is better for all.
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
    found: dict[str, str | bool] = {}
    for values, chosen in zip(GENES.values(), choice.tolist(), strict=True):
        if chosen:
            found = joined(found, values[chosen - 1])
    return found


def joined(one: Options, other: Options) -> dict[str, str | bool]:
    """Return both sets of options; passes that both disable are disabled together."""
    both = {**one, **other}
    if DISABLED in one and DISABLED in other:
        both[DISABLED] = f"{one[DISABLED]},{other[DISABLED]}"
    return both
