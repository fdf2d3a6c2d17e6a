"""Pruned graphs beside the graphs of the store: GRAPH.prune-RULE.safetensors."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from data.errors import PipelineError
from data.graph import LayoutGraph
from data.packing.stored_graph import STORE_SUFFIX, VERSION
from data.packing.tensor_file import open_tensors, read_facts, write_tensors
from data.read import read_graph
from data.tree import GraphFile
from features.pruning import PrunedGraph, prune, pruning_rule

Progress = Callable[[str, int, int], None]


def check_rule(rule: str) -> None:
    """Refuse a pruning rule that does not exist.

    Raises:
        UsageError: names the known ones.
    """
    pruning_rule(rule)


def pruned_file(stored: Path, rule: str) -> Path:
    """Return where the pruned form of a graph of the store is kept."""
    return stored.with_name(f"{stored.name.removesuffix(STORE_SUFFIX)}.prune-{rule}{STORE_SUFFIX}")


def store_pruned(
    files: Sequence[GraphFile], rule: str, *, progress: Progress | None = None
) -> None:
    """Prune every layout graph of the store by a rule, unless that is done.

    Raises:
        UsageError: there is no such rule.
        PipelineError: a file of the store is damaged, or the store cannot be written.
    """
    layouts = [file for file in files if file.collection.kind == "layout"]
    for number, file in enumerate(layouts, start=1):
        path = pruned_file(file.path, rule)
        source = read_facts(file.path)["source"]
        if not _is_of(path, source):
            graph = read_graph(file)
            assert isinstance(graph, LayoutGraph)
            pruned = prune(rule, graph.edge_index, graph.n_nodes, graph.node_config_ids)
            write_tensors(path, vars(pruned), facts={"version": VERSION, "source": source})
        if progress:
            progress("prune", number, len(layouts))


def read_pruned(graph: LayoutGraph, rule: str) -> PrunedGraph | None:
    """Return the pruned form of a graph that the store keeps, or None.

    Raises:
        PipelineError: the file is damaged.
    """
    path = graph.file.path
    if path.suffix != STORE_SUFFIX or os.sep in rule:
        return None
    kept = pruned_file(path, rule)
    if not kept.is_file() or not _is_of(kept, read_facts(path)["source"]):
        return None
    return PrunedGraph(**open_tensors(kept).tensors)


def _is_of(path: Path, source: str) -> bool:
    """Tell whether a pruned graph was made from this source by this version."""
    try:
        facts = read_facts(path)
    except PipelineError:
        return False
    return facts.get("version") == VERSION and facts.get("source") == source
