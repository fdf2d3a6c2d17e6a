"""Compiler options as decisions: one gene per option, 0 = as the compiler has it.

Which options are worth a try was found by measuring on a CPU, with JAX 0.10: whether dots and
reductions go to a library, how wide vectors are, how hard LLVM tries. Each makes some programs
much faster and others much slower; none is better for all.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from data.collect.programs.compiled import Options

DISABLED = "xla_disable_hlo_passes"  # the one option that several decisions add to

# By what is decided: the values of each gene after 0, each the options that it sets.
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
# Tried first, by gene and value: see `portfolio` in docs/results/optimize.md.
COMBINED = (
    {"library": 1, "vector width": 1},
    {"vector width": 1, "LLVM": 1},
    {"library": 1, "vector width": 1, "LLVM": 1, "fusion emitters": 1},
    {"library": 1, "LLVM": 1},
)


def menu() -> NDArray[np.int64]:
    """Return the choices that are tried before any search, COMBINED and each alone; (m, g)."""
    alone = [{gene: value} for gene, values in GENES.items() for value in range(1, len(values) + 1)]
    return np.array(
        [[choice.get(gene, 0) for gene in GENES] for choice in (*COMBINED, *alone)], np.int64
    )


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
