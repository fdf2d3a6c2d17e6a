"""Pruned graphs: GRAPH.prune-RULE.safetensors beside the graphs of the store, or made anew."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.progress import progress
from data.graph_store.stored_graph import STORE_SUFFIX, VERSION
from data.graph_store.tensor_file import open_tensors, read_facts, write_tensors
from data.graphs.graph import LayoutGraph
from data.graphs.node_layouts import minor_to_major
from data.read import read_layout
from data.tree import GraphFile
from features.pruning.rules import PrunedGraph, pruning_rule

TENSORS = {field.name for field in fields(PrunedGraph)}


@dataclass(frozen=True)
class PrunedNodes:
    """Features of the m nodes of a pruned graph."""

    node_feat: NDArray[np.float32]  # (m, 140) float32 stock features
    opcode: NDArray[np.uint8]  # (m,) uint8
    minor_to_major: NDArray[np.int8]  # (m, 6) int8 each node's layout, -1 beyond its rank


def prune_layout_graph(graph: LayoutGraph, *, rule: str) -> tuple[PrunedGraph, PrunedNodes]:
    """Prune a graph by the rule called `rule`, see features.pruning.rules, and gather its nodes.

    What `prepare --prune` left in the store is read from there.
    """
    pruned = read_pruned(graph, rule) or prune(graph, rule)
    node_feat = graph.node_feat[pruned.kept]
    return pruned, PrunedNodes(node_feat, graph.node_opcode[pruned.kept], minor_to_major(node_feat))


def prune(graph: LayoutGraph, rule: str) -> PrunedGraph:
    """Prune a graph anew; raises UsageError: there is no such rule."""
    return pruning_rule(rule)(graph.edge_index, graph.n_nodes, graph.node_config_ids)


def pruned_file(stored: Path, rule: str) -> Path:
    """Return where the pruned form of a graph of the store is kept."""
    return stored.with_name(f"{stored.name.removesuffix(STORE_SUFFIX)}.prune-{rule}{STORE_SUFFIX}")


def store_pruned(files: Sequence[GraphFile], rule: str) -> None:
    """Prune every layout graph of the store by a rule, unless that is done and undamaged.

    Raises:
        UsageError: there is no such rule.
        PipelineError: a file of the store is damaged, or the store cannot be written.
    """
    pruning_rule(rule)
    layouts = [file for file in files if file.collection.kind == "layout"]
    for number, file in enumerate(layouts, start=1):
        path = pruned_file(file.path, rule)
        source = read_facts(file.path)["source"]
        if _kept(path, source) is None:
            pruned = prune(read_layout(file), rule)
            write_tensors(path, vars(pruned), facts={"version": VERSION, "source": source})
        progress("prune", number, len(layouts))


def read_pruned(graph: LayoutGraph, rule: str) -> PrunedGraph | None:
    """Return the pruned form of a graph that the store keeps, or None: then it is made anew.

    Raises:
        PipelineError: the graph's own file is damaged.
    """
    path = graph.file.path
    if path.suffix != STORE_SUFFIX or os.sep in rule:
        return None
    kept = _kept(pruned_file(path, rule), read_facts(path)["source"])
    return kept if kept is not None and _is_of(graph, kept) else None


def _is_of(graph: LayoutGraph, pruned: PrunedGraph) -> bool:
    n_kept, n_nodes = len(pruned.kept), graph.n_nodes
    shapes = (pruned.edge_index.shape[1:], pruned.config_ids.shape)
    if pruned.kept.ndim != 1 or shapes != ((2,), graph.node_config_ids.shape):
        return False
    limits = ((pruned.kept, n_nodes), (pruned.edge_index, n_kept), (pruned.config_ids, n_kept))
    return all(
        values.dtype == np.int64 and ((values >= 0) & (values < limit)).all()
        for values, limit in limits
    )


def _kept(path: Path, source: str) -> PrunedGraph | None:
    try:
        opened = open_tensors(path)
    except PipelineError:
        return None
    facts, tensors = opened.facts, opened.tensors
    is_it = facts.get("version") == VERSION and facts.get("source") == source
    return PrunedGraph(**tensors) if is_it and tensors.keys() == TENSORS else None
