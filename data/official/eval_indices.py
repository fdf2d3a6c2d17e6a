"""The configs of each valid graph that the dataset's authors judge.

Their repository, google-research-datasets/tpu_graphs, has them in the folder tpu_graphs/baselines/
layout/eval_indices, a file for each collection, such as xla_random.json: a JSON object, 1,000 row
numbers by graph name. Rows are counted as in the files on the authors' own server.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import open_regular
from common.errors import PipelineError
from data.tree import collection_named


def read_eval_indices(path: Path | str, collection: str) -> dict[str, NDArray[np.int64]]:
    """Read which rows of each graph's file are judged; (r,) int64 by graph name.

    Args:
        path: the authors' folder, of which `collection` says the file, or one of that form.

    Raises:
        UsageError: there is no such collection.
        PipelineError: the file is missing, or of another form.
    """
    path, name = Path(path), collection_named(collection).name
    if path.is_dir():
        path /= f"{name.removeprefix('layout:').replace(':', '_')}.json"
    with open_regular(path) as file:
        try:
            table = json.loads(file.read())
            indices = {graph: np.asarray(rows) for graph, rows in table.items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise PipelineError(f"{path}: expected JSON, lists of rows by graph: {error}") from None
    for graph, rows in indices.items():
        is_list = rows.ndim == 1 and rows.dtype == np.int64 and rows.min() >= 0
        if not is_list or len(np.unique(rows)) < len(rows):
            raise PipelineError(f"{path}: graph '{graph}': expected different rows, counted from 0")
    return indices
