"""The training before the clock: that it happens, is short, leaves nothing, and when."""

from pathlib import Path
from typing import Any

import pytest

import pipeline.tuning.search
import pipeline.tuning.warm_up
from data.tree import collection_named, find_graphs
from models.config.recipe import Recipe
from models.training.folds import grouped_folds
from pipeline.tuning.warm_up import shortened, warm_up
from tests.models.small_study import PARAMETERS, recipe_table, search, space_over


@pytest.mark.parametrize("model", ["cross_config_sage", "layout_boosting", "layout_linear"])
def test_a_moment_of_training_and_a_ranking(
    model: str, tiny_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = collection_named("layout:xla:random")
    files = find_graphs(tiny_tree, collections=(place,), splits=("train",))
    loaded: list[Path] = []

    def load(folder: Path) -> Any:
        assert (folder / "DONE").exists()
        loaded.append(folder)
        return original(folder)

    original = pipeline.tuning.warm_up.load_model
    monkeypatch.setattr(pipeline.tuning.warm_up, "load_model", load)
    warm_up(Recipe.from_table(recipe_table(), source="test"), model, grouped_folds(files, 2, 0))
    [folder] = loaded
    assert not folder.exists()


def test_little_is_trained() -> None:
    short = shortened(Recipe(), "cross_config_sage").cross_config_sage
    assert (short.training.steps, short.training.shared_steps) == (2, 0)
    assert short.hidden == Recipe().cross_config_sage.hidden
    assert shortened(Recipe(), "layout_boosting").layout_boosting.rounds == 2


def test_it_comes_before_the_first_trial_of_a_search_that_judges_time(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    judge = pipeline.tuning.search.cross_validate

    def noted(*args: Any, **options: Any) -> Any:
        done.append("trial")
        return judge(*args, **options)

    monkeypatch.setattr(pipeline.tuning.search, "cross_validate", noted)
    monkeypatch.setattr(pipeline.tuning.search, "warm_up", lambda *args: done.append("warm-up"))
    timed = space_over(PARAMETERS, objectives="score-and-training-time")
    for _ in range(2):
        search(tiny_tree, tmp_path / "timed", trials=2, space=timed)
    assert done == ["warm-up", "trial", "trial"]
    done.clear()
    search(tiny_tree, tmp_path / "plain", trials=1)
    assert done == ["trial"]
