"""The bounded cache of graphs."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.cache import CACHE_BYTES, LRUCache, bytes_held
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph
from data.synthetic.graphs import GraphSize
from data.synthetic.write import published_graphs, write_sized
from data.tree import GraphFile, collection_named
from features.scaling import fit_node_scaler
from models.layout.inputs import LayoutInputs, layout_inputs

TILE = collection_named("tile:xla")


def test_the_least_recent_items_go_first_once_there_are_too_many_bytes() -> None:
    made: list[str] = []

    def make(file: GraphFile) -> bytes:
        made.append(file.name)
        return bytes(int(file.name))

    cache = LRUCache(make, size=len, max_bytes=100)
    kept: list[int] = []  # most recent last
    for size in np.random.default_rng(0).integers(5, 130, 300):
        expected = list(map(int, made)) if size in kept else [*map(int, made), int(size)]
        kept = [*(other for other in kept if other != size), int(size)]
        while len(kept) > 1 and sum(kept) > 100:
            kept.pop(0)
        assert len(cache(GraphFile(TILE, "train", f"{size}", Path(f"{size}")))) == size
        assert list(map(int, made)) == expected
    assert 0 < len(made) < 300


def test_what_is_prefetched_is_made_once_and_by_another_thread() -> None:
    made: list[tuple[str, str]] = []

    def make(file: GraphFile) -> bytes:
        made.append((file.name, threading.current_thread().name))
        return bytes(10)

    cache = LRUCache(make, size=len, max_bytes=25)
    one, two, three = (GraphFile(TILE, "train", name, Path(name)) for name in "abc")
    cache(one)
    cache.prefetch([one, two, three])  # one is kept
    cache.prefetch([two])
    assert cache(three) == cache(two) == bytes(10)
    assert [name for name, _ in made] == ["a", "b", "c"]
    assert [thread.startswith("prefetch") for _, thread in made] == [False, True, True]
    cache(one)  # was least recent of three that do not fit
    assert [name for name, _ in made] == ["a", "b", "c", "a"]


def test_a_fault_in_prefetching_is_raised_where_the_item_is_asked_for() -> None:
    def make(file: GraphFile) -> bytes:
        raise PipelineError(f"{file.path}: damaged")

    cache = LRUCache(make, size=len)
    file = GraphFile(TILE, "train", "a", Path("a"))
    cache.prefetch([file])
    with pytest.raises(PipelineError, match="a: damaged"):
        cache(file)


NAMES_PER_SIZE, N_STEPS = 10, 12_000  # steps as of the recipe `leaderboard`
WRITTEN_CONFIGS = 200  # of each size; the others are drawn from the same layouts


def mapped_graph(folder: Path, size: GraphSize) -> LayoutGraph:
    """Make a graph whose packed configs are mapped from a file, as those of the store are."""
    few = replace(size, n_configs=min(size.n_configs, WRITTEN_CONFIGS))
    graph = read_layout(write_sized(folder, few))
    rng = np.random.default_rng(size.n_nodes)
    choices = graph.configs.alphabets.sizes
    indices = rng.integers(choices, size=(size.n_configs, len(choices)))  # hardly two are equal
    path = folder / f"{size.name}.indices.npy"
    np.save(path, indices.astype(graph.configs.indices.dtype))
    configs = replace(graph.configs, indices=np.load(path, mmap_mode="r"))
    return replace(graph, configs=configs, runtime_ns=rng.integers(10**6, 10**7, size.n_configs))


@pytest.mark.slow
def test_hardly_a_step_reads_its_graph_anew(tmp_path: Path) -> None:
    """A tenth of layout:nlp:random's train graphs, each under ten names; -s prints the share."""
    collections = [collection_named("layout:nlp:random")]
    sizes = [g.size for g in published_graphs(collections, ["train"], 1 / NAMES_PER_SIZE)]
    graphs = [mapped_graph(tmp_path, size) for size in sizes]
    scaler = fit_node_scaler((graph.node_feat for graph in graphs), scaling="log1p")
    by_name: dict[GraphFile, LayoutGraph] = {}
    for graph in graphs:
        for number in range(NAMES_PER_SIZE):
            path = graph.file.path.with_name(f"{graph.file.name}-{number}.npz")
            by_name[replace(graph.file, path=path)] = graph
    made: list[GraphFile] = []

    def make(file: GraphFile) -> LayoutInputs:
        made.append(file)
        return layout_inputs(by_name[file], rule="hops-1", scaler=scaler)

    cache, files = LRUCache(make, max_bytes=CACHE_BYTES), list(by_name)
    for step in range(N_STEPS):
        cache(files[np.random.default_rng([0, step]).integers(len(files))])
    share = len(made) / N_STEPS
    mib = np.mean([bytes_held(cache(file)) for file in files]) / 2**20
    print(f"{share:.1%} of {N_STEPS:,} steps read anew; {len(files)} graphs of {mib:.1f} MiB")  # noqa: T201
    assert len(files) >= 200
    assert share < 0.05
