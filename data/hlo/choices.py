"""Choices of a program: an option for each of its g knobs, (g,) int64; 0 = the compiler's own."""

from math import prod

import numpy as np
from numpy.typing import NDArray

Choices = NDArray[np.int64]

# Share of changes in which a whole group takes the same option.
GROUP_CHANGE_SHARE = 0.5
# Enough draws per wanted choice to see a small space whole.
DRAWS_PER_CHOICE = 20


class Space:
    """All choices of one program.

    Args:
        n_options: Number of options of each knob, (g,), at least 1.
        groups: Group of each knob, (g,). Knobs of a group may change together.
    """

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
        """Redraw each knob of a choice (g,), or each group, with probability `share`."""
        if rng.random() < GROUP_CHANGE_SHARE:
            is_changed = rng.random(len(self._group_options)) < share
            options = rng.integers(0, self._group_options)[self._member]
            return np.where(is_changed[self._member], options, choice)
        is_changed = rng.random(len(choice)) < share
        return np.where(is_changed, rng.integers(0, self.n_options), choice)


def draw_choices(space: Space, n_choices: int, rng: np.random.Generator) -> Choices:
    """Draw distinct choices, (c, g), or all of a small space. The first leaves all unchosen."""
    default = space.default[0]
    n_choices = min(n_choices, prod(space.n_options.tolist()))
    distinct = {default.tobytes(): default}
    for _ in range(DRAWS_PER_CHOICE * n_choices):
        if len(distinct) >= n_choices:
            break
        choice = space.redraw(default, rng.random(), rng)
        distinct.setdefault(choice.tobytes(), choice)
    return np.stack(list(distinct.values())[:n_choices])
