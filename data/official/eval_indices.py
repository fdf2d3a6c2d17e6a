"""The configs of each valid graph that the dataset's authors judge.

Their repository, google-research-datasets/tpu_graphs, has them in the folder tpu_graphs/baselines/
layout/eval_indices, a file for each collection, such as xla_random.json: a JSON object, 1,000 row
numbers by graph name. Rows are counted as in the files on the authors' own server.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from common.errors import PipelineError
from common.json_files import read_json
from data.tree import collection_named

Rows = dict[str, Annotated[list[NonNegativeInt], Field(min_length=1)]]


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
    expected = "different rows of each graph, counted from 0"
    indices = {}
    for graph, rows in read_json(path, Rows, expected=expected).items():
        if len(set(rows)) < len(rows):
            raise PipelineError(f"{path}: graph '{graph}' names a row twice; expected {expected}")
        indices[graph] = np.array(rows)
    return indices
