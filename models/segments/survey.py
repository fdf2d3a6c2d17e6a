"""What training by segments has to know of all train graphs before its first step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.graphs.distinct import distinct_configs
from data.read import read_layout
from data.tree import GraphFile
from features.pruning.nodes import prune_layout_graph
from features.scaling import NodeScaler, fit_node_scaler
from models.config.recipe import Recipe
from models.segments.cut import cut


@dataclass(frozen=True)
class Survey:
    """What one pass over the train graphs finds.

    Attributes:
        scaler: of the nodes that pruning keeps.
        opcodes: (o,) uint8 those that occur.
        entries: see SegmentHistory.
    """

    scaler: NodeScaler
    opcodes: NDArray[np.uint8]
    entries: list[list[int]]


def survey(files: Sequence[GraphFile], recipe: Recipe) -> Survey:
    """Read each train graph once, one in memory at a time."""
    config, features = recipe.segment_sage, recipe.features
    opcodes, entries = set[int](), list[list[int]]()

    def node_feats() -> Iterator[NDArray[np.float32]]:
        for file in files:
            graph = read_layout(file)
            pruned, nodes = prune_layout_graph(graph, rule=features.prune)
            pool = min(config.table_configs, len(distinct_configs(graph)[0]))
            parts = cut(pruned.edge_index, len(pruned.kept), config.segment_nodes)
            varies = [bool(np.isin(pruned.config_ids, part).any()) for part in parts]
            entries.append([pool if varied else 1 for varied in varies])
            opcodes.update(nodes.opcode.tolist())
            yield nodes.node_feat

    scaler = fit_node_scaler(node_feats(), scaling=features.scaling)
    return Survey(scaler, np.asarray(sorted(opcodes), dtype=np.uint8), entries)
