"""The authors' choice of configs is read, or refused with a line that names what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.official.eval_indices import read_eval_indices

COLLECTION = "layout:xla:random"


def test_a_folder_and_a_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "xla_random.json"
    file.write_text(json.dumps({"resnet50.4x4.fp16": [5, 0, 3]}))
    for path in (tmp_path, file):
        read = read_eval_indices(path, COLLECTION)
        np.testing.assert_array_equal(read["resnet50.4x4.fp16"], [5, 0, 3])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "expected JSON, lists of rows by graph"),
        ("[1]", "expected JSON, lists of rows by graph"),
        ('{"a": [[1], [1, 2]]}', "expected JSON, lists of rows by graph"),
        ('{"a": [1, 1]}', "graph 'a': expected different rows, counted from 0"),
        ('{"a": [-1]}', "graph 'a': expected different"),
        ('{"a": [0.5]}', "graph 'a': expected different"),
        ('{"a": []}', "graph 'a': expected different"),
        ('{"a": 3}', "graph 'a': expected different"),
    ],
)
def test_another_form_is_refused(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "xla_random.json"
    file.write_text(text)
    with pytest.raises(PipelineError, match=told):
        read_eval_indices(file, COLLECTION)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"xla_random\.json: cannot be read"):
        read_eval_indices(tmp_path, COLLECTION)
