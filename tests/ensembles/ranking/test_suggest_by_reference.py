"""Configs to measure next, against a Gaussian process written with inverses and densities."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal, norm, rankdata

from data.graphs.graph import Graph, LayoutGraph, TileGraph, distinct_configs
from ensembles.ranking import suggest as module
from ensembles.ranking.suggest import suggest
from ensembles.score_errors import normal_draws
from tests.ensembles.test_picks import tiles_at, with_tiles

Floats = NDArray[np.float64]


def likeness(graph: Graph, rows: NDArray[np.int64], scale: float) -> Floats:
    """Return the correlation of errors, (r, r), pair by pair."""
    if isinstance(graph, LayoutGraph):
        values = graph.configs.rows(rows)
        differing = np.array([(values != one).any(axis=2).mean(axis=1) for one in values])
        return np.exp(-differing / (0.3 * scale))
    assert isinstance(graph, TileGraph)
    sizes = np.log1p(graph.config_feat[rows, 8:10].astype(np.float64))
    squares = np.array([np.square(sizes - one).sum(axis=1) for one in sizes])
    return np.exp(-squares / (2 * (2.0 * scale) ** 2))


def evidence_at(scale: float, log_ns: Floats, prior: Floats, covariance: Floats) -> float:
    density = multivariate_normal(prior, covariance)
    return len(log_ns) * np.log(scale) + density.logpdf(scale * (log_ns - log_ns.mean()))


def posterior(
    likenesses: list[Floats], prior: Floats, log_ns: Floats, repeats: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return mean and covariance of the candidates' log runtimes by the most likely values."""
    m, best, result = len(log_ns), -np.inf, (prior, prior)
    for like, error, noise in product(likenesses, (0.5, 1, 2, 4, 8), (0.01, 0.1)):
        whole = error**2 * like + 100
        known = whole[:m, :m] + error**2 * np.diag(noise / repeats)
        found = minimize_scalar(
            lambda log_scale, known=known: (
                -evidence_at(np.exp(log_scale), log_ns, prior[:m], known)
            ),
            bounds=(-5, 10),
            method="bounded",
            options={"xatol": 1e-10},
        )
        if -found.fun > best:
            best, scale = -found.fun, np.exp(found.x)
            onto = whole[m:, :m] @ np.linalg.inv(known)
            rest = scale * (log_ns - log_ns.mean()) - prior[:m]
            covariance = whole[m:, m:] - onto @ whole[:m, m:] + 1e-6 * error**2 * np.eye(len(onto))
            result = (prior[m:] + onto @ rest) / scale + log_ns.mean(), covariance / scale**2
    return result


def slow_suggest(
    scores: NDArray[np.float32],
    graph: Graph,
    runtimes: dict[int, list[float]],
    k: int,
    at_most: int,
) -> list[int]:
    rows, _ = distinct_configs(graph)
    prior = norm.ppf((rankdata(scores[rows]) - 0.5) / len(rows))
    means = {row: np.mean(np.log(values)) for row, values in runtimes.items()}
    learned = sorted(means, key=lambda row: means[row])
    left = sorted({*rows.tolist()} - {*learned}, key=lambda row: scores[row])
    log_ns = np.array([means[row] - min(means.values()) for row in learned])
    repeats = np.array([len(runtimes[row]) for row in learned])
    both = np.array([*learned, *left])
    places = np.searchsorted(rows, both)
    likenesses = [likeness(graph, both, scale) for scale in (1 / 3, 1, 3)]
    mean, covariance = posterior(likenesses, prior[places], log_ns, repeats)
    promising = np.argsort(mean - np.sqrt(np.diag(covariance)), kind="stable")[:at_most]
    factor = np.linalg.cholesky(covariance[np.ix_(promising, promising)])
    errors = factor @ normal_draws()[: len(promising)]
    draws = np.concatenate([mean[promising, None] + sign * errors for sign in (1, -1)], axis=1)
    fastest, chosen = np.zeros(draws.shape[1]), list[int]()
    while len(chosen) < k:
        expected = np.minimum(fastest, draws).mean(axis=1)
        expected[chosen] = np.inf
        chosen.append(int(expected.argmin()))
        fastest = np.minimum(fastest, draws[chosen[-1]])
    return [left[promising[place]] for place in chosen]


@pytest.fixture(params=["layout", "tile"])
def graph(
    request: pytest.FixtureRequest, layout_graph: LayoutGraph, tile_graph: TileGraph
) -> Graph:
    sizes = [(2**a, 3**b) for a in range(7) for b in range(6)]
    return layout_graph if request.param == "layout" else with_tiles(tile_graph, tiles_at(*sizes))


@pytest.mark.parametrize("at_most", [12, 256])
@pytest.mark.parametrize("seed", range(4))
def test_suggestions_are_those_of_the_slow_process(
    graph: Graph, seed: int, at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CANDIDATES", at_most)
    rng, (rows, group) = np.random.default_rng(seed), distinct_configs(graph)
    scores = rng.normal(size=len(rows)).astype(np.float32)[group]
    error = rng.normal(size=(3,)) @ rng.normal(size=(3, len(rows)))
    runtimes = {
        int(row): np.exp(12 + 0.2 * scores[row] + 0.1 * own + rng.normal(0, 0.02, n)).tolist()
        for row, own, n in zip(rng.permutation(rows)[:6], error, (1, 3, 2, 1, 1, 5), strict=False)
    }
    found = suggest(scores, graph, runtimes, 4)
    assert found == slow_suggest(scores, graph, runtimes, 4, at_most)
