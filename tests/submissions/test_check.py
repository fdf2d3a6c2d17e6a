"""Submissions are written exactly, all problems are listed, and valid files are accepted."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.errors import PipelineError
from common.settings import SAMPLE
from data.tree import COLLECTIONS, collection_named
from submissions.check import (
    MAX_PROBLEMS,
    SubmissionRow,
    check_submission,
    official_rows,
    problems_before_upload,
    read_submission,
    submission_rows,
    write_submission,
)
from tests.submissions.made_up import official_lines, place_npz, write_official
from tests.support.real_data import REAL, requires_real_data

Change = Callable[[list[str]], list[str]]
LONG = "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba"  # 1001 configs
EXPECTED = {
    "tile:xla:small": 2,
    "tile:xla:large": 9,
    "layout:xla:default:a": 3,
    "layout:nlp:random:b": 4,
}
GOOD = {
    "tile:xla:small": "1;0",
    "tile:xla:large": "8;0;1;2;3",
    "layout:xla:default:a": "2;0;1",
    "layout:nlp:random:b": "0;1;2;3",
}


def problems(tmp_path: Path, rows: list[tuple[str, str]]) -> list[str]:
    path = tmp_path / "submission.csv"
    lines = ["ID,TopConfigs", *(f"{name},{indices}" for name, indices in rows)]
    path.write_text("\n".join(lines) + "\n")
    found = check_submission(path, EXPECTED)
    assert all(line.startswith(f"{path}: ") and len(line.splitlines()) == 1 for line in found)
    return [line.removeprefix(f"{path}: ") for line in found]


def test_all_problems_of_a_file_are_listed(tmp_path: Path) -> None:
    rows = [
        ("tile:xla:small", "0;1;2;3;4"),
        ("tile:xla:small", "0"),
        ("tile:xla:large", "-1;1;2;1;10"),
        ("layout:xla:default:a", "0;x;1"),
        ("layout:xla:default:other", "0"),
        ("nonsense", "0"),
        ("nonsense", "0"),
    ]
    found = problems(tmp_path, rows)
    assert found[:8] == [
        "row 2: tile:xla:small: has 5 indices; expected 2 of 2 configs",
        "row 2: tile:xla:small: index 2 (and 2 more); expected 0..1",
        "row 3: tile:xla:small: comes twice, first in row 2; expected one row per graph",
        "row 3: tile:xla:small: has 1 indices; expected 2 of 2 configs",
        "row 4: tile:xla:large: index -1 (and 1 more); expected 0..8",
        "row 4: tile:xla:large: index 1 is repeated; expected each config once",
        "row 5: layout:xla:default:a: 'x' is no config index; expected 4;0;2 or the like",
        "row 6: layout:xla:default:other: no graph of this split has this ID; expected no such row",
    ]
    assert found[8].startswith("row 7: ID 'nonsense': expected collection:name")
    assert found[9].startswith("row 8: ID 'nonsense': expected collection:name")
    assert found[10:] == [
        "layout:nlp:random: 1 of 1 rows are missing, for example layout:nlp:random:b"
    ]


def test_missing_rows_are_one_problem_per_collection(tmp_path: Path) -> None:
    rows = [("layout:xla:default:a", GOOD["layout:xla:default:a"])]
    assert problems(tmp_path, rows) == [
        "tile:xla: 2 of 2 rows are missing, for example tile:xla:small",
        "layout:nlp:random: 1 of 1 rows are missing, for example layout:nlp:random:b",
    ]
    rows += [(name, GOOD[name]) for name in ("tile:xla:small", "layout:nlp:random:b")]
    (problem,) = problems(tmp_path, rows)
    assert problem == "tile:xla: 1 of 2 rows are missing, for example tile:xla:large"


def test_problems_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "submission.csv"
    path.write_text("ID,TopConfigs\n" + "x\n" * 3 * MAX_PROBLEMS)
    found = check_submission(path, EXPECTED)
    assert len(found) == MAX_PROBLEMS + 1
    assert str(found[-1]).endswith(
        f"has more than {MAX_PROBLEMS} problems; the others are not listed"
    )


@pytest.mark.parametrize(("configs", "indices"), [([0, 1, 2], "1;0;2"), ([2, 5, 9], "5;2;9")])
def test_only_scored_configs_are_written(configs: list[int], indices: str, tmp_path: Path) -> None:
    scores = pl.DataFrame({"graph": "a", "config": configs, "score": [0.2, 0.1, 0.3]})
    path, random = tmp_path / "submission.csv", collection_named("layout:xla:random")
    # The order of the table does not change the submission.
    for order in itertools.permutations(range(3)):
        write_submission(path, submission_rows([(random, scores[list(order)])], []))
        assert path.read_text() == f"ID,TopConfigs\nlayout:xla:random:a,{indices}\n"


UNET = "layout:xla:default:unet_3d.4x4.bf16"
KERNEL = "tile:xla:kernel_-342c"


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
        row(UNET, 5, 2, 0, 1, 3, 4),
        row(KERNEL, 6, 5, 4, 3, 2, 1, 0),
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
    write_submission(path, [SubmissionRow(UNET, ranking), row(KERNEL, 3, 1, 2)])
    found = read_submission(path)
    assert list(found) == [KERNEL, UNET]
    assert np.array_equal(found[UNET], ranking)
    assert found[KERNEL].tolist() == [3, 1, 2]
    assert found[UNET].dtype == np.int64
    with pytest.raises(PipelineError, match="'tile:xla:a,b': expected no blanks, commas or quotes"):
        write_submission(path, [row("tile:xla:a,b", 0)])
    assert len(read_submission(path)) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"ID,TopConfigs\ntile:xla:a,1;0\nlayout:nlp:random:b,0;1\n",
        b"\xef\xbb\xbfID,TopConfigs\r\ntile:xla:a,1;0\r\nlayout:nlp:random:b,0;1\r\n",
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
        (None, "cannot be read: No such file or directory"),
        ("", "is empty"),
        (b"\x89\xff\x00", "not UTF-8"),
        ("ID;TopConfigs\n", "row 1: header is 'ID;TopConfigs'; expected 'ID,TopConfigs'"),
        ("ID,TopConfigs\ntile:xla:a\n", "row 2: 'tile:xla:a' has one column"),
        ("ID,TopConfigs\ntile:xla:a,0\nfoo:a,0\n", "row 3: ID 'foo:a': expected collection:name"),
        (f"ID,TopConfigs\ntile:xla:a,{'9' * 5000}\n", "99…' is no config index"),
        (f"ID,TopConfigs\ntile:xla:a,{'9' * 19}\n", f"'{'9' * 19}' is no config index"),
        ('ID,TopConfigs\ntile:xla:a,"\n', "'\"' is no config index"),
        ("ID,TopConfigs\ntile:xla:a,0\ntile:xla:a,1\n", "row 3: tile:xla:a: comes twice"),
    ],
)
def test_damage_is_named_with_its_row(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "none.csv" if content is None else written(tmp_path, content)
    with pytest.raises(PipelineError, match=message) as raised:
        read_submission(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


# The real competition


def picks(line: str, indices: str) -> str:
    return f"{line.partition(',')[0]},{indices}"


def with_picks(indices: str) -> Change:
    return lambda lines: [*lines[:500], picks(lines[500], indices), *lines[501:]]


def as_sampled(lines: list[str]) -> list[str]:
    """Return rows as in the sample submission: 5 indices for tiles, 1000 for layouts."""
    counts = {"tile": 5, "layout": 1000}
    return [picks(line, ";".join(map(str, range(counts[line.split(":")[0]])))) for line in lines]


def shuffled(lines: list[str]) -> list[str]:
    return [lines[place] for place in np.random.default_rng(0).permutation(len(lines))]


def messages(tmp_path: Path, lines: list[str]) -> list[str]:
    path = write_official(tmp_path / "s.csv", lines)
    return [p.removeprefix(f"{path}: ") for p in check_submission(path, official_rows())]


def test_the_rows_are_those_of_the_competition() -> None:
    rows = official_rows()
    collections = Counter(name.rpartition(":")[0] for name in rows)
    assert list(collections.items()) == [
        ("tile:xla", 844),
        ("layout:xla:default", 8),
        ("layout:xla:random", 8),
        ("layout:nlp:default", 17),
        ("layout:nlp:random", 17),
    ]
    assert list(collections) == [collection.name for collection in COLLECTIONS]
    assert Counter(rows.values()) == {None: 844, 1000: 48, 1001: 2}
    assert rows[LONG] == 1001


@pytest.mark.parametrize(
    "change",
    [
        list,
        as_sampled,
        lambda lines: shuffled(as_sampled(lines)),
        lambda lines: ['"{}","{}"'.format(*line.split(",")) for line in lines],
    ],
)
def test_valid_submissions_are_accepted_with_and_without_known_counts(
    tmp_path: Path, change: Change
) -> None:
    lines = official_lines()  # sixteen kernels have 2, 3 or 4 configs
    known = {line.partition(",")[0]: line.count(";") + 1 for line in lines}
    assert Counter(known.values()) == {5: 828, 4: 6, 3: 8, 2: 2, 1000: 48, 1001: 2}
    assert messages(tmp_path, change(lines)) == []
    assert check_submission(tmp_path / "s.csv", known) == []
    assert messages(tmp_path, with_picks("99;3;7;1;0")(lines)) == []


@requires_real_data
def test_the_competitions_own_sample_submission_is_accepted() -> None:
    sample = REAL / "sample_submission.csv"
    if not sample.is_file():
        pytest.skip(f"{REAL} has no sample_submission.csv")
    assert problems_before_upload(sample, REAL) == []
    assert set(official_rows()) == {
        line.partition(",")[0] for line in sample.read_text().splitlines()[1:]
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: [*lines[:-1], lines[-1] + ";1000"], "has 1001 indices; expected 1000"),
        (with_picks("0;1;3"), "expected 0..2"),
        (with_picks("99999999;1;2;3;4"), "index 99999999; expected 0..12999999"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, change: Change, expected: str) -> None:
    assert expected in messages(tmp_path, change(official_lines()))[0]


def test_test_files_that_are_at_hand_give_the_exact_counts(tmp_path: Path) -> None:
    line = official_lines()[500]
    name = line.partition(",")[0].rpartition(":")[2]
    place_npz(tmp_path, "tile/xla/test", name, config_runtime=np.zeros(7, np.int64))
    lines = official_lines()
    good = write_official(tmp_path / "good.csv", lines)
    assert problems_before_upload(good, tmp_path) == []
    lines[500] = picks(line, "0;1;2;3;7")
    (problem,) = problems_before_upload(write_official(good, lines), tmp_path)
    assert "index 7; expected 0..6" in str(problem)


def test_without_test_files_the_competition_has_the_say(tmp_path: Path) -> None:
    place_npz(tmp_path, "tile/xla/train", "mine", config_runtime=np.zeros(3, np.int64))
    path = write_official(tmp_path / "s.csv")
    assert problems_before_upload(path, tmp_path) == []
    assert problems_before_upload(path, SAMPLE) == []
    with pytest.raises(PipelineError, match="no such folder"):
        problems_before_upload(path, tmp_path / "none")
