"""That a policy learns by trying, also for unseen programs."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from autotune.go.network import (
    Choose,
    Policy,
    PolicyConfig,
    decision_graph,
    likeliest_setting,
    sample_settings,
)
from autotune.go.ppo import (
    PpoConfig,
    clipped_objective,
    go_search,
    improve_policy,
    rewards_of,
)
from autotune.go.pretrain import CONFIG, POLICY, load_policy, save_policy
from autotune.measure.program import WHOLE_PROGRAM
from common.errors import PipelineError
from data.hlo.compiler_options import N_OPTIONS
from models.training.device import CPU, torch_prepared
from tests.autotune.go.programs import UNSCALED, described, random_arrays, runtimes, two_tasks

TASKS = {"first": 2, "second": 2}


def test_the_reward_is_the_root_of_the_ratio_and_a_failure_costs_ten() -> None:
    assert rewards_of(np.array([1.0, 4.0, 0.25, 1e9, np.inf])).tolist() == [-1, -2, -0.5, -10, -10]


def test_the_objective_gains_nothing_from_probabilities_beyond_the_clip() -> None:
    before = np.array([[0.5, 0.2], [0.5, 0.4]])
    now = np.array([[0.7, 0.22], [0.3, 0.6]])
    advantages = np.array([1.0, -2.0])
    total = 0.0
    for setting, advantage in enumerate(advantages):
        for one, other in zip(now[setting], before[setting], strict=True):
            ratio = one / other
            total += min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    given = [torch.from_numpy(np.log(p)) for p in (now, before)]
    found = clipped_objective(*given, torch.from_numpy(advantages), 0.2)
    assert found.item() == pytest.approx(total / 4)


def test_what_pays_by_opcode_and_by_a_neighbours_decision_is_learned_for_unseen_programs() -> None:
    arrays = {f"program {seed}": random_arrays(seed) for seed in range(12)}
    graphs = [two_tasks(name, own) for name, own in arrays.items()]
    seen, unseen = graphs[:8], graphs[8:]
    config = PpoConfig(steps=160)
    with torch_prepared(threads=1, device=CPU, seed=0):
        policy = Policy(PolicyConfig(tasks=TASKS, hidden=32))

        @torch.no_grad()
        def mean_cost(choose: Choose) -> float:
            decided = {g.name: policy(g, choose).settings.numpy() for g in unseen}
            return float(np.mean([runtimes(arrays[n], c).mean() for n, c in decided.items()]))

        chance = mean_cost(sample_settings(64, torch.Generator().manual_seed(1)))
        improve_policy(policy, seen, lambda g, c: runtimes(arrays[g.name], c), config, seed=0)
        learned = mean_cost(likeliest_setting)
    assert chance == pytest.approx(2, abs=0.1)
    assert learned < 1.25


def test_search_starts_with_the_likeliest_setting_and_repeats_nothing() -> None:
    """The same seed proposes the same; the search trains a copy of the policy."""
    arrays, found = random_arrays(0, 4), []
    graph = two_tasks("program", arrays)
    with torch_prepared(threads=1, device=CPU, seed=0):
        policy = Policy(PolicyConfig(tasks=TASKS, hidden=16, heads=2))
        for _ in range(2):
            search = go_search(policy, graph, 30, seed=0)
            batches = [next(search)]
            with suppress(StopIteration):
                while True:
                    batches.append(search.send(runtimes(arrays, batches[-1])))
            found.append(np.concatenate(batches))
    assert np.array_equal(*found)
    assert not found[0][0].any() and 20 < len(found[0]) <= 30
    assert len(np.unique(found[0], axis=0)) == len(found[0])


def test_saved_policy_decides_the_same_and_damage_is_an_error(tmp_path: Path) -> None:
    graph = decision_graph(
        "program",
        described(random_arrays(0), [WHOLE_PROGRAM] * 6, N_OPTIONS.tolist(), {"options": 6}),
        UNSCALED,
    )
    torch.manual_seed(0)
    policy = Policy(CONFIG)
    torch.nn.init.normal_(policy.heads["options"].weight)
    save_policy(tmp_path / "policy.safetensors", policy, UNSCALED)
    loaded, scaler = load_policy(tmp_path / "policy.safetensors")
    assert torch.equal(
        loaded(graph, likeliest_setting).settings, policy(graph, likeliest_setting).settings
    )
    assert np.array_equal(scaler.factor, UNSCALED.factor)
    (tmp_path / "policy.safetensors").write_bytes(b"damaged")
    with pytest.raises(PipelineError, match="no policy can be read"):
        load_policy(tmp_path / "policy.safetensors")


def test_shipped_policy_is_small_and_trained() -> None:
    policy, _ = load_policy()
    assert POLICY.stat().st_size < 2**20
    assert all(weight.any() for weight in policy.heads.parameters())
