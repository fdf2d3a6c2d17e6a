"""What is no zip file is told so once."""

from pathlib import Path

import pytest

from common.errors import PipelineError
from data.npz.zip_index import read_index


@pytest.mark.parametrize("content", [b"", b"text"])
def test_what_is_no_zip_file_is_told_once(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(PipelineError) as caught:
        read_index(path)
    assert str(caught.value) == f"{path}: not a whole npz file; expected a zip archive of arrays"
