"""Submission files: exact bytes, round trips, and one clear line for every kind of damage."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from submissions.check import SubmissionRow, read_submission, write_submission

LAYOUT = "layout:xla:default:unet_3d.4x4.bf16"
TILE = "tile:xla:kernel_-342c"


def row(submission_id: str, *ranking: int) -> SubmissionRow:
    return SubmissionRow(submission_id, np.array(ranking, np.int64))


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "submission.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_bytes_order_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "new" / "submission.csv"
    rows = [
        row("layout:nlp:random:b", 1, 0),
        row(LAYOUT, 5, 2, 0, 1, 3, 4),
        row(TILE, 6, 5, 4, 3, 2, 1, 0),
        row("layout:nlp:random:a", 0),
        row("tile:xla:a", 1, 0),
    ]
    write_submission(path, rows)
    assert path.read_bytes() == (
        b"ID,TopConfigs\n"
        b"tile:xla:kernel_-342c,6;5;4;3;2\n"
        b"tile:xla:a,1;0\n"
        b"layout:xla:default:unet_3d.4x4.bf16,5;2;0;1;3;4\n"
        b"layout:nlp:random:b,1;0\n"
        b"layout:nlp:random:a,0\n"
    )


def test_a_long_row_survives_the_round_trip(tmp_path: Path) -> None:
    # 100,000 configs make a cell of 590 kB, over the standard csv reader's limit.
    ranking = np.random.default_rng(0).permutation(100_000)
    path = tmp_path / "submission.csv"
    write_submission(path, [SubmissionRow(LAYOUT, ranking), row(TILE, 3, 1, 2)])
    found = read_submission(path)
    assert list(found) == [TILE, LAYOUT]
    assert np.array_equal(found[LAYOUT], ranking)
    assert found[TILE].tolist() == [3, 1, 2]
    assert found[LAYOUT].dtype == np.int64
    with pytest.raises(PipelineError, match="'tile:xla:a,b': expected no blanks, commas or quotes"):
        write_submission(path, [row("tile:xla:a,b", 0)])
    assert len(read_submission(path)) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"ID,TopConfigs\ntile:xla:a,1;0\nlayout:nlp:random:b,0;1\n",
        b"\xef\xbb\xbfID,TopConfigs\r\ntile:xla:a,1;0\r\nlayout:nlp:random:b,0;1\r\n",
        b"ID,TopConfigs\n\ntile:xla:a,1;0\nlayout:nlp:random:b,0;1",
        b"ID,TopConfigs\rtile:xla:a,1;0\rlayout:nlp:random:b,0;1\r",
    ],
)
def test_line_ends_and_marks_are_accepted(tmp_path: Path, content: bytes) -> None:
    found = read_submission(written(tmp_path, content))
    assert {name: ranking.tolist() for name, ranking in found.items()} == {
        "tile:xla:a": [1, 0],
        "layout:nlp:random:b": [0, 1],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (b"\x89\xff\x00", "not UTF-8"),
        ("ID;TopConfigs\n", "row 1: header is 'ID;TopConfigs'; expected 'ID,TopConfigs'"),
        ("ID,TopConfigs\ntile:xla:a\n", "row 2: 'tile:xla:a' has one column"),
        ("ID,TopConfigs\ntile:xla:a,0\nfoo:a,0\n", "row 3: ID 'foo:a': expected collection:name"),
        ("ID,TopConfigs\n\ntile:xla:a,0;x;1\n", "row 3: tile:xla:a: 'x' is no config index"),
        (f"ID,TopConfigs\ntile:xla:a,{'9' * 5000}\n", "99…' is no config index"),
        ("ID,TopConfigs\ntile:xla:a,0\ntile:xla:a,1\n", "row 3: tile:xla:a: comes twice"),
    ],
)
def test_damage_is_named_with_its_row(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(PipelineError, match=message) as raised:
        read_submission(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
