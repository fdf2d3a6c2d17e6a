"""Power laws of cost: what one unit of a stage takes, by the sizes that it depends on.

seconds = coefficient · Π size ^ exponent, fitted to measurements by least squares on logarithms.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import PipelineError


@dataclass(frozen=True)
class PowerLaw:
    """A cost as a product of powers of sizes, by the name of each."""

    coefficient: float
    exponents: Mapping[str, float]

    def __call__(self, **sizes: float) -> float:
        """Return the cost at these sizes; those that the law does not know have no effect."""
        value = self.coefficient
        for name, exponent in self.exponents.items():
            value *= sizes[name] ** exponent
        return value


def fit_law(
    sizes: Sequence[Mapping[str, float]], costs: Sequence[float], names: Sequence[str]
) -> PowerLaw:
    """Fit a law in the sizes called `names` by least squares on logarithms; all values above 0.

    Raises:
        ValueError: the measurements do not tell the exponents apart.
    """
    logs = np.log([[row[name] for name in names] for row in sizes]).reshape(len(sizes), len(names))
    matrix = np.column_stack([np.ones(len(sizes)), logs])
    if np.linalg.matrix_rank(matrix) < matrix.shape[1]:
        raise ValueError(f"{len(sizes)} measurements do not tell {', '.join(names)} apart")
    solution, *_ = np.linalg.lstsq(matrix, np.log(costs), rcond=None)
    exponents = dict(zip(names, map(float, solution[1:]), strict=True))
    return PowerLaw(float(np.exp(solution[0])), exponents)


@dataclass(frozen=True)
class Laws:
    """What was measured on one machine: processor seconds of one unit of each stage, and memory.

    `mib` is of a stage, beyond what the interpreter and its libraries take.
    """

    seconds: Mapping[str, PowerLaw]
    mib: Mapping[str, PowerLaw]
    libraries_mib: float
    machine: Mapping[str, Any]


def read_laws(path: Path) -> Laws:
    """Read what `python -m benchmarks.rehearsal.command` wrote.

    Raises:
        PipelineError: the file is missing or holds something else.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        tables = {
            kind: {
                name: PowerLaw(law["coefficient"], dict(law["exponents"]))
                for name, law in table["laws"][kind].items()
            }
            for kind in ("seconds", "mib")
        }
        return Laws(
            tables["seconds"], tables["mib"], float(table["libraries_mib"]), table["machine"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{path}: cannot be read: {error!r}; expected laws of cost, as `make rehearsal` writes"
        ) from error
