"""A program whose layouts are chosen as something to measure; opened in the worker."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.collect.layouts.realise import LayoutProgram
from data.collect.measuring.device import open_device
from data.collect.measuring.worker import Description


@dataclass(frozen=True)
class LayoutSource:
    """A program by name, on a device."""

    program: str
    device: str | None = None

    def open(self) -> "LayoutSubject":
        """Compile the program once and find what may be chosen.

        Raises:
            PipelineError: no such program or device, or it cannot be compiled.
        """
        facts = open_device(self.device)
        from data.collect.layouts.constraints import load_constrained
        from data.collect.programs import load_program

        return LayoutSubject(load_constrained(load_program(self.program)), facts)


class LayoutSubject:
    """A program with one gene per configurable node: which of its k nodes' options."""

    def __init__(self, program: LayoutProgram, facts: dict[str, str]) -> None:
        self._program = program
        self._facts = facts

    def describe(self) -> Description:
        """Return the program's graph and the number of options of its k nodes."""
        return Description(
            n_options=np.array([len(options) for options in self._program.options], np.int64),
            groups=self._program.groups,
            arrays={key: np.asarray(value) for key, value in self._program.graph.items()},
            facts=self._facts,
        )

    def spell(self, choices: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return choices (c, k) as configs (c, k, 18)."""
        options = self._program.options
        return np.stack([options[node][choices[:, node]] for node in range(len(options))], axis=1)

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile under the config of a choice (k,)."""
        return self._program.compile(self.spell(choice[None])[0])
