"""Members' scores of made-up graphs, for choosing blends."""

from collections.abc import Sequence

import numpy as np

from ensembles.choice.objectives import Floats, Judge, Metric, ScoredGraphs


def made_up(
    raw: Sequence[Floats], runtimes: Sequence[Floats], *, per_family: int = 1
) -> ScoredGraphs:
    """Put graphs together: of each (c, m) scores, brought to 0..1, and (c,) runtimes."""
    scaled = []
    for scores in raw:
        span = np.ptp(scores, axis=0)
        scaled.append((scores - scores.min(axis=0)) / np.where(span > 0, span, 1))
    return ScoredGraphs(
        families=tuple(f"family{index // per_family}" for index in range(len(raw))),
        starts=np.cumsum([0, *map(len, raw)]),
        members=tuple(f"model{member}" for member in range(raw[0].shape[1])),
        scores=np.concatenate(scaled),
        runtime=np.concatenate(runtimes),
    )


def noisy(
    noise: Sequence[float], *, n_graphs: int, n_configs: int, seed: int, per_family: int = 1
) -> ScoredGraphs:
    """Make members that see the truth through noise of their own; infinite noise sees nothing."""
    rng = np.random.default_rng(seed)
    raw, runtimes = [], []
    for _ in range(n_graphs):
        truth = rng.normal(size=n_configs)
        seen = [
            rng.normal(size=n_configs) * (1 if np.isinf(level) else level)
            + (0 if np.isinf(level) else truth)
            for level in noise
        ]
        raw.append(np.stack(seen, axis=1))
        runtimes.append(np.exp(truth / 5))
    return made_up(raw, runtimes, per_family=per_family)


def folds_of(graphs: ScoredGraphs, n_folds: int) -> list[list[int]]:
    """Deal families out in turn; the indices of each fold's graphs."""
    numbers = {family: i for i, family in enumerate(dict.fromkeys(graphs.families))}
    of_graph = [numbers[family] % n_folds for family in graphs.families]
    return [[i for i, fold in enumerate(of_graph) if fold == own] for own in range(n_folds)]


def exact_judge(graphs: ScoredGraphs, metric: Metric) -> Judge:
    """Judge by any metric of all configs: slow, for few or small graphs."""

    def judge(chosen: Sequence[int], weightings: Floats) -> Floats:
        rows = [list(graphs.rows())[index] for index in chosen]
        values = [
            [metric(graphs.scores[own] @ weights, graphs.runtime[own]) for own in rows]
            for weights in weightings
        ]
        return np.mean(values, axis=1)

    return judge
