"""A run on paper: the jobs that a run has, at the published sizes."""

from dataclasses import replace

import pytest

from data.official.published import official_sizes
from models.config.recipe import load_recipe
from pipeline.planning.cards import CARDS
from pipeline.planning.plan import Machine
from pipeline.run.simulated import simulate_run

TREES = load_recipe("trees", [])
SIZES = official_sizes()


def test_three_gpus_are_at_work_nearly_all_of_the_time_of_the_leaderboard_recipe() -> None:
    recipe = load_recipe("leaderboard", [])
    machine = Machine(CARDS["t4"])
    one = simulate_run(recipe, SIZES, machine, n_cores=16)
    three = simulate_run(recipe, SIZES, replace(machine, n_cards=3), n_cores=24)
    assert one.work.efficiency > 0.99 and three.work.efficiency >= 0.95
    assert three.n_gpus * three.work.efficiency * three.work.seconds == pytest.approx(
        one.work.efficiency * one.work.seconds
    )


def test_a_run_without_a_gpu_takes_all_cores() -> None:
    hours = [simulate_run(TREES, SIZES, Machine(None), n_cores=n).hours for n in (1, 2, 16, 96)]
    assert hours == sorted(hours, reverse=True) and hours[0] > 1.8 * hours[1] > 3 * hours[2]
    many = simulate_run(TREES, SIZES, Machine(None), n_cores=96).work
    assert many.limit == ["train tile-xla/tile_boosting-seed0", "predict tile:xla/test"]
    on_cards = simulate_run(TREES, SIZES, Machine(CARDS["t4"], 2), n_cores=2)
    assert on_cards.work.efficiency == 0  # there is nothing for them
