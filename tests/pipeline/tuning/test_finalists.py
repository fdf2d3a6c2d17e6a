"""Finalists: who they are, with which seeds they train, and when the baseline stays."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.bootstrap import family_interval
from common.settings import CONFIGS
from models.config.recipe import load_recipe
from models.run_folder import is_done, read_config
from pipeline.tuning.finalists import _verdict as verdict_of
from pipeline.tuning.finalists import candidates
from pipeline.tuning.result import FinalRecord, TrialRecord
from pipeline.tuning.space import load_space, with_values
from tests.models.small_study import PARAMETERS, SPACE, outcome, recipe_table, search, space_over

TWO = space_over(PARAMETERS, finalists=2, seeds=2)


def record(number: int, value: float | None, *, baseline: bool = False) -> TrialRecord:
    state = "fail" if value is None else "complete"
    return TrialRecord(number, state, value, {}, baseline, None)


def test_the_baseline_is_always_among_the_candidates() -> None:
    own = [record(0, 0.1, baseline=True), record(1, 0.5), record(2, None), record(3, 0.7)]
    assert [r.number for r in candidates(own, 1)] == [3, 0]
    assert [r.number for r in candidates(own, 9)] == [3, 1, 0]
    assert [r.number for r in candidates([record(0, None, baseline=True), own[1]], 3)] == [1]


def final(trial: int, values: Any, *, baseline: bool = False) -> FinalRecord:
    graphs = {f"g{i}": float(v) for i, v in enumerate(values)}
    return FinalRecord(trial, baseline, (float(np.mean(values)),), graphs)


def test_the_baseline_stays_unless_it_is_beaten_by_more_than_noise() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0, 1, 12)
    families = {f"g{i}": f"family{i // 2}" for i in range(12)}
    for shift in (0.3, 0.02, -0.1):
        other = base + shift + rng.normal(0, 0.1, 12)
        verdict = verdict_of([final(4, other), final(0, base, baseline=True)], families, [])
        low, high = family_interval(other - base, [families[f"g{i}"] for i in range(12)])
        wins = low > 0 and other.mean() > base.mean()
        assert verdict.trial == (4 if wins else 0)
        assert verdict.ci95 == ((low, high) if other.mean() > base.mean() else None)
        if shift == 0.3:
            assert wins and verdict.reason.startswith("trial 4 beats the baseline: +0.")
        if shift == 0.02:
            assert "not better by more than noise" in verdict.reason


def test_a_baseline_without_a_value_cannot_stay() -> None:
    verdict = verdict_of([final(4, [0.1, 0.2])], {"g0": "a", "g1": "b"}, [record(0, 0.1)])
    assert verdict.trial == 4
    assert verdict.reason.endswith("could not be judged; trial 0 failed with another seed")


def test_finalists_train_with_other_seeds_and_decide(tiny_tree: Path, tmp_path: Path) -> None:
    plain = search(tiny_tree, tmp_path, trials=3, space=SPACE)
    said: list[str] = []
    result = search(tiny_tree, tmp_path, trials=3, space=TWO, say=said.append)
    assert outcome(result) == outcome(plain), "finalists are asked for of a search that has ended"
    verdict = result.verdict
    assert verdict is not None and verdict.reason in said
    ranked = sorted(result.trials, key=lambda trial: -(trial.value or -2))
    expected = {trial.number for trial in ranked[:2]} | {0}
    assert {final.trial for final in verdict.finals} == expected
    folders = sorted((tmp_path / "out" / "finalists").iterdir())
    assert len(folders) == 2 * len(expected)
    assert {tuple(read_config(f)["recipe"]["seeds"]) for f in folders} == {(1,), (2,)}
    first = json.loads((folders[0] / "report.json").read_text())
    assert first["value"] in {value for final in verdict.finals for value in final.values}
    assert json.loads((tmp_path / "out" / "finalists.json").read_text())["trial"] == verdict.trial
    best = load_recipe(str(result.best_recipe)).model_dump(mode="json")
    chosen = result.trials[verdict.trial]
    table = recipe_table() if chosen.is_baseline else with_values(recipe_table(), chosen.params)
    assert best == load_recipe_table(table, tmp_path)
    assert is_done(tmp_path / "out")
    before = {str(f): f.stat().st_mtime for f in (tmp_path / "out" / "finalists").rglob("*.json")}
    again = search(tiny_tree, tmp_path, trials=3, space=TWO)
    assert again.verdict == verdict
    after = {str(f): f.stat().st_mtime for f in (tmp_path / "out" / "finalists").rglob("*.json")}
    assert after == before


def load_recipe_table(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    from models.config.recipe import Recipe

    path = folder / "expected.toml"
    path.write_text(Recipe.from_table(table, source="expected").to_toml())
    return load_recipe(str(path)).model_dump(mode="json")


def test_out_of_time_the_finalists_wait_for_the_next_call(tiny_tree: Path, tmp_path: Path) -> None:
    search(tiny_tree, tmp_path, trials=1)
    said: list[str] = []
    result = search(tiny_tree, tmp_path, trials=1, space=TWO, timeout_s=0, say=said.append)
    assert result.verdict is None and not is_done(tmp_path / "out")
    assert any("finalists have not been judged yet" in line for line in said)


@pytest.mark.parametrize("path", sorted((CONFIGS / "tune").glob("*.toml")), ids=lambda p: p.stem)
def test_all_spaces_of_ours_judge_finalists(path: Path) -> None:
    study = load_space(path.stem).study
    assert (study.finalists, study.seeds) == (3, 3)


@pytest.mark.parametrize("key", ["finalists", "seeds"])
def test_finalists_are_no_part_of_the_question(key: str) -> None:
    assert space_over(PARAMETERS, **{key: 5}).decisive() == SPACE.decisive()
