"""The choice of a blend, against folds that are fitted and judged one by one."""

import numpy as np
import pytest

from common.metrics import family_folds, family_interval
from ensembles import choice
from ensembles.choice import GREEDY, RECIPE, choose_blend, greedy_weights
from tests.ensembles.test_choice import mean_tau, names_of, noisy


@pytest.mark.parametrize(
    ("seed", "noise", "expected"),
    [(0, (2.0, 2.0), RECIPE), (3, (2.0, 2.0), RECIPE), (4, (1.5, 0.4, np.inf), GREEDY)],
)
def test_choices_have_the_values_of_held_out_families(
    seed: int, noise: tuple[float, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "MAX_SELECTED", 6)
    graphs = noisy(noise, n_graphs=12, n_configs=20, seed=seed, per_family=2)
    families = [f"family{number // 2}" for number in range(12)]
    fold_of, held_out = family_folds(families, 5, seed), np.zeros(12)
    for fold in range(5):
        learned = [graphs[place] for place in np.flatnonzero(fold_of != fold)]
        weights = greedy_weights(lambda w, some=learned: mean_tau(some, w), len(noise))
        for place in np.flatnonzero(fold_of == fold):
            held_out[place] = mean_tau([graphs[place]], weights)
    kept = np.array([mean_tau([graph], np.eye(len(noise))[0]) for graph in graphs])
    found = choose_blend(graphs, names_of(graphs), seed=seed)
    assert found["chosen"] == expected
    assert found["gain"] == pytest.approx((held_out - kept).mean()) and found["gain"] != 0
    interval = family_interval(held_out - kept, families, seed=seed, confidence=0.99)
    assert found["gain_ci99"] == pytest.approx(interval)
    assert (interval[0] > 0) == (expected == GREEDY)
    best = held_out if expected == GREEDY else kept
    assert found["held_out_value"] == pytest.approx(best.mean())
    assert found["held_out_ci95"] == pytest.approx(family_interval(best, families, seed=seed))
    if expected == GREEDY:
        whole = greedy_weights(lambda w: mean_tau(graphs, w), len(noise))
        assert [*found["weights"].values()] == whole.tolist()
    else:
        assert found["weights"] == {} and found["held_out_value"] == found["recipe_value"]
    alone = [mean_tau(graphs, weights) for weights in np.eye(len(noise))]
    assert [*found["member_values"].values()] == pytest.approx(alone)
