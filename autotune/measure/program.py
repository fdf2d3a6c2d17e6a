"""A program that runs at different speeds for different settings.

A program has g knobs in one or several spaces, for example compiler options. A setting is (g,)
int64, an option of each knob. Option 0 is the compiler's own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data.hlo.choices import Choices, Space

# The node of a knob of the whole program.
WHOLE_PROGRAM = -1


class Knobs(NamedTuple):
    """The knobs of one space.

    Attributes:
        n_options: Number of options of each knob, (g,).
        groups: Group of each knob, (g,). A search may give all knobs of a group the same option.
        nodes: Node of each knob, (g,), or `WHOLE_PROGRAM`.
    """

    n_options: NDArray[np.int64]
    groups: NDArray[np.int64]
    nodes: NDArray[np.int64]


@dataclass(frozen=True)
class Description:
    """The parts of a program that no setting changes.

    Attributes:
        knobs: Knobs by space. A setting has the options of all spaces in this order.
        arrays: Arrays of the graph, with the names of the npz format.
        facts: Digest of the function, the device and versions, for the manifest.
        usual: Setting that names the usual layouts, (g,). None without layouts.
        names: Names of the n instructions.
    """

    knobs: Mapping[str, Knobs]
    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, str]
    usual: Choices | None = None
    names: tuple[str, ...] = ()

    @property
    def slices(self) -> dict[str, slice]:
        """Return the place of each space in a setting."""
        ends = np.cumsum([len(knobs.nodes) for knobs in self.knobs.values()]).tolist()
        starts = [0, *ends[:-1]]
        return dict(zip(self.knobs, map(slice, starts, ends), strict=True))

    @property
    def n_options(self) -> NDArray[np.int64]:
        """Return the number of options of all knobs, (g,)."""
        return np.concatenate([knobs.n_options for knobs in self.knobs.values()])

    @property
    def space(self) -> Space:
        """Return the space of all settings."""
        places = zip(self.knobs.values(), self.slices.values(), strict=True)
        groups = np.concatenate([knobs.groups + place.start for knobs, place in places])
        return Space(self.n_options, groups)


class Decisions(NamedTuple):
    """The decisions of a setting as JSON values, and its program.

    The program is a `jax.export` artifact. None if the function itself with options is the program.
    """

    decisions: Mapping[str, Any]
    program: bytes | None = None


class Loaded(NamedTuple):
    """A compiled setting: a call that runs it once, and a digest of its machine code."""

    run: Callable[[], object]
    code: str


class MeasurableProgram(Protocol):
    """Something that runs at different speeds for different settings."""

    def describe(self) -> Description:
        """Return the parts that do not depend on a setting."""

    def spell(self, settings: Choices) -> NDArray[Any]:
        """Return config features of settings (c, g) as the npz file has them, (c, …)."""

    def load(self, setting: Choices) -> Loaded:
        """Compile for one setting (g,). Any exception means that the compiler rejects it."""

    def describe_setting(self, setting: Choices) -> Decisions:
        """Return the decisions of one setting (g,)."""


# Opens the program in the worker, so it must be picklable. It raises a PipelineError if there is no
# such program or device.
OpenProgram = Callable[[], MeasurableProgram]
