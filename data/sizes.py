"""How large the splits of a tree are, by the headers of its files."""

from itertools import groupby
from pathlib import Path
from statistics import fmean

from data.npz.archive import Archive
from data.official.published import PartSize
from data.tree import GraphFile, find_graphs


def sizes_of(data_dir: Path) -> list[PartSize]:
    """Return the size of each split of a data folder, from the headers of its files.

    Headers do not show repeated configs, so `repeated` is 0.

    Args:
        data_dir: Folder that holds npz/.

    Raises:
        PipelineError: A file is damaged.
    """
    sizes = []
    parts = groupby(find_graphs(data_dir), lambda file: (file.collection, file.split))
    for (collection, split), files in parts:
        nodes, edges, configs = zip(*map(_shape, files), strict=True)
        sizes.append(
            PartSize(
                collection=collection.name,
                split=split,
                graphs=len(nodes),
                nodes=round(fmean(nodes)),
                most_nodes=max(nodes),
                edges=round(fmean(edges)),
                configs=round(fmean(configs)),
                most_configs=max(configs),
                repeated=0.0,
                counted_in="files",
            )
        )
    return sizes


def _shape(file: GraphFile) -> tuple[int, int, int]:
    """Return the numbers of nodes, edges and configs."""
    with Archive(file.path) as archive:
        (n_nodes,) = archive.shape("node_opcode", shape=(None,))
        n_edges, _ = archive.shape("edge_index", shape=(None, 2))
        (n_configs,) = archive.shape("config_runtime", shape=(None,))
    return n_nodes, n_edges, n_configs
