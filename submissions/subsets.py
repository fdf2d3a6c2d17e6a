"""Judge layout graphs on some of their configs only, as the dataset's authors do.

Their index files (tpu_graphs/baselines/layout/eval_indices of their repository) are JSON objects,
one per collection: {"graph": [config index, …], …}.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.tree import LAYOUT_COLLECTIONS, collection_named
from submissions.labels import Labels
from submissions.score import fitting_ranking, reason_to_leave_out
from submissions.write import shown

Subsets = Mapping[str, NDArray[np.int64]]
Rankings = Mapping[str, NDArray[np.int64]]

MAX_BYTES = 16 << 20  # a hundred times what the largest of them takes
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
        path: an index file, whose name tells the collection, or a folder of such files, whose
            other files are not looked at.

    Returns:
        (m,) int64 distinct config indices, none below 0, by submission ID, in the order given.

    Raises:
        PipelineError: no such file, not JSON of that form, or an index that is none; the line
            names the file, the graph, and what was expected.
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

    Graphs that are not listed, and those that `score_submission` leaves out, keep their ranking.

    Args:
        rankings: (c,) int64 config indices by submission ID, predicted fastest first.
        labels: runtimes of the c configs by submission ID.
        subsets: (m,) int64 distinct config indices by submission ID of a layout graph; those
            without labels are not looked at.

    Returns:
        rankings: (m,) int64 of 0..m-1, in the order of the whole ranking.
        labels: m runtimes.

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
    """Return "layout:xla:random" of "layout:xla:random:graph"."""
    return ":".join(submission_id.split(":")[:3])


def _read_file(path: Path) -> dict[str, NDArray[np.int64]]:
    collection = COLLECTION_OF.get(path.name)
    if collection is None:
        raise PipelineError(f"{path}: the name tells no collection; expected {EXPECTED_NAMES}")
    found = {}
    for graph, listed in _read_object(path).items():
        fault = "expected the name of a graph" if not graph else _fault(listed)
        if fault:
            raise PipelineError(f"{path}: graph {shown(repr(graph))}: {fault}")
        found[f"{collection}:{graph}"] = np.array(listed, np.int64)
    return found


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object that names no key twice."""
    try:
        n_bytes = path.stat().st_size
        if n_bytes > MAX_BYTES:
            raise PipelineError(f"{path}: has {n_bytes} bytes; expected at most {MAX_BYTES}")
        pairs = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_Pairs)
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    except RecursionError:
        raise PipelineError(f"{path}: not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise PipelineError(f"{path}: not JSON: {error}") from error
    if not isinstance(pairs, _Pairs) or not pairs:
        raise PipelineError(
            f'{path}: is {_told(pairs)}; expected an object {{"graph": [indices], …}}'
        )
    name, count = Counter(name for name, _ in pairs).most_common(1)[0]
    if count > 1:
        raise PipelineError(f"{path}: graph {shown(repr(name))} is given twice; expected it once")
    return dict(pairs)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands in the file; a dict would drop repeated names in silence."""


def _fault(listed: Any) -> str | None:
    """Say what keeps a JSON value from being a list of distinct config indices."""
    if not isinstance(listed, list) or isinstance(listed, _Pairs) or not listed:
        return f"is {_told(listed)}; expected a list of at least one config index"
    highest = np.iinfo(np.int64).max
    for entry, index in enumerate(listed):
        if type(index) is not int or not 0 <= index <= highest:
            return (
                f"entry {entry} is {_told(index)}; expected a config index, a whole number from 0"
            )
    index, count = Counter(listed).most_common(1)[0]
    return f"index {index} is repeated; expected each config once" if count > 1 else None


def _told(value: Any) -> str:
    """Return a JSON value short enough, and plain enough, for a message."""
    if not isinstance(value, list):
        return shown(repr(value))
    kind = "object" if isinstance(value, _Pairs) else "list"
    return f"an empty {kind}" if not value else {"list": "a list", "object": "an object"}[kind]
