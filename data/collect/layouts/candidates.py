"""Configs to choose from before anything is measured: distinct random ones; c of g genes."""

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from common.seeds import generator
from data.collect.layouts.module import ConfigurableNode
from data.collect.layouts.options import node_groups, node_options
from data.collect.measuring.search import Choices, Space

DRAWS_PER_CHOICE = 20  # after so many draws for each that is wanted, a small space has been seen


def draw_choices(space: Space, n_choices: int, rng: np.random.Generator) -> Choices:
    """Draw distinct choices as `random_search` does: each leaves a random share to the compiler.

    Args:
        n_choices: how many, the first included, which leaves everything to the compiler.

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


def candidate_configs(
    nodes: Sequence[ConfigurableNode], n_configs: int, *, seed: int
) -> NDArray[np.int8]:
    """Draw distinct layout configs of k nodes; config 0 leaves all to the compiler.

    Each node gets layouts that kernels are written for (`layout_options`); nodes of one operation
    and shape do alike half of the time, as in the searches that measure.

    Returns:
        (c, k, 18) int8, c at most `n_configs`.
    """
    options = [node_options(node) for node in nodes]
    n_options = np.array([len(rows) for rows in options], np.int64)
    space = Space(n_options, node_groups(nodes))
    choices = draw_choices(space, n_configs, generator(seed, "candidates"))
    return np.stack([rows[choices[:, node]] for node, rows in enumerate(options)], axis=1)
