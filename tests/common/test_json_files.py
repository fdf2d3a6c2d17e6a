"""A JSON file is read as its model says, or the line names the file and the key."""

from pathlib import Path

import pytest

from common.errors import PipelineError
from common.files import read_json
from common.settings import FrozenConfig


class Content(FrozenConfig):
    name: str
    weights: dict[str, float] = {}  # noqa: RUF012 - pydantic copies defaults


def test_file_that_matches_its_model_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"name": "a", "weights": {"b": 2}}')
    assert read_json(path, Content, expected="a name") == Content(name="a", weights={"b": 2.0})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "a", "other": 1}', "key 'other': Extra inputs are not permitted"),
        ("{}", "key 'name': Field required"),
        ('{"name": "a", "weights": {"b": "c"}}', "key 'weights.b': Input should be a valid number"),
        ("[" * 100_000, "content: Invalid JSON"),
        ("{", "content: Invalid JSON"),
        (None, "No such file"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_another_content_is_one_line_that_names_the_key(
    text: str | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PipelineError) as caught:
        read_json(path, Content, expected="a name; remove the file")
    line = str(caught.value)
    assert line.startswith(f"{path}: cannot be read: {problem}") and "\n" not in line
    assert line.endswith("expected a name; remove the file") is (text is not None)
