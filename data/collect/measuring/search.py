"""Which configs of a program to measure; c configs of g genes.

A choice is (g,) int64: the option of each gene, 0 = the compiler's own. A search is a generator
that yields choices (b, g) and is sent their (b,) runtimes in ns, inf for those that failed. It
depends on its generator of random numbers and on what it is sent alone, so that a collection
that was killed can replay it.
"""

from collections.abc import Callable, Generator
from math import prod

import numpy as np
from numpy.typing import NDArray

Choices = NDArray[np.int64]
Search = Generator[Choices, NDArray[np.float64], None]
# Orders choices (b, g) by what it guesses of their runtimes, the fastest first; (b,) positions.
Guide = Callable[[Choices], NDArray[np.int64]]

REPEATED = 0.05  # share of random configs that are measured again
ALIKE = 0.5  # share of changes in which a whole group takes the same option
MUTATIONS = 1.0  # genes that change in a child at least, as an expectation; twice that is usual
GENERATION = 16
ELITE = 8
BROOD = 8  # children that a guide chooses from, for each that is measured
DRAWS_PER_CHOICE = 20  # after so many for each that is wanted, a small space has been seen


class Space:
    """The choices of one program.

    Args:
        n_options: (g,) int64 options of each gene, at least 1.
        groups: (g,) int64; genes of one number may be drawn alike.
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
        """Draw about a `share` of the genes of a choice (g,) anew, by group or one by one."""
        if rng.random() < ALIKE:
            changed = rng.random(len(self._group_options)) < share
            drawn = rng.integers(0, self._group_options)[self._member]
            return np.where(changed[self._member], drawn, choice)
        changed = rng.random(len(choice)) < share
        return np.where(changed, rng.integers(0, self.n_options), choice)


def random_search(space: Space, n_configs: int, rng: np.random.Generator) -> Search:
    """Yield the default and choices that each leave a random share to the compiler.

    Choices that change everything all look alike to the compiler: every edge needs a copy. A
    share that varies from config to config gives a wider spread. Some are measured again.
    """
    choices = np.repeat(space.default, n_configs, axis=0)
    for row in range(1, n_configs):
        if rng.random() < REPEATED:
            choices[row] = choices[rng.integers(row)]
        else:
            choices[row] = space.redraw(choices[row], rng.random(), rng)
    yield choices


def genetic_search(
    space: Space,
    n_configs: int,
    rng: np.random.Generator,
    *,
    first: Choices | None = None,
    guide: Guide | None = None,
) -> Search:
    """Yield the default, or the `first` choices (b, g), then generations of children.

    A child crosses one of the fastest so far with any earlier choice, gene by gene, and changes a
    few genes or groups, at times many: a search that stays near the best would only measure configs
    that differ by less than the noise. With a guide more are bred, of which those that were not
    measured yet and are guessed the fastest are; it ends where there are none.
    """
    choices = space.default if first is None else first
    runtime_ns = yield choices
    n_bred = GENERATION * (BROOD if guide else 1)
    while len(choices) < n_configs:
        ran = np.flatnonzero(np.isfinite(runtime_ns))
        if not len(ran):
            ran = np.zeros(1, np.int64)
        fastest = ran[np.argsort(runtime_ns[ran], kind="stable")][:ELITE]
        children = np.stack(
            [
                _child(space, choices[rng.choice(fastest)], choices[rng.choice(ran)], rng)
                for _ in range(n_bred)
            ]
        )
        if guide:
            children = _new(children, choices)
            if not len(children):
                return
            children = children[guide(children)]
        children = children[: min(GENERATION, n_configs - len(choices))]
        children_ns = yield children
        choices = np.concatenate([choices, children])
        runtime_ns = np.concatenate([runtime_ns, children_ns])


def _new(children: Choices, known: Choices) -> Choices:
    """Return the distinct children (b, g) that are not among the known (c, g), in their order."""
    seen = {row.tobytes() for row in known}
    new = {row.tobytes(): row for row in children if row.tobytes() not in seen}
    return np.array([*new.values()]).reshape(len(new), children.shape[1])


def _child(space: Space, one: Choices, two: Choices, rng: np.random.Generator) -> Choices:
    """Cross two choices (g,) and mutate: the share of changes has a long tail; (g,)."""
    crossed = np.where(rng.random(len(one)) < 0.5, one, two)
    share = min(1.0, MUTATIONS / len(one) / max(rng.random(), 1e-9))
    return space.redraw(crossed, share, rng)


def exhaustive_search(space: Space, n_configs: int, rng: np.random.Generator) -> Search:
    """Yield the default and up to `n_configs` - 1 other choices of the only gene, all distinct."""
    others = 1 + rng.permutation(int(space.n_options[0]) - 1)[: n_configs - 1]
    yield np.concatenate([[0], others])[:, None]


SEARCHES: dict[str, Callable[[Space, int, np.random.Generator], Search]] = {
    "random": random_search,
    "default": genetic_search,
    "tiles": exhaustive_search,
}


def draw_choices(space: Space, n_choices: int, rng: np.random.Generator) -> Choices:
    """Draw distinct choices, each leaving a random share to the compiler, the first one everything.

    Returns:
        (c, g) int64; fewer than `n_choices` where the space has no more, or hardly.
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
