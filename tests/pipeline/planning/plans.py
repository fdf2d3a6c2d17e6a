"""Made-up sizes for tests of plans, and a card on which nothing but bytes takes time."""

from math import inf

from data.official.published import PartSize
from models.config.recipe import load_recipe
from pipeline.planning.cards import Card
from pipeline.planning.costs import Machine

LAYOUT, TILE = "layout:xla:random", "tile:xla"
SLOW = Machine(Card("slow", 1e6, inf, inf, 0.0, memory_gib=16.0))


def part(
    collection: str, split: str, graphs: int, *, nodes: int = 1000, configs: int = 100
) -> PartSize:
    return PartSize(
        collection, split, graphs, nodes, nodes, 2 * nodes, configs, configs, 0.0, "files"
    )


SIZES = [
    part(LAYOUT, "train", 10),
    part(LAYOUT, "valid", 2),
    part(LAYOUT, "test", 3),
    part(TILE, "train", 20, nodes=40),
    part(TILE, "test", 5, nodes=40),
]
RECIPE = load_recipe(
    "cpu",
    [
        "seeds=[0,1,2]",
        "layout.models=[cross_config_sage, baseline_gcn, layout_boosting]",
        "tile.models=[late_fusion_sage, tile_linear]",
        "cross_config_sage.hidden=8",
        "cross_config_sage.training.steps=36",
        "baseline_gcn.hidden=8",
        "baseline_gcn.training.steps=72",
        "baseline_gcn.graphs_per_step=2",
        "late_fusion_sage.kernels_per_step=2",
        "late_fusion_sage.training.steps=18",
        "layout_boosting.num_boost_round=40",
    ],
)
