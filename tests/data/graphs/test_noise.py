"""Noise as repeated configs show it, against enumeration, simulation and the real files."""

import itertools

import numpy as np
import pytest
from scipy.stats import kendalltau

import data.graphs.noise
from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import distinct_configs
from data.graphs.noise import Noise, measure_noise
from tests.support.real_data import real_file, requires_real_data

SLOWER = 1.0  # spread of the truth in the simulations, in units of ln


def simulated(noise: float, n_distinct: int, repeats: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return runtimes and groups (c,), and the true ln of each group's runtime."""
    rng = np.random.default_rng(seed)
    truth = SLOWER * rng.normal(size=n_distinct)
    group = np.tile(np.arange(n_distinct), repeats)
    log_runtime = truth[group] + noise * rng.normal(size=len(group))
    return np.round(1e9 * np.exp(log_runtime)).astype(np.int64), group, truth


def measured(*arguments: np.ndarray, **options: int) -> Noise:
    noise = measure_noise(*arguments, **options)
    assert noise is not None
    return noise


def expected_tau(runtime_ns: np.ndarray, group: np.ndarray) -> float:
    """Enumerate every way to draw two measurements of two configs; without ties tau is this."""
    pairs = []
    for number in range(group.max() + 1):
        own = runtime_ns[group == number]
        pairs.append(list(itertools.permutations(own.tolist(), 2)))
    means = [
        np.mean([np.sign(a - c) * np.sign(b - d) for (a, b) in first for (c, d) in second])
        for first, second in itertools.combinations([own for own in pairs if own], 2)
    ]
    return float(np.mean(means))


def test_tau_is_the_expectation_over_all_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    group = np.concatenate([np.full(size, i) for i, size in enumerate([2] * 6 + [3] * 5 + [7, 1])])
    runtime_ns = rng.permutation(1_000_000)[: len(group)] + 400_000 * group
    expected = expected_tau(runtime_ns, group)
    assert 0.5 < expected < 1
    assert measured(runtime_ns, group).tau == pytest.approx(expected, abs=0.1)
    monkeypatch.setattr(data.graphs.noise, "DRAWS", 2000)
    noise = measured(runtime_ns, group)
    assert noise.n_repeated == 12
    assert noise.tau == pytest.approx(expected, abs=0.01)


def test_noise_does_not_depend_on_order() -> None:
    rng = np.random.default_rng(0)
    group = np.concatenate([np.arange(50), rng.integers(0, 50, 70)])
    runtime_ns = rng.integers(1, 10**12, len(group))
    rows, names = rng.permutation(len(group)), rng.permutation(50)
    noise = measured(runtime_ns, group)
    assert measured(runtime_ns[rows], names[group[rows]]) == noise
    assert measured(runtime_ns, group, seed=1) != noise
    # All groups have the same smallest and largest runtime.
    middles = rng.permutation(np.arange(100, 900, 20))
    triples = np.stack([np.full(40, 1), middles, np.full(40, 1000)], axis=1).reshape(-1)
    orders = [rng.permutation(40) for _ in range(5)]
    noises = {measured(triples, np.repeat(order, 3)) for order in orders}
    assert len(noises) == 1


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_truth_scores_between_tau_and_its_root(noise: float) -> None:
    runtime_ns, group, truth = simulated(noise, 3000, 2)
    found = measured(runtime_ns, group)
    score = kendall_tau(truth, runtime_ns[:3000])
    assert found.tau < score < found.best_tau


def test_ten_repeated_configs_are_needed() -> None:
    runtime_ns = np.arange(1, 41)
    assert measure_noise(runtime_ns, np.arange(40) % 31) is None
    assert measured(runtime_ns, np.arange(40) % 30).n_repeated == 10
    assert measure_noise(runtime_ns, np.arange(40) % 9) is None
    assert measure_noise(runtime_ns, np.zeros(40, np.int64)) is None


@requires_real_data
@pytest.mark.parametrize(
    ("submission_id", "n_repeated", "published", "within"),
    [
        ("layout:xla:default:unet3d", 204, 0.82, 0.02),
        ("layout:xla:default:unet_3d.4x4.bf16", 294, 0.30, 0.04),
    ],
)
def test_ceilings_of_real_graphs(
    submission_id: str, n_repeated: int, published: float, within: float
) -> None:
    graph = read_graph(real_file(submission_id))
    group = distinct_configs(graph)[1]
    noise = measured(graph.runtime_ns, group)
    assert noise.n_repeated == n_repeated
    assert noise.tau == pytest.approx(published, abs=within)
    first_two = [
        graph.runtime_ns[group == one][:2] for one in np.flatnonzero(np.bincount(group) > 1)
    ]
    slow = float(kendalltau(*np.transpose(first_two)).statistic)
    assert noise.tau == pytest.approx(slow, abs=0.06)
