"""Pruning rules against a breadth-first search; what the store keeps is what would be computed."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from common.progress import watched_by
from data.graph_store.stored_graph import (
    open_tensors,
    read_layout,
    store_graph,
    stored_file,
    write_tensors,
)
from data.graphs.graph import LayoutGraph
from data.tree import GraphFile, find_graphs
from features import pruning
from features.padding import minor_to_major
from features.pruning import (
    PrunedGraph,
    prune,
    prune_layout_graph,
    pruned_file,
    pruning_rule,
    read_pruned,
    store_pruned,
)
from tests.data.graphs.test_packing import same_bits
from tests.data.npz.damaged_archives import flipped

# The same examples in every run, however slow the machine.
STEADY = settings(deadline=None, derandomize=True)

RULE = "hops-1"
Edges = NDArray[np.int64]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Edges, int, NDArray[np.int64]]:
    """Any edges at all: none, self-loops, twice the same, cycles, parts that do not connect."""
    n_nodes = draw(st.integers(1, 14))
    node = st.integers(0, n_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=20))
    config_ids = draw(st.lists(node, min_size=1, unique=True))
    return (
        np.asarray(edges, dtype=np.int64).reshape(-1, 2),
        n_nodes,
        np.asarray(config_ids, dtype=np.int64),
    )


def nodes_within(edges: Edges, config_ids: NDArray[np.int64], hops: int) -> list[int]:
    neighbours = defaultdict(set)
    for consumer, producer in edges.tolist():
        neighbours[consumer].add(producer)
        neighbours[producer].add(consumer)
    distance = dict.fromkeys(config_ids.tolist(), 0)
    waiting = list(distance)
    while waiting:
        node = waiting.pop(0)
        for other in [other for other in neighbours[node] if other not in distance]:
            distance[other] = distance[node] + 1
            waiting.append(other)
    return sorted(node for node, far in distance.items() if far <= hops)


def check(rule: str, edges: Edges, n_nodes: int, ids: NDArray[np.int64], kept: list[int]) -> None:
    """Check shapes, types, order, edges between kept nodes, and the way back to the whole graph."""
    pruned = pruning_rule(rule)(edges, n_nodes, ids)
    assert pruned.edge_index.shape == (len(pruned.edge_index), 2)
    for array in (pruned.kept, pruned.edge_index, pruned.config_ids):
        assert array.dtype == np.int64
    assert pruned.kept.tolist() == kept
    assert pruned.kept[pruned.config_ids].tolist() == ids.tolist()
    inside = [[u, v] for u, v in edges.tolist() if u in set(kept) and v in set(kept)]
    assert pruned.kept[pruned.edge_index].tolist() == inside


# What a rule keeps of edges, n and configurable nodes, in a slow and obvious way.
REFERENCES = {
    "none": lambda edges, n_nodes, config_ids: list(range(n_nodes)),
    "config": lambda edges, n_nodes, config_ids: sorted(config_ids.tolist()),
    **{
        f"hops-{hops}": lambda edges, n_nodes, config_ids, hops=hops: nodes_within(
            edges, config_ids, hops
        )
        for hops in (1, 3, 99)
    },
}


@pytest.mark.parametrize("rule", sorted({*pruning.RULES, *REFERENCES}))
@STEADY
@given(graph=graphs())
def test_rules_keep_what_a_search_reaches(
    rule: str, graph: tuple[Edges, int, NDArray[np.int64]]
) -> None:
    edges, n_nodes, config_ids = graph
    check(rule, edges, n_nodes, config_ids, REFERENCES[rule](edges, n_nodes, config_ids))


@pytest.mark.parametrize("name", ["", "hops-0", "hops-100", "Config"])
def test_unknown_rules_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        pruning_rule(name)
    known = ", ".join([*pruning.RULES, "hops-k (k = 1 to 99)"])
    assert str(caught.value) == f"pruning rule '{name}': no such rule; known: {known}"
    assert {"none", "config"} <= pruning.RULES.keys()


@pytest.fixture
def stored(layout_graph: LayoutGraph, tmp_path: Path) -> GraphFile:
    file = stored_file(tmp_path / "store", layout_graph.file)
    store_graph(layout_graph.file, file)
    return file


def check_same(one: object, other: object) -> None:
    """Check that two records of arrays are the same to the bit, types included."""
    assert type(one) is type(other) and vars(one).keys() == vars(other).keys()
    for name, mine in vars(one).items():
        same_bits(mine, vars(other)[name])


@pytest.mark.parametrize("rule", [*pruning.RULES, "hops-1", "hops-3"])
def test_what_is_kept_is_what_would_be_computed(
    rule: str, stored: GraphFile, layout_graph: LayoutGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_pruned([stored], rule)
    graph = read_layout(stored)
    kept = read_pruned(graph, rule)
    assert kept is not None
    check_same(kept, prune(graph, rule))
    want = prune_layout_graph(layout_graph, rule=rule)
    np.testing.assert_array_equal(want[1].node_feat, layout_graph.node_feat[kept.kept])
    np.testing.assert_array_equal(want[1].opcode, layout_graph.node_opcode[kept.kept])
    layouts = minor_to_major(layout_graph.node_feat)[kept.kept]
    np.testing.assert_array_equal(want[1].minor_to_major, layouts)
    monkeypatch.delattr(pruning, "prune")  # nothing is computed
    for mine, its in zip(prune_layout_graph(graph, rule=rule), want, strict=True):
        check_same(mine, its)


def test_only_what_is_missing_or_not_as_it_should_be_is_pruned(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = find_graphs(tiny_tree)
    files = [stored_file(tmp_path, source) for source in sources]
    for source, file in zip(sources, files, strict=True):
        store_graph(source, file)
    layouts = [file for file in files if file.collection.kind == "layout"]
    pruned = []

    def counted(graph: LayoutGraph, rule: str) -> PrunedGraph:
        pruned.append(rule)
        return prune(graph, rule)

    monkeypatch.setattr(pruning, "prune", counted)
    calls: list[tuple[str, int, int]] = []
    with watched_by(lambda *call: calls.append(call)):
        store_pruned(files, RULE)
    assert len(pruned) == len(layouts) < len(files)
    assert calls == [("prune", number, len(layouts)) for number in range(len(layouts) + 1)]
    before = {path: path.read_bytes() for path in tmp_path.rglob(f"*.prune-{RULE}.*")}
    assert set(before) == {pruned_file(file.path, RULE) for file in layouts}
    store_pruned(files, RULE)
    assert len(pruned) == len(layouts)
    pruned_file(layouts[0].path, RULE).unlink()
    store_pruned(files, RULE)
    assert len(pruned) == len(layouts) + 1
    assert {path: path.read_bytes() for path in before} == before
    store_pruned(files, "config")
    assert {path: path.read_bytes() for path in before} == before


def damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(flipped(content, len(content) - 1, 1))


@pytest.mark.parametrize(
    "change",
    ["missing", "damaged", "cut", "a folder", "source", "version"],
)
def test_a_kept_graph_that_is_stale_or_damaged_does_no_harm(change: str, stored: GraphFile) -> None:
    graph = read_layout(stored)
    store_pruned([stored], RULE)
    path = pruned_file(stored.path, RULE)
    good, opened = path.read_bytes(), open_tensors(path)
    path.unlink()
    facts = dict(opened.facts)
    if change in facts:
        facts[change] = "another"
    if change == "a folder":
        path.mkdir()
    elif change == "cut":
        path.write_bytes(good[:-1])
    elif change != "missing":
        write_tensors(path, opened.tensors, facts=facts)
    if change == "damaged":
        damage(path)
    assert read_pruned(graph, RULE) is None
    check_same(prune_layout_graph(graph, rule=RULE)[0], prune(graph, RULE))
    if change == "a folder":
        with pytest.raises(PipelineError, match=r"hops-1.safetensors: cannot be written: "):
            store_pruned([stored], RULE)
    else:
        store_pruned([stored], RULE)
        assert path.read_bytes() == good


def test_no_pruned_form_is_read_outside_the_store_or_of_an_unknown_rule(
    stored: GraphFile, layout_graph: LayoutGraph
) -> None:
    assert read_pruned(layout_graph, RULE) is None
    graph = read_layout(stored)
    assert read_pruned(graph, RULE) is None
    for refuse in (lambda: read_pruned(graph, "../x"), lambda: store_pruned([stored], "../config")):
        with pytest.raises(UsageError, match="no such rule; known: none, config"):
            refuse()
    assert list(stored.path.parent.iterdir()) == [stored.path]


def test_kept_nodes_of_the_largest_graph_are_known_for_every_rule() -> None:
    assert {*pruning.RULES} - {"none"} <= pruning.KEPT_PER_CONFIGURABLE.keys()
    kept = [pruning.kept_nodes(rule, 43_615) for rule in ("hops-1", "hops-2", "hops-9")]
    assert kept == pytest.approx([3.6 * 3_143, 7 * 3_143, 43_615])
