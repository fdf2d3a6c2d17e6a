"""A ranking is tried on subjects of known runtimes: what is measured, and what is said of it."""

from dataclasses import dataclass
from dataclasses import replace as with_changes

import numpy as np
import pytest
from numpy.typing import NDArray

from data.collect.measuring.session import ProgramFailed
from data.graphs.graph import Graph, LayoutGraph
from data.tree import collection_named
from ensembles.blend import Mixing
from ensembles.ensemble import Ensemble
from ensembles.ranking.measure import Trial, try_ranking
from tests.data.collect.fakes import STEP_NS, SpinSource, layout_job


@dataclass(frozen=True)
class Knowing:
    """Scores configs by their true runtime, or by `sign` -1 the other way round."""

    sign: int = 1

    def score(self, graph: Graph) -> NDArray[np.float32]:
        assert isinstance(graph, LayoutGraph)
        rows = graph.configs.rows(np.arange(graph.n_configs))
        first, second = (rows[:, :, 6].astype(np.float32) + 1).T
        return self.sign * (4 * first + second)


def tried(source: SpinSource, *, sign: int = 1, n_others: int = 5) -> Trial:
    ranker = Ensemble(
        collection_named("layout:xla:random"), {"knowing": Knowing(sign)}, Mixing("minmax-mean", {})
    )
    job = with_changes(layout_job(source), n_rounds=2)
    return try_ranking(job, ranker, n_candidates=16, n_picks=3, n_others=n_others)


def test_picks_of_who_knows_are_the_fastest() -> None:
    trial = tried(SpinSource())
    assert sorted(trial.ranked.scores.tolist()) == sorted(set(trial.ranked.scores.tolist()))
    assert trial.picks[0] == 0  # the compiler's own choice is the fastest here
    assert len(trial.picks) == 3
    measured = np.flatnonzero(np.isfinite(trial.runtime_ns))
    assert sorted({*trial.picks.tolist(), *trial.others.tolist()}) == measured.tolist()
    assert not set(trial.picks) & set(trial.others)
    assert trial.best_pick_ns == trial.best_known_ns == trial.default_ns
    assert STEP_NS <= trial.default_ns < 2 * STEP_NS
    assert trial.tau > 0.5
    assert np.sort(trial.runtime_ns[trial.others])[2] == trial.median_other_ns


def test_picks_of_who_has_it_backwards_are_slow() -> None:
    trial = tried(SpinSource(), sign=-1)
    assert 0 not in trial.picks
    assert trial.best_known_ns == trial.default_ns < trial.best_pick_ns / 2
    assert trial.tau < -0.5


def test_without_the_compilers_own_choice_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(ProgramFailed, match="the compiler's own choice failed"):
        tried(SpinSource(refuses=0))


def test_picks_that_the_compiler_refuses_are_infinitely_slow() -> None:
    trial = tried(SpinSource(refuses=3), sign=-1)
    assert np.isinf(trial.runtime_ns[trial.picks]).any()
    assert np.isfinite(trial.best_known_ns)
