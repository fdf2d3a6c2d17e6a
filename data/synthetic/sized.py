"""Layout graphs of sizes that somebody asks for, such as those of the largest real files."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import PipelineError, UsageError
from data.synthetic.layout_files import sized_transformer, write_layout_graph
from data.synthetic.whole_tree import whole_tree
from data.tree import SPLITS, Collection, GraphFile, collection_named

FORM = "NODES:CONFIGURABLE:CONFIGS"
# About ten times the largest real ones; what is larger than that is a slip of the pen.
MAX_NODES, MAX_CONFIGS = 500_000, 1_000_000
# Runtimes of the test split are withheld; these graphs are labelled.
LABELLED_SPLITS = SPLITS[:2]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class GraphSize:
    """The size of a layout graph: n nodes, of which k are configurable, and c configs."""

    n_nodes: int
    n_configurable: int
    n_configs: int

    @property
    def name(self) -> str:
        """Return a graph's name that tells its size: "n14000_k500_c50000"."""
        return f"n{self.n_nodes}_k{self.n_configurable}_c{self.n_configs}"

    @property
    def config_bytes(self) -> int:
        """Return how many bytes the configs inflate to, in the file's float32."""
        return 4 * 18 * self.n_configurable * self.n_configs


def parse_size(text: str) -> GraphSize:
    """Read a size such as "14000:500:50000".

    Raises:
        UsageError: it is not three whole numbers above 0, or no graph has such a size.
    """
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise UsageError(f"graph '{text}': expected {FORM}, such as 14000:500:50000")
    size = GraphSize(*map(int, parts))
    if min(size.n_nodes, size.n_configurable, size.n_configs) < 1:
        raise UsageError(f"graph '{text}': expected {FORM}, each at least 1")
    if size.n_configurable > size.n_nodes:
        raise UsageError(f"graph '{text}': has more configurable nodes than nodes")
    if size.n_nodes > MAX_NODES or size.n_configs > MAX_CONFIGS:
        raise UsageError(
            f"graph '{text}': expected at most {MAX_NODES} nodes and {MAX_CONFIGS} configs"
        )
    return size


def synthesize_sizes(
    out: Path,
    sizes: Sequence[GraphSize],
    *,
    collection: Collection | None = None,
    split: str = "train",
    seed: int = 0,
    progress: Progress | None = None,
) -> list[GraphFile]:
    """Write one labelled layout graph of each size below `out`, all or none.

    The same arguments give the same content. Memory stays near one byte per choice of the search
    (at most 3 k c) and does not depend on how far the configs inflate.

    Args:
        collection: where the graphs lie, and which search makes their configs; by default
            layout:xla:random.
        progress: told a graph's name, its configs written so far, and all of them.

    Raises:
        UsageError: a size is impossible or given twice, the collection is no layout collection,
            the split is not labelled, or `out` exists and is not an empty folder.
        PipelineError: the tree cannot be written.
    """
    place = collection or collection_named("layout:xla:random")
    _check_place(place, split)
    _check_sizes(sizes)
    with whole_tree(out) as tree:
        for size in sizes:
            write_sized(tree, size, collection=place, split=split, seed=seed, progress=progress)
    folder = out / "npz" / place.folder / split
    return [GraphFile(place, split, size.name, folder / f"{size.name}.npz") for size in sizes]


def write_sized(
    tree: Path,
    size: GraphSize,
    *,
    collection: Collection,
    split: str = "train",
    seed: int = 0,
    progress: Progress | None = None,
) -> GraphFile:
    """Write one labelled layout graph into a tree, whole or not at all.

    Raises:
        PipelineError: the size is impossible, or the file cannot be written.
    """
    path = tree / "npz" / collection.folder / split / f"{size.name}.npz"
    write_layout_graph(
        path,
        n_nodes=size.n_nodes,
        n_configurable=size.n_configurable,
        n_configs=size.n_configs,
        seed=seed,
        search=collection.name.rsplit(":", 1)[1],
        report=progress and (lambda done, total: progress(size.name, done, total)),
    )
    return GraphFile(collection, split, size.name, path)


def _check_place(collection: Collection, split: str) -> None:
    if collection.kind != "layout":
        raise UsageError(f"collection '{collection.name}': expected a layout collection")
    if split not in LABELLED_SPLITS:
        raise UsageError(f"split '{split}': expected one of {', '.join(LABELLED_SPLITS)}")


def _check_sizes(sizes: Sequence[GraphSize]) -> None:
    """Refuse what cannot be made, before anything is written."""
    for size, count in Counter(sizes).items():
        given = f"graph '{size.n_nodes}:{size.n_configurable}:{size.n_configs}'"
        if count > 1:
            raise UsageError(f"{given}: given twice; files are named by their size")
        try:
            sized_transformer(n_nodes=size.n_nodes, n_configurable=size.n_configurable)
        except PipelineError as error:
            raise UsageError(f"{given}: {error}") from error
