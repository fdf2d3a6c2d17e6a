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
from data.tree import LAYOUT_COLLECTIONS, Collection
from submissions.labels import Labels
from submissions.score import fitting_ranking, reason_to_leave_out
from submissions.write import split_id

Subsets = Mapping[str, NDArray[np.int64]]
Rankings = Mapping[str, NDArray[np.int64]]

SUFFIX = ".json"
MAX_BYTES = 16 << 20  # a hundred times what the largest of them takes
SHOWN_CHARACTERS = 60


def file_name(collection: Collection) -> str:
    """Return the name of a layout collection's index file: "xla_default.json"."""
    return collection.name.removeprefix("layout:").replace(":", "_") + SUFFIX


COLLECTION_OF = {file_name(collection): collection for collection in LAYOUT_COLLECTIONS}


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
    files = [file for file in path.iterdir() if file.suffix == SUFFIX and file.name[0] != "."]
    if not files:
        raise PipelineError(f"{path}: holds no index file; expected {_expected_names()}")
    order = list(COLLECTION_OF)
    files.sort(key=lambda file: (order.index(file.name) if file.name in order else -1, file.name))
    subsets: dict[str, NDArray[np.int64]] = {}
    for file in files:
        subsets |= _read_file(file)
    return subsets


def restrict_labels(labels: Mapping[str, Labels], subsets: Subsets) -> dict[str, Labels]:
    """Keep the labels of the configs in `subsets`, in the order there.

    Raises:
        PipelineError: an index beyond the graph's configs.
    """
    kept = dict(labels)
    for submission_id in _listed_in(subsets, labels):
        subset, whole = subsets[submission_id], labels[submission_id]
        outside = subset[subset >= len(whole.runtime_ns)]
        if len(outside):
            collection, graph = _parts(submission_id)
            raise PipelineError(
                f"{file_name(collection)}: graph {_shown(graph)}: index {outside[0]}; expected "
                f"0..{len(whole.runtime_ns) - 1}, the graph's configs"
            )
        kept[submission_id] = replace(whole, runtime_ns=whole.runtime_ns[subset])
    return kept


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
    kept_labels, kept = restrict_labels(labels, subsets), dict(rankings)
    answered = {found[0].name for found in map(split_id, rankings) if found}
    for submission_id in _listed_in(subsets, labels):
        collection, _ = _parts(submission_id)
        whole = labels[submission_id]
        if reason_to_leave_out(collection, whole, answered=collection.name in answered):
            continue
        ranking = fitting_ranking(collection, submission_id, rankings, labels)
        number = np.full(len(ranking), -1)
        number[subsets[submission_id]] = np.arange(len(subsets[submission_id]))
        renumbered = number[ranking]
        kept[submission_id] = renumbered[renumbered >= 0]
    return kept, kept_labels


def subset_remarks(labels: Mapping[str, Labels], subsets: Subsets) -> list[str]:
    """Count, per collection in `subsets`, what is judged whole, and what is listed in vain."""
    remarks = []
    for name in dict.fromkeys(_parts(submission_id)[0].name for submission_id in subsets):
        known = {i for i in labels if i.startswith(f"{name}:") and labels[i].is_labelled}
        listed = {i for i in subsets if i.startswith(f"{name}:")}
        if whole := len(known - listed):
            remarks.append(f"{name}: {whole} graphs not in the subset; judged on all their configs")
        if absent := len(listed - labels.keys()):
            remarks.append(f"{name}: {absent} graphs of the subset are not in the data")
    return remarks


def _listed_in(subsets: Subsets, labels: Mapping[str, Labels]) -> list[str]:
    return [submission_id for submission_id in subsets if submission_id in labels]


def _parts(submission_id: str) -> tuple[Collection, str]:
    found = split_id(submission_id)
    assert found is not None, "subsets are keyed by submission IDs"
    return found


def _read_file(path: Path) -> dict[str, NDArray[np.int64]]:
    if not path.is_file():
        raise PipelineError(f"{path}: no such file or folder; expected {_expected_names()}")
    collection = COLLECTION_OF.get(path.name)
    if collection is None:
        raise PipelineError(f"{path}: the name tells no collection; expected {_expected_names()}")
    graphs = _read_object(path)
    if "" in graphs:
        raise PipelineError(f"{path}: graph '': expected the name of a graph")
    return {
        f"{collection.name}:{graph}": _indices(f"{path}: graph {_shown(graph)}", listed)
        for graph, listed in graphs.items()
    }


def _read_object(path: Path) -> dict[str, Any]:
    n_bytes = path.stat().st_size
    if n_bytes > MAX_BYTES:
        raise PipelineError(f"{path}: has {n_bytes} bytes; expected at most {MAX_BYTES}")
    try:
        pairs = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_Pairs)
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    except RecursionError:
        raise PipelineError(f"{path}: not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise PipelineError(f"{path}: not JSON: {error}") from error
    if not isinstance(pairs, _Pairs) or not pairs:
        what = "an object without graphs" if isinstance(pairs, _Pairs) else _shown(pairs)
        raise PipelineError(f'{path}: is {what}; expected an object {{"graph": [indices], …}}')
    graphs = dict(pairs)
    if len(graphs) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise PipelineError(f"{path}: graph {_shown(twice)} is given twice; expected it once")
    return graphs


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands in the file; a dict would drop repeated names in silence."""


def _indices(place: str, listed: Any) -> NDArray[np.int64]:
    if not isinstance(listed, list) or isinstance(listed, _Pairs):
        raise PipelineError(f"{place}: is {_shown(listed)}; expected a list of config indices")
    if not listed:
        raise PipelineError(f"{place}: is an empty list; expected at least one config index")
    highest = np.iinfo(np.int64).max
    for entry, index in enumerate(listed):
        if type(index) is not int or not 0 <= index <= highest:
            raise PipelineError(
                f"{place}: entry {entry} is {_shown(index)}; expected a config index, a whole "
                "number from 0"
            )
    indices = np.array(listed, np.int64)
    values, counts = np.unique(indices, return_counts=True)
    if (counts > 1).any():
        repeated = values[counts > 1][0]
        raise PipelineError(f"{place}: index {repeated} is repeated; expected each config once")
    return indices


def _shown(value: Any) -> str:
    """Return a JSON value short enough, and plain enough, for a one-line message."""
    if isinstance(value, list):
        return "an object" if isinstance(value, _Pairs) else "a list"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _expected_names() -> str:
    return ", ".join(COLLECTION_OF)
