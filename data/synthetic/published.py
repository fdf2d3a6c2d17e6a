"""The public dataset's volume: a graph for each of its names, of a size as published, made up.

The bytes of a file depend on its collection, split and name and on the seed alone, so that parts
can be made in any order, by several processes, and anew after they were removed.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import create_text, sweep
from common.child_processes import children_end_with_block, end_with_parent, interrupts_held
from common.errors import UsageError
from common.progress import progress
from common.seeds import generator
from data.official.names import official_names
from data.official.sizes import (
    CONFIGURABLE_SHARE,
    OTHER_LAYOUT_CONFIGS,
    PartSize,
    official_sizes,
)
from data.synthetic.programs import siblings, sized_kernel, sized_program
from data.synthetic.write import file_in, write_layout, write_tile
from data.tree import COLLECTIONS, SPLITS, Collection, GraphFile, collection_named

# The fewest nodes and configs of a graph; those of the layouts' nodes are published.
FEWEST = {"tile:xla": (2, 2), "layout:xla": (372, 20), "layout:nlp": (876, 20)}
MOST_OF_TILES = 8  # times the mean has the largest kernel; of tiles only means are published
SEED_FILE = "seed.txt"


@dataclass(frozen=True)
class PublishedGraph:
    """A graph of the public dataset.

    Attributes:
        number: its place among the names of its part.
        n_nodes, n_configs: drawn, so that the mean and the most of its part are as published.
    """

    collection: Collection
    split: str
    name: str
    number: int
    n_nodes: int
    n_configs: int

    @property
    def n_configurable(self) -> int:
        """Return how many nodes are configurable; 0 of a kernel."""
        return round(CONFIGURABLE_SHARE * self.n_nodes) if self.collection.kind == "layout" else 0

    def file(self, tree: Path) -> GraphFile:
        """Return where a tree has it."""
        return file_in(tree, self.collection, self.split, self.name)


def published_graphs(
    collections: Sequence[Collection] = COLLECTIONS,
    splits: Sequence[str] = SPLITS,
    share: float = 1.0,
) -> list[PublishedGraph]:
    """List the graphs of some parts, or of each a share: those at even steps by size, 1 at least.

    Of a train split at least two are taken.

    Raises:
        UsageError: there is no such split.
    """
    unknown = [split for split in splits if split not in SPLITS]
    if unknown:
        raise UsageError(f"split '{unknown[0]}': expected one of {', '.join(SPLITS)}")
    wanted = {collection.name for collection in collections}
    listed: list[PublishedGraph] = []
    for part in official_sizes():
        if part.collection in wanted and part.split in splits:
            graphs = sorted(_part(part), key=lambda graph: graph.n_nodes * graph.n_configs)
            n_taken = max(2 if part.split == "train" else 1, round(share * len(graphs)))
            steps = (np.arange(n_taken) + 0.5) * len(graphs) / n_taken
            listed += [graphs[int(step)] for step in steps]
    return listed


def _part(part: PartSize) -> Iterator[PublishedGraph]:
    collection, label = collection_named(part.collection), f"{part.collection}/{part.split}"
    is_tile = collection.kind == "tile"
    most = MOST_OF_TILES if is_tile else 1
    fewest = next(least for start, least in FEWEST.items() if label.startswith(start))
    rng = generator(0, "sizes", label)
    nodes = rng.permutation(spread(part.graphs, part.nodes, most * part.most_nodes, fewest[0]))
    drawn = spread(part.graphs, part.configs, most * part.most_configs, fewest[1])
    configs = rng.permutation(drawn)
    names = sorted(official_names()[label])[: part.graphs]
    for number, (name, n_nodes, n_configs) in enumerate(zip(names, nodes, configs, strict=True)):
        c = OTHER_LAYOUT_CONFIGS.get(f"{part.collection}:{name}", int(n_configs))
        yield PublishedGraph(collection, part.split, name, number, int(n_nodes), c)


def spread(n: int, mean: int, most: int, fewest: int) -> NDArray[np.int64]:
    """Spread `n` sizes from `fewest` to `most` so that their mean is exactly `mean`; ascending.

    About evenly on a logarithmic scale, as the sizes of published graphs are. None has more than
    half of all, since `most` is a collection's where that of its valid split was not published.
    """
    from scipy.optimize import brentq

    if mean == most:
        return np.full(n, mean)
    most = min(most, mean * n // 2)
    steps, ratio = np.linspace(0, 1, n), most / fewest

    def sizes(power: float) -> NDArray[np.float64]:
        return fewest * ratio ** (steps**power)

    found = sizes(brentq(lambda power: sizes(power).mean() - mean, 1e-3, 1e3))
    whole = np.floor(found).astype(np.int64)
    whole[-1] = most
    whole[: mean * n - whole.sum()] += 1  # what was rounded off: less than 1 of each
    return whole


def synthesize_published(
    out: Path, graphs: Sequence[PublishedGraph], *, seed: int = 0, workers: int = 1
) -> list[GraphFile]:
    """Write those of some graphs that a tree lacks; those that are there are whole, and stay.

    Raises:
        UsageError: the tree's graphs are of another seed.
        PipelineError: the tree cannot be written.
    """
    seed_file = out / SEED_FILE
    if not create_text(seed_file, f"{seed}\n") and seed_file.read_text() != f"{seed}\n":
        raise UsageError(f"{out}: holds graphs of another seed; expected {seed} in {SEED_FILE}")
    for folder in {graph.file(out).path.parent for graph in graphs}:
        sweep(folder)
    todo = [graph for graph in graphs if not graph.file(out).path.exists()]
    todo.sort(key=lambda graph: -graph.n_configurable * graph.n_configs)
    what, n_before = "synthesize", len(graphs) - len(todo)
    progress(what, n_before, len(graphs))
    for number, _ in enumerate(_done(partial(write_published, out, seed), todo, workers), start=1):
        progress(what, n_before + number, len(graphs))
    return [graph.file(out) for graph in graphs]


def _done(write: "partial[None]", graphs: Sequence[PublishedGraph], workers: int) -> Iterator[None]:
    if workers == 1 or len(graphs) < 2:
        yield from map(write, graphs)
        return
    context = get_context("spawn")
    with (
        ProcessPoolExecutor(workers, context, initializer=end_with_parent) as pool,
        children_end_with_block(),
    ):
        with interrupts_held():
            waiting = [pool.submit(write, graph) for graph in graphs]
        yield from (done.result() for done in as_completed(waiting))


def write_published(tree: Path, seed: int, graph: PublishedGraph) -> None:
    """Write one graph into a tree, whole or not at all."""
    file = graph.file(tree)
    if graph.collection.kind == "tile":
        rng = generator(seed, "tile", graph.split, graph.name)
        write_tile(file, sized_kernel(graph.n_nodes, rng), graph.n_configs, rng)
        return
    source = graph.collection.name.split(":")[1]
    family, batch = siblings(source, graph.split, graph.number + 1)[-1]
    program = sized_program(graph.n_nodes, graph.n_configurable, family, batch)
    write_layout(file, program, n_configs=graph.n_configs, seed=seed, graph=graph.name)
