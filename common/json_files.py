"""Read JSON files, each checked against a pydantic model."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from common.errors import PipelineError
from common.files import open_regular

T = TypeVar("T")


def read_json(path: Path, model: type[T], *, expected: str) -> T:
    """Read a JSON file.

    Args:
        path: The file.
        model: Type of the content: a pydantic model, or a type of its fields.
        expected: The content that the file should have, for messages. It may end with advice.

    Raises:
        PipelineError: The file is missing, is not JSON, or does not match the model.
    """
    with open_regular(path) as file:
        try:
            return TypeAdapter(model).validate_json(file.read())
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            where = f"key '{key}'" if key else "content"
            problem = f"{where}: {first['msg']}; expected {expected}"
            raise PipelineError(f"{path}: cannot be read: {problem}") from None
