"""Pruned graphs: GRAPH.prune-RULE.safetensors beside the graphs of the store, or made anew."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.progress import progress
from data.graph_store.stored_graph import STORE_SUFFIX, VERSION, is_stored, source_digest
from data.graph_store.tensor_file import open_tensors, write_tensors
from data.graphs.checks import Schema, check_positions, check_shapes
from data.graphs.graph import LayoutGraph
from data.graphs.node_layouts import minor_to_major
from data.read import read_layout
from data.tree import GraphFile
from features.pruning.rules import PrunedGraph, pruning_rule

TENSORS: Schema = {  # those of a PrunedGraph
    "kept": (np.int64, ("m",)),
    "edge_index": (np.int64, ("f", 2)),
    "config_ids": (np.int64, ("k",)),
}


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
        graph = read_layout(file)
        if read_pruned(graph, rule) is None:
            facts = {"version": VERSION, "source": source_digest(file)}
            write_tensors(pruned_file(file.path, rule), vars(prune(graph, rule)), facts=facts)
        progress("prune", number, len(layouts))


def read_pruned(graph: LayoutGraph, rule: str) -> PrunedGraph | None:
    """Return the pruned form of a graph that the store keeps, or None: then it is made anew.

    Raises:
        UsageError: there is no such rule.
        PipelineError: the graph's own file is damaged.
    """
    pruning_rule(rule)
    if not is_stored(graph.file):
        return None
    path, source = pruned_file(graph.file.path, rule), source_digest(graph.file)

    def fail(name: str, problem: str) -> NoReturn:
        raise PipelineError(f"{path}: tensor '{name}' {problem}")

    try:
        opened = open_tensors(path)
        check_shapes(opened.tensors, TENSORS, fail)
        pruned = PrunedGraph(*(opened.tensors[name] for name in TENSORS))
        check_positions("kept", pruned.kept, graph.n_nodes, fail)
        check_positions("edge_index", pruned.edge_index, len(pruned.kept), fail)
        check_positions("config_ids", pruned.config_ids, len(pruned.kept), fail)
    except PipelineError:
        return None
    is_of = len(pruned.config_ids) == len(graph.node_config_ids)
    return pruned if is_of and opened.facts == {"version": VERSION, "source": source} else None
