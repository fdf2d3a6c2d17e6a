"""Searches that choose configs of a program; c configs of g knobs.

A search is a generator that yields settings (b, g) and receives their runtimes (b,) in ns. The
runtime of a failed setting is inf. A search depends only on its random generator and on these
runtimes, so a collection that was killed replays it.
"""

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray

from data.hlo.choices import Choices, Space

Search = Generator[Choices, NDArray[np.float64], None]
# Returns the positions (b,) of settings (b, g), sorted by their predicted runtimes.
Guide = Callable[[Choices], NDArray[np.int64]]

# Share of random configs that are measured again.
REPEATED_SHARE = 0.05
# Expected number of changed knobs of a child, at least. Twice as much is usual.
MUTATIONS = 1.0
GENERATION = 16
ELITE = 8
# Children that a guide chooses from, for each measured child.
BRED_PER_CHILD = 8


def random_search(space: Space, n_configs: int, rng: np.random.Generator) -> Search:
    """Yield the default and random settings. Each setting leaves a random share to the compiler.

    If all knobs change, every edge needs a copy, and all runtimes are similar. A random share gives
    a wider range of runtimes. Some settings are measured again.
    """
    settings = np.repeat(space.default, n_configs, axis=0)
    for row in range(1, n_configs):
        if rng.random() < REPEATED_SHARE:
            settings[row] = settings[rng.integers(row)]
        else:
            settings[row] = space.redraw(settings[row], rng.random(), rng)
    yield settings


def genetic_search(
    space: Space,
    n_configs: int,
    rng: np.random.Generator,
    *,
    first: Choices | None = None,
    guide: Guide | None = None,
) -> Search:
    """Yield first settings, then generations of children.

    A child crosses one of the fastest settings with any earlier setting, knob by knob. Then it
    changes a few knobs or groups, sometimes many. A search that stays near the best setting would
    only measure configs that differ by less than the noise.

    Args:
        first: First settings, (b, g). None means the default.
        guide: Function that sorts children by predicted runtime. With a guide each generation has
            more children, and the first new ones are measured. The search ends without new ones.
    """
    settings = space.default if first is None else first
    runtime_ns = yield settings
    n_bred = GENERATION * (BRED_PER_CHILD if guide else 1)
    while len(settings) < n_configs:
        ran = np.flatnonzero(np.isfinite(runtime_ns))
        if not len(ran):
            ran = np.zeros(1, np.int64)
        fastest = ran[np.argsort(runtime_ns[ran], kind="stable")][:ELITE]
        children = np.stack(
            [
                _child(space, settings[rng.choice(fastest)], settings[rng.choice(ran)], rng)
                for _ in range(n_bred)
            ]
        )
        if guide:
            children = _new(children, settings)
            if not len(children):
                return
            children = children[guide(children)]
        children = children[: min(GENERATION, n_configs - len(settings))]
        children_ns = yield children
        settings = np.concatenate([settings, children])
        runtime_ns = np.concatenate([runtime_ns, children_ns])


def _new(children: Choices, settings: Choices) -> Choices:
    """Return the distinct children (b, g) that are not among settings (c, g)."""
    earlier_keys = {row.tobytes() for row in settings}
    new = {row.tobytes(): row for row in children if row.tobytes() not in earlier_keys}
    return np.array([*new.values()]).reshape(len(new), children.shape[1])


def _child(space: Space, parent: Choices, mate: Choices, rng: np.random.Generator) -> Choices:
    # The share of changed knobs has a long tail.
    child = np.where(rng.random(len(parent)) < 0.5, parent, mate)
    share = min(1.0, MUTATIONS / len(parent) / max(rng.random(), 1e-9))
    return space.redraw(child, share, rng)


SEARCHES: dict[str, Callable[[Space, int, np.random.Generator], Search]] = {
    "random": random_search,
    "default": genetic_search,
}
