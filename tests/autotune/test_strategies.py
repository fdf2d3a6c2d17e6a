"""The order in which `optimize` tries candidates, on programs of known runtimes."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure.program import WHOLE_PROGRAM, Description, Knobs
from autotune.measure.search import Search
from autotune.optimize.strategies import (
    changed,
    node_edits,
    option_changes,
    portfolio_search,
    random_changes,
)

N_OPTIONS, N_NODES = 4, 60
# Nodes 10 to 12 are one group: a barrier after one of them gains a third of the group's gain.
GROUPS = np.array([*range(10), *[10] * 3, *range(13, N_NODES)])
DESCRIPTION = Description(
    {
        "options": Knobs(
            *np.array([[3] * N_OPTIONS, range(N_OPTIONS), [WHOLE_PROGRAM] * N_OPTIONS])
        ),
        "fusion": Knobs(np.full(N_NODES, 2), GROUPS, np.arange(N_NODES)),
    },
    {},
    {},
)
HELPFUL, GROUP = (25, 40), (10, 11, 12)


def runtime_of(setting: NDArray[np.int64]) -> float:
    """Two options, two nodes and a group help. All other barriers cost 5 %."""
    options, barriers = setting[:N_OPTIONS], setting[N_OPTIONS:]
    ratio = 1.0 - 0.1 * (options[1] == 2) - 0.1 * (options[3] == 1) + 0.05 * (options[0] > 0)
    helpful = barriers[list(HELPFUL)].sum(), barriers[list(GROUP)].sum()
    n_others = barriers.sum() - sum(helpful)
    return float(ratio * 0.9 ** helpful[0] * 0.96 ** helpful[1] * 1.05**n_others)


def drive(search: Search, runtime: Callable[[NDArray[np.int64]], float]) -> NDArray[np.int64]:
    batches = [next(search)]
    with suppress(StopIteration):
        while True:
            batches.append(search.send(np.array([runtime(row) for row in batches[-1]])))
    return np.concatenate(batches)


def portfolio(n_candidates: int, seed: int = 0) -> NDArray[np.int64]:
    first = np.zeros((1, N_OPTIONS + N_NODES), np.int64)
    rng = np.random.default_rng(seed)
    return drive(portfolio_search(DESCRIPTION, n_candidates, rng, first), runtime_of)


@pytest.mark.parametrize("seed", range(3))
def test_portfolio_adds_up_the_options_and_edits_that_help(seed: int) -> None:
    settings = portfolio(110, seed)
    # Children of the genetic search, which comes last, may repeat settings.
    assert len(settings) == 110 and len(np.unique(settings[:65], axis=0)) == 65
    best = min(settings, key=runtime_of)
    assert best[:N_OPTIONS].tolist() == [0, 2, 0, 1]
    assert set(np.flatnonzero(best[N_OPTIONS:])) == {*HELPFUL, *GROUP}
    rng = np.random.default_rng(seed)
    drawn = drive(random_changes(DESCRIPTION, 110, rng), runtime_of)
    assert min(map(runtime_of, drawn)) > runtime_of(best) + 0.1


def test_portfolio_tries_options_before_edits_and_resumes_with_more_candidates() -> None:
    settings = portfolio(90)
    has_edits = settings[:, N_OPTIONS:].any(axis=1)
    assert not has_edits[: len(option_changes(DESCRIPTION))].any() and has_edits[20:65].all()
    for fewer in (5, 20, 47):
        assert np.array_equal(portfolio(fewer), settings[:fewer])


def test_portfolio_survives_settings_that_all_fail() -> None:
    first = np.zeros((1, N_OPTIONS + N_NODES), np.int64)
    search = portfolio_search(DESCRIPTION, 100, np.random.default_rng(0), first)
    settings = drive(search, lambda row: np.inf if row.any() else 1.0)
    assert len(settings) == 100


def test_edits_have_one_option_of_all_nodes_before_a_second_and_groups_before_members() -> None:
    knobs = Knobs(np.array([5, 5, 5, 2]), np.array([0, 0, 1, 2]), np.arange(4))
    description = Description({"layouts": knobs}, {}, {})
    edits = node_edits(description, np.random.default_rng(0))
    assert len(edits) == len(set(edits)) == 4 + 4 + 1 + 2 * 4
    nodes = [tuple(knob for knob, _ in edit) for edit in edits]
    assert {*nodes[:3]} == {(0, 1), (2,), (3,)} and {*nodes[3:5]} == {(0,), (1,)}


def test_random_settings_are_distinct_and_sparse() -> None:
    (settings,) = [drive(random_changes(DESCRIPTION, 300, np.random.default_rng(0)), runtime_of)]
    assert len(settings) == 300 == len(np.unique(settings, axis=0)) and not settings[0].any()
    assert (settings < DESCRIPTION.n_options).all()
    assert (settings[:, :N_OPTIONS] > 0).sum(axis=1).max() <= 3
    counts = (settings[:, N_OPTIONS:] > 0).sum(axis=1)
    assert counts.max() <= 3 + 2 and (counts == 1).mean() > 0.15
    assert changed((0, 0, 0), ((0, 1),), ((2, 2), (0, 3))) == (3, 0, 2)
