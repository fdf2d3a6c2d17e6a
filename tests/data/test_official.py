"""The embedded names and sizes are those that were published; the authors' choice is read."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.official.eval_indices import read_eval_indices
from data.official.published import official_sizes


def test_every_published_part_has_a_size() -> None:
    counts = [part.graphs for part in official_sizes()]
    assert counts[:6] == [5709, 676, 844, 61, 7, 8]
    assert counts[6:] == [69, 7, 8, 198, 20, 17, 207, 20, 17]
    tests = [p for p in official_sizes() if p.split == "test" and p.collection != "tile:xla"]
    assert {part.configs for part in tests} == {1_000}


COLLECTION = "layout:xla:random"


def test_folder_and_a_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "xla_random.json"
    file.write_text(json.dumps({"resnet50.4x4.fp16": [5, 0, 3]}))
    for path in (tmp_path, file):
        read = read_eval_indices(path, COLLECTION)
        np.testing.assert_array_equal(read["resnet50.4x4.fp16"], [5, 0, 3])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "content: Invalid JSON"),
        ("[1]", "content: Input should be an object"),
        ('{"a": [[1], [1, 2]]}', r"key 'a\.0': Input should be a valid integer"),
        ('{"a": [1, 1]}', "graph 'a' names a row twice; expected different rows"),
        ('{"a": [-1]}', r"key 'a\.0': Input should be greater than or equal to 0"),
        ('{"a": [0.5]}', r"key 'a\.0': Input should be a valid integer"),
        ('{"a": []}', "key 'a': List should have at least 1 item"),
        ('{"a": 3}', "key 'a': Input should be a valid array; expected different rows"),
    ],
)
def test_another_form_and_a_missing_file_are_refused(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"xla_random\.json: cannot be read"):
        read_eval_indices(tmp_path, COLLECTION)
    file = tmp_path / "xla_random.json"
    file.write_text(text)
    with pytest.raises(PipelineError, match=told):
        read_eval_indices(file, COLLECTION)
