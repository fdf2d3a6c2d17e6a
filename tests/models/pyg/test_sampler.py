"""Which configs are drawn: distinct ones, repeatably, and padding where there are too few."""

import numpy as np
import pytest
import torch

from common.errors import UsageError
from data.graphs.distinct import distinct_configs
from data.graphs.graph import LayoutGraph
from models.pyg import ConfigSampler, TpuGraph, tpu_graph
from models.training.losses import pairwise_hinge


@pytest.fixture
def graph(layout_graph: LayoutGraph) -> TpuGraph:
    """A graph whose first config was measured three times."""
    rows = np.r_[0, 0, 0, 1 : layout_graph.n_configs]
    twice = layout_graph.only(rows)
    twice.runtime_ns[:3] = 10, 20, 60
    return tpu_graph(twice)


def test_distinct_configs_come_once_with_their_mean(graph: TpuGraph) -> None:
    n_distinct = len(graph.configs.first)
    taken = ConfigSampler(n_distinct, seed=0)(graph)
    rows = taken.config_rows
    assert sorted(rows.tolist()) == graph.configs.first.tolist()
    assert taken.runtime[0, rows == 0] == 30
    assert torch.equal(taken.config_feat, graph.take(rows).config_feat)


def test_the_given_graph_stays_as_it_is(graph: TpuGraph) -> None:
    ConfigSampler(4, seed=0)(graph)
    assert "configs" in graph and "config_feat" not in graph


def test_all_measurements_can_be_drawn(graph: TpuGraph) -> None:
    taken = ConfigSampler(len(graph.configs), seed=0, distinct=False)(graph)
    rows = taken.config_rows
    assert sorted(rows.tolist()) == list(range(len(graph.configs)))
    assert sorted(taken.runtime[0, rows < 3].tolist()) == [10, 20, 60]


def test_too_few_configs_are_filled_up_with_what_no_loss_counts(graph: TpuGraph) -> None:
    n_distinct = len(graph.configs.first)
    taken = ConfigSampler(n_distinct + 4, seed=0)(graph)
    assert taken.config_feat.shape[1] == n_distinct + 4
    assert torch.isinf(taken.runtime[0]).tolist() == [False] * n_distinct + [True] * 4
    scores = torch.randn(1, n_distinct + 4)
    whole = pairwise_hinge(scores, taken.runtime)
    torch.testing.assert_close(whole, pairwise_hinge(scores[:, :-4], taken.runtime[:, :-4]))


def test_a_seed_an_epoch_and_a_graph_decide(graph: TpuGraph) -> None:
    def drawn(seed: int, epoch: int = 0, name: str = "a") -> list[int]:
        sampler = ConfigSampler(8, seed=seed)
        sampler.set_epoch(epoch)
        graph.name = name
        torch.rand(1)  # torch's generator has no say
        return sampler(graph).config_rows.tolist()

    assert drawn(0) == drawn(0)
    assert len({tuple(d) for d in (drawn(0), drawn(1), drawn(0, 1), drawn(0, 0, "b"))}) == 4


def test_without_a_seed_torch_decides(graph: TpuGraph) -> None:
    sampler = ConfigSampler(8)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append([sampler(graph).config_rows.tolist() for _ in range(2)])
    assert draws[0] == draws[1] != draws[2]
    assert draws[0][0] != draws[0][1]


@pytest.mark.parametrize("options", [{"n_configs": 0}, {"seed": -1}])
def test_what_makes_no_sense_is_refused(options: dict) -> None:
    with pytest.raises(UsageError, match=r"ConfigSampler: .*expected at least 1"):
        ConfigSampler(**{"n_configs": 8, **options})


def test_the_distinct_are_the_graphs(layout_graph: LayoutGraph) -> None:
    first, _ = distinct_configs(layout_graph)
    assert np.array_equal(tpu_graph(layout_graph).configs.first, first)
