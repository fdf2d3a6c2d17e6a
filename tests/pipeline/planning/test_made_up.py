"""Every network on the device that is none: a step and a ranking, at sizes that need a GPU."""

import numpy as np
import pytest

from data.graphs.distinct import distinct_configs
from models.config.recipe import load_recipe
from pipeline.planning.made_up import Size, count_ranking, count_step, layout_graph, make_case

LARGE = Size(nodes=5_000, edges=8_500, configurable=1_400, configs=300)
KERNEL = Size(nodes=40, edges=66, configurable=0, configs=500)
NETWORKS = {
    "cross_config_sage": LARGE,
    "segment_sage": LARGE,
    "tgraph": LARGE,
    "baseline_gcn": LARGE,
    "late_fusion_sage": KERNEL,
    "early_fusion_sage": KERNEL,
}


def test_a_graph_is_of_the_size_and_repeats_nothing() -> None:
    graph = layout_graph(LARGE, np.random.default_rng(0))
    assert (graph.n_nodes, graph.n_configs, len(graph.node_config_ids)) == (5_000, 300, 1_400)
    assert len(distinct_configs(graph)[0]) == 300
    assert 0.9 * LARGE.edges < len(graph.edge_index) <= LARGE.edges


@pytest.mark.parametrize(("name", "size"), NETWORKS.items())
def test_a_step_and_a_ranking_stay_on_the_device(name: str, size: Size) -> None:
    case = make_case(load_recipe("leaderboard", [f"{name}.hidden=32"]), name, size)
    step, ranking = count_step(case), count_ranking(case)
    for found in (step, ranking):
        assert found.kernels > 20
        assert found.flops > 0
        assert found.peak_bytes > 0
    assert step.operations["_foreach_norm"] + step.operations["linalg_vector_norm"] >= 1


def test_counts_repeat_and_grow_with_nodes() -> None:
    recipe = load_recipe("leaderboard", ["cross_config_sage.hidden=32"])
    sizes = (LARGE, LARGE, Size(10_000, 17_000, 2_800, 300))
    first, again, double = (count_step(make_case(recipe, "cross_config_sage", s)) for s in sizes)
    assert first == again
    assert double.bytes == pytest.approx(2 * first.bytes, rel=0.02)
    assert double.flops == pytest.approx(2 * first.flops, rel=0.02)
