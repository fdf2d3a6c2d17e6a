"""The benchmark measures what it says, and the goal is met."""

import pytest

from benchmarks.speed.blending import COLLECTIONS, GOAL_MIB, GOAL_S, make, measure, peak


def test_members_and_runtimes_are_of_the_same_configs() -> None:
    by, tables = make("tile:xla", 4, 10, 20)
    assert by.too_few() is None
    assert by.runtimes.height == 200
    assert list(tables) == ["model0-seed0", "model0-seed1", "model1-seed0", "model1-seed1"]
    for table in tables.values():
        assert table["config_hash"].equals(by.runtimes["config_hash"])


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_small_choice_is_measured(collection: str) -> None:
    assert measure(collection, 3, 9, 20) > 0


@pytest.mark.slow
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_choosing_keeps_to_its_goals(collection: str) -> None:
    assert measure(collection) < GOAL_S
    assert peak(collection) < GOAL_MIB
