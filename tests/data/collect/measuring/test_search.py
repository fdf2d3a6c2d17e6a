"""Searches start at the compiler's own choice, stay legal, and can be replayed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data.collect.measuring.search import (
    Space,
    draw_choices,
    exhaustive_search,
    genetic_search,
    random_search,
)

N_OPTIONS = np.array([3, 3, 3, 5, 2, 2, 1, 4])
GROUPS = np.array([7, 7, 7, 1, 2, 2, 3, 4])


def evolve(
    n_configs: int,
    runtime_ns: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    seed: int = 0,
    **more: Any,
) -> NDArray[np.int64]:
    """Drive the genetic search with known runtimes; all its choices (c, g)."""
    rng = np.random.default_rng(seed)
    search = genetic_search(Space(N_OPTIONS, GROUPS), n_configs, rng, **more)
    batches = [next(search)]
    try:
        while True:
            batches.append(search.send(runtime_ns(batches[-1])))
    except StopIteration:
        return np.concatenate(batches)


def distance_ns(choices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Runtimes that are lowest where every gene takes its last option."""
    return 100.0 + np.abs(choices - (N_OPTIONS - 1)).sum(axis=1)


def is_legal(choices: NDArray[np.int64]) -> bool:
    return bool(((choices >= 0) & (choices < N_OPTIONS)).all())


def drawn(n_options: list[int], groups: list[int], n: int, seed: int = 0) -> NDArray[np.int64]:
    """All choices (c, g) of a random search."""
    space = Space(np.array(n_options), np.array(groups))
    return next(random_search(space, n, np.random.default_rng(seed)))


def test_random_search_starts_with_the_default_and_draws_every_option_alike_in_many_groups() -> (
    None
):
    choices = drawn(N_OPTIONS.tolist(), GROUPS.tolist(), 400)
    assert choices.shape == (400, 8)
    assert not choices[0].any()
    assert is_legal(choices)
    assert (choices.max(axis=0) == N_OPTIONS - 1).all()
    group = choices[:, :3]
    alike = (group == group[:, :1]).all(axis=1)
    assert (alike & group.any(axis=1)).mean() > 0.15 and (~alike).mean() > 0.15
    assert drawn([2, 9], [0, 0], 200).max(axis=0).tolist() == [1, 8]  # unequal options in a group


def test_random_search_changes_a_varying_share_and_repeats_some() -> None:
    choices = drawn([4] * 50, [*range(50)], 300, seed=1)
    share = (choices > 0).mean(axis=1)
    assert (share < 0.2).mean() > 0.1 and (share > 0.5).mean() > 0.1
    assert 260 <= len(np.unique(choices, axis=0)) < 300


def test_genetic_search_starts_at_the_default_is_legal_improves_and_can_be_replayed() -> None:
    choices = evolve(200, distance_ns)
    assert choices.shape == (200, 8)
    assert not choices[0].any()
    assert is_legal(choices)
    runtime_ns = distance_ns(choices)
    assert runtime_ns[-50:].mean() < runtime_ns[:50].mean() - 2
    assert runtime_ns.min() == 100.0
    assert np.array_equal(choices, evolve(200, distance_ns))
    assert not np.array_equal(choices, evolve(200, distance_ns, seed=1))


def test_genetic_search_breeds_from_no_config_that_failed() -> None:
    def only_the_default_runs(choices: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(choices.any(axis=1), np.inf, 1.0)

    choices = evolve(150, only_the_default_runs)
    # Children of the default alone differ from it in few genes; a pool of failures drifts away.
    assert (choices > 0).sum(axis=1).mean() < 2.5


def test_a_guide_picks_the_children_that_are_measured() -> None:
    """One that knows the runtimes but for noise leads to the best in a fraction of the visits."""

    def by_guess(choices: NDArray[np.int64]) -> NDArray[np.int64]:
        noise = np.random.default_rng(len(choices)).normal(scale=2, size=len(choices))
        return np.argsort(distance_ns(choices) + noise)

    plain = [distance_ns(evolve(49, distance_ns, seed)).min() for seed in range(10)]
    guided = [evolve(49, distance_ns, seed, guide=by_guess) for seed in range(10)]
    assert np.mean([distance_ns(own).min() for own in guided]) < np.mean(plain) - 1
    assert all(is_legal(own) and len(np.unique(own, axis=0)) == 49 for own in guided)
    longer = evolve(60, distance_ns, guide=by_guess)  # goes on from where the shorter one ended
    assert np.array_equal(longer[:49], guided[0])


def test_a_guided_search_ends_where_nothing_is_new() -> None:
    space, rng = Space(np.array([2, 2]), np.arange(2)), np.random.default_rng(0)
    search = genetic_search(space, 60, rng, guide=lambda choices: np.arange(len(choices)))
    found = [next(search)]
    with pytest.raises(StopIteration):
        while True:
            found.append(search.send(np.ones(len(found[-1]))))
    assert len(np.concatenate(found)) == 4


def test_exhaustive_search_is_distinct_and_starts_at_the_default() -> None:
    space = Space(np.array([30]), np.zeros(1, np.int64))
    some, everything = (
        next(exhaustive_search(space, n, np.random.default_rng(0))) for n in (12, 500)
    )
    assert some.shape == (12, 1) and some[0] == 0 and len(np.unique(some)) == 12
    assert sorted(everything[:, 0]) == list(range(30))


@pytest.mark.parametrize(
    ("n_options", "wanted", "found"), [([3, 2], 10**9, range(7)), ([4] * 9, 50, [50])]
)
def test_drawn_choices_are_distinct_and_as_many_as_there_are(
    n_options: list[int], wanted: int, found: Sequence[int]
) -> None:
    """A thousand million draws of a small space would take days."""
    space = Space(np.array(n_options), np.arange(len(n_options)))
    choices = draw_choices(space, wanted, np.random.default_rng(0))
    assert len({tuple(row) for row in choices.tolist()}) == len(choices)
    assert len(choices) in found
    assert not choices[0].any()
    assert (choices < space.n_options).all()
