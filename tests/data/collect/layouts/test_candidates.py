"""Random configs to choose from before anything is measured."""

import numpy as np

from data.collect.layouts.candidates import draw_choices
from data.collect.measuring.search import Space

SMALL = Space(np.array([3, 2]), np.array([0, 1]))


def test_a_small_space_is_not_searched_for_more_than_it_holds() -> None:
    """A thousand million draws would take days."""
    choices = draw_choices(SMALL, 10**9, np.random.default_rng(0))
    assert len({tuple(row) for row in choices.tolist()}) == len(choices) <= 6
    assert choices[0].tolist() == [0, 0]
    assert (choices < SMALL.n_options).all()


def test_choices_are_distinct_and_as_many_as_wanted() -> None:
    space = Space(np.full(9, 4), np.arange(9))
    choices = draw_choices(space, 50, np.random.default_rng(1))
    assert len({tuple(row) for row in choices.tolist()}) == 50
