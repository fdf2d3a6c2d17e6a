"""Noise ceilings: how well one measurement of a graph's configs ranks as another one does.

It is the Kendall tau between two measurements of the configs that a graph holds more than once;
see `data.audit.noise` for what it does and does not bound.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.audit.noise import measure_noise
from data.graphs.configs import distinct_rows
from data.graphs.distinct import config_hashes
from data.read import read_graph
from data.tree import GraphFile
from submissions.labels import Labels


def read_ceilings(
    files: Sequence[GraphFile],
    labels: Mapping[str, Labels],
    *,
    subsets: Mapping[str, NDArray[np.int64]] | None = None,
) -> dict[str, float]:
    """Measure the noise ceiling of labelled layout graphs.

    One graph is read at a time. From files of the store that takes the memory of its runtimes and
    hashes; an npz file has to be packed first.

    Args:
        files: graphs; tile kernels, and those without labels, are passed over unread.
        labels: runtimes of all c configs by submission ID; those in `files` do not count.
        subsets: (m,) int64 config indices by submission ID, of graphs that are judged on some
            configs only; then these alone count.

    Returns:
        Kendall tau by submission ID, of the graphs where it is known.

    Raises:
        PipelineError: a file is damaged, or the labels do not fit its configs; the line names
            it.
    """
    ceilings = {}
    for file in files:
        known = labels.get(file.submission_id)
        if file.collection.kind != "layout" or known is None or not known.is_labelled:
            continue
        hashes, runtime_ns = config_hashes(read_graph(file)), known.runtime_ns
        if len(hashes) != len(runtime_ns) or (runtime_ns <= 0).any():
            raise PipelineError(
                f"{file.path}: {len(runtime_ns)} runtimes, the least {runtime_ns.min()}; expected "
                f"one above 0 for each of its {len(hashes)} configs"
            )
        subset = (subsets or {}).get(file.submission_id, slice(None))
        tau = _tau(hashes[subset], runtime_ns[subset])
        if not math.isnan(tau):
            ceilings[file.submission_id] = tau
    return ceilings


def _tau(hashes: NDArray[np.uint64], runtime_ns: NDArray[np.int64]) -> float:
    """Return tau between two measurements of the configs of equal hash; nan where unknown."""
    _, group = distinct_rows(hashes)
    noise = measure_noise(runtime_ns, group)
    return math.nan if noise is None else noise.tau
