"""Each way to choose keeps to its budget and starts unfused; the smallest run of all of it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autotune.go.network import Policy, PolicyConfig, decision_graph
from autotune.go.ppo import ChoiceRanker, MeasuredReward, PpoConfig
from autotune.measure.search import GENERATION
from benchmarks.autotune import go
from common.errors import PipelineError
from data.choices import Space
from tests.autotune.go.programs import UNSCALED, described, random_arrays

SMALL = PolicyConfig(tasks={"fusion": 2}, hidden=16, heads=2)


def network(x, w):  # type: ignore[no-untyped-def]
    from jax import numpy as jnp

    return jnp.tanh(x @ w) * 2 - jnp.exp(x).sum()


def network_arguments() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)


@pytest.mark.parametrize("way", [*go.WAYS, go.all_densities], ids=lambda way: way.__name__)
def test_a_way_compiles_no_more_than_its_budget_and_what_it_tries_differs(way) -> None:  # type: ignore[no-untyped-def]
    known = described(random_arrays(0), [*range(24)], [2] * 24, {"fusion": 24})
    visited: list[tuple[int, ...]] = []

    def visit(config: int, turn: int, choice: NDArray[np.int64]) -> float:
        visited.append(tuple(choice.tolist()))
        return 1 + choice.mean()

    torch.manual_seed(0)
    subject = go.Subject(
        decision_graph("program", known, UNSCALED),
        Space(known.n_options, known.groups),
        *(Policy(SMALL), ChoiceRanker(SMALL)),
        seed=0,
        start=np.ones(24, np.int64),
        budget=go.BUDGETS[-1],
    )
    way(subject, MeasuredReward(visit, subject.start))
    assert visited[0] == (1,) * 24
    over = GENERATION - 1 if way is go.genetic else 0  # of its last generation
    assert 20 < len(set(visited)) <= 1 + go.BUDGETS[-1] + over


@pytest.mark.slow
def test_the_smallest_run_verifies_each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    program = f"{__name__}:network"
    small = {"TRAIN": (program,), "HELD_OUT": (program,), "CONFIG": SMALL}
    small |= {"BUDGETS": (2, 4), "BATCH": 2, "ROUNDS": 3, "RANKER_STEPS": 2}
    small |= {"PRE_TRAINING": PpoConfig(steps=2), "FINE_TUNING": PpoConfig(steps=2, choices=2)}
    for name, value in small.items():
        monkeypatch.setattr(go, name, value)
    go.run(tmp_path, 0)
    found = json.loads((tmp_path / f"{program}.json").read_text())
    for way in go.WAYS:
        assert found[f"{way.__name__}, 4 compiles"]["value"] > 0
    assert found["unfused"]["low"] <= found["unfused"]["value"]


def test_the_page_holds_the_programs_that_every_seed_has(tmp_path: Path) -> None:
    ways = [f"{way.__name__}, {budget} compiles" for way in go.WAYS for budget in go.BUDGETS]
    for seed in (0, 1):
        value = {label: {"value": 1.5 + seed} for label in ("unfused", *ways)}
        value["default over itself"] = {"value": 1.0}
        for name in go.HELD_OUT[: 2 - seed]:
            path = tmp_path / f"seed-{seed}" / f"{name}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(value))
    go.write_report(tmp_path, tmp_path)
    page = (tmp_path / "go.md").read_text()
    assert "| unfused | 2.000 | 2.000 [1.500, 2.500] |" in page
    assert go.HELD_OUT[0] in page and go.HELD_OUT[1] not in page
    with pytest.raises(PipelineError, match="no program was verified"):
        go.write_report(tmp_path / "none", tmp_path)
