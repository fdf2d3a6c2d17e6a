"""Choices of a program: an option for each of its g genes, (g,) int64; 0 = the compiler's own."""

from math import prod

import numpy as np
from numpy.typing import NDArray

Choices = NDArray[np.int64]

ALIKE = 0.5  # share of changes in which a whole group takes the same option
DRAWS_PER_CHOICE = 20  # after so many for each that is wanted, a small space has been seen


class Space:
    """The choices of one program, of n_options and groups (g,) as in a Description."""

    def __init__(self, n_options: NDArray[np.int64], groups: NDArray[np.int64]) -> None:
        self.n_options = n_options
        _, self._member = np.unique(groups, return_inverse=True)  # (g,) group numbers from 0
        self._group_options = np.full(int(self._member.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(self._group_options, self._member, n_options)

    @property
    def default(self) -> Choices:
        """Return the (1, g) choice that leaves everything to the compiler."""
        return np.zeros((1, len(self.n_options)), np.int64)

    def redraw(self, choice: Choices, share: float, rng: np.random.Generator) -> Choices:
        """Draw about a `share` of the genes of a choice (g,) anew, by group or one by one."""
        if rng.random() < ALIKE:
            changed = rng.random(len(self._group_options)) < share
            drawn = rng.integers(0, self._group_options)[self._member]
            return np.where(changed[self._member], drawn, choice)
        changed = rng.random(len(choice)) < share
        return np.where(changed, rng.integers(0, self.n_options), choice)


def draw_choices(space: Space, n_choices: int, rng: np.random.Generator) -> Choices:
    """Draw distinct choices (c, g), each leaving a random share to the compiler, the first one all.

    Fewer than `n_choices` where the space has no more, or hardly.
    """
    default = space.default[0]
    n_choices = min(n_choices, prod(space.n_options.tolist()))
    found = {default.tobytes(): default}
    for _ in range(DRAWS_PER_CHOICE * n_choices):
        if len(found) >= n_choices:
            break
        choice = space.redraw(default, rng.random(), rng)
        found.setdefault(choice.tobytes(), choice)
    return np.stack(list(found.values())[:n_choices])
