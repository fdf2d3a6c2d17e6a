"""Judge layout graphs on some of their configs only, as the dataset's authors do.

Their index files (tpu_graphs/baselines/layout/eval_indices of their repository) are JSON objects,
one per collection: {"graph": [config index, …], …}.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from common.errors import PipelineError
from data.tree import LAYOUT_COLLECTIONS, collection_named
from submissions.labels import Labels
from submissions.score import fitting_ranking, reason_to_leave_out
from submissions.write import shown

Subsets = Mapping[str, NDArray[np.int64]]
Rankings = Mapping[str, NDArray[np.int64]]

Index = Annotated[int, Field(strict=True, ge=0, le=np.iinfo(np.int64).max)]
Listed = Annotated[list[Index], Field(min_length=1)]
Name = Annotated[str, Field(min_length=1)]
INDICES = TypeAdapter(Annotated[dict[Name, Listed], Field(min_length=1)])
# Collections by the name of their file: "xla_default.json".
COLLECTION_OF = {
    collection.name.removeprefix("layout:").replace(":", "_") + ".json": collection.name
    for collection in LAYOUT_COLLECTIONS
}
FILE_OF = {collection: name for name, collection in COLLECTION_OF.items()}
EXPECTED_NAMES = ", ".join(COLLECTION_OF)


def read_subsets(path: Path) -> dict[str, NDArray[np.int64]]:
    """Read which configs of each graph are to be judged.

    Args:
        path: an index file, whose name tells the collection, or a folder of such files.

    Returns:
        (m,) int64 distinct config indices, none below 0, by submission ID, in the order given.

    Raises:
        PipelineError: no such file, not JSON of that form, or an index that is none.
    """
    if not path.is_dir():
        return _read_file(path)
    files = sorted(file for file in path.glob("*.json") if file.name[0] != ".")
    if not files:
        raise PipelineError(f"{path}: holds no index file; expected {EXPECTED_NAMES}")
    return {name: listed for file in files for name, listed in _read_file(file).items()}


def restrict(
    rankings: Rankings, labels: Mapping[str, Labels], subsets: Subsets
) -> tuple[dict[str, NDArray[np.int64]], dict[str, Labels]]:
    """Leave of every listed graph the configs in `subsets`; they are numbered in the order there.

    Graphs that are not listed keep their ranking.

    Args:
        rankings: (c,) int64 config indices by submission ID, predicted fastest first.
        subsets: (m,) int64 distinct config indices by submission ID.

    Returns:
        Rankings (m,) int64 of 0..m-1, in the order of the whole ranking, and labels of m runtimes.

    Raises:
        PipelineError: an index beyond the graph's configs, or a ranking that does not fit all c.
    """
    kept_labels, kept = dict(labels), dict(rankings)
    answered = set(map(_collection, rankings))
    for name in (name for name in subsets if name in labels):
        subset, whole = subsets[name], labels[name]
        n_configs = len(whole.runtime_ns)
        if subset.max() >= n_configs:
            raise PipelineError(
                f"{FILE_OF[_collection(name)]}: {name}: index {subset.max()}; expected "
                f"0..{n_configs - 1}, the graph's configs"
            )
        kept_labels[name] = replace(whole, runtime_ns=whole.runtime_ns[subset])
        collection = collection_named(_collection(name))
        if reason_to_leave_out(collection, whole, answered=_collection(name) in answered):
            continue
        ranking = fitting_ranking(collection, name, rankings, labels)
        number = np.full(n_configs, -1)
        number[subset] = np.arange(len(subset))
        renumbered = number[ranking]
        kept[name] = renumbered[renumbered >= 0]
    return kept, kept_labels


def subset_remarks(labels: Mapping[str, Labels], subsets: Subsets) -> list[str]:
    """Count, per collection in `subsets`, what is judged whole, and what is listed in vain."""
    remarks = []
    for name in dict.fromkeys(map(_collection, subsets)):
        known = {i for i in labels if i.startswith(f"{name}:") and labels[i].is_labelled}
        listed = {i for i in subsets if i.startswith(f"{name}:")}
        if whole := len(known - listed):
            remarks.append(f"{name}: {whole} graphs not in the subset; judged on all their configs")
        if absent := len(listed - labels.keys()):
            remarks.append(f"{name}: {absent} graphs of the subset are not in the data")
    return remarks


def _collection(submission_id: str) -> str:
    return ":".join(submission_id.split(":")[:3])


def _read_file(path: Path) -> dict[str, NDArray[np.int64]]:
    collection = COLLECTION_OF.get(path.name)
    if collection is None:
        raise PipelineError(f"{path}: the name tells no collection; expected {EXPECTED_NAMES}")
    try:
        listed = INDICES.validate_json(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        found = error.errors()[0]
        graph = shown(", entry ".join(str(part) for part in found["loc"]))
        place = f"graph {graph}: " if graph else ""
        raise PipelineError(
            f'{path}: {place}{shown(found["msg"])}; expected {{"graph": [config index, …], …}}'
        ) from error
    except ValueError as error:
        raise PipelineError(f"{path}: not UTF-8 text; expected a JSON object") from error
    for graph, indices in listed.items():
        if len(set(indices)) < len(indices):
            raise PipelineError(f"{path}: graph {shown(graph)}: expected each config index once")
    return {
        f"{collection}:{graph}": np.array(indices, np.int64) for graph, indices in listed.items()
    }
