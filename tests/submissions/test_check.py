"""Every kind of wrong submission is found, all at once; counts come from the data files."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from common.metrics import ranking_from_scores
from submissions.check import check_submission, count_configs, expected_rows
from submissions.write import SubmissionRow, write_submission

REAL = Path(
    os.environ.get("TPUGRAPHS_REAL")
    or Path(__file__).resolve().parents[2].parent / "shared" / "tpugraphs"
)
needs_real_files = pytest.mark.skipif(
    not (REAL / "npz").is_dir(), reason=f"no real TpuGraphs files at {REAL}"
)

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
    found = [str(problem) for problem in check_submission(path, EXPECTED)]
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in found)
    return [line.removeprefix(f"{path}: ") for line in found]


def test_a_good_submission_has_no_problems_in_any_order(tmp_path: Path) -> None:
    assert problems(tmp_path, list(GOOD.items())) == []
    assert problems(tmp_path, list(reversed(GOOD.items()))) == []


@pytest.mark.parametrize(
    ("name", "indices", "expected"),
    [
        ("tile:xla:large", "0;1;2;3", ["has 4 indices; expected 5 of 9 configs"]),
        ("tile:xla:large", "0;1;2;3;4;5", ["has 6 indices; expected 5 of 9 configs"]),
        ("tile:xla:large", "0;1;2;3;9", ["index 9; expected 0..8"]),
        ("tile:xla:large", "-1;1;2;3;10", ["index -1 (and 1 more); expected 0..8"]),
        (
            "tile:xla:large",
            "0;1;2;1;2",
            ["index 1 (and 1 more) is repeated; expected each config once"],
        ),
        (
            "tile:xla:small",
            "0;1;2;3;4",
            ["has 5 indices; expected 2 of 2 configs", "index 2 (and 2 more); expected 0..1"],
        ),
        ("layout:xla:default:a", "0;2", ["has 2 indices; expected 3 of 3 configs"]),
        ("layout:xla:default:a", "0;2;2", ["index 2 is repeated; expected each config once"]),
    ],
)
def test_a_wrong_ranking_is_named(
    tmp_path: Path, name: str, indices: str, expected: list[str]
) -> None:
    rows = {**GOOD, name: indices}
    row = 2 + list(rows).index(name)
    assert problems(tmp_path, list(rows.items())) == [
        f"row {row}: {name}: {message}" for message in expected
    ]


def test_all_problems_of_a_file_are_listed(tmp_path: Path) -> None:
    rows = [
        ("tile:xla:small", "1;0"),
        ("tile:xla:small", "0"),
        ("tile:xla:small", "0;1"),
        ("layout:xla:default:a", "0;x;1"),
        ("layout:xla:default:other", "0"),
        ("nonsense", "0"),
    ]
    found = problems(tmp_path, rows)
    assert found[:5] == [
        "row 3: tile:xla:small: comes twice, first in row 2; expected one row per graph",
        "row 3: tile:xla:small: has 1 indices; expected 2 of 2 configs",
        "row 4: tile:xla:small: comes twice, first in row 2; expected one row per graph",
        "row 5: layout:xla:default:a: 'x' is no config index; expected 4;0;2 or the like",
        "row 6: layout:xla:default:other: no graph of this split has this ID; expected no such row",
    ]
    assert found[5].startswith("row 7: ID 'nonsense': expected collection:name")
    assert found[6:] == [
        "tile:xla:large: row is missing; expected 5 indices",
        "layout:nlp:random:b: row is missing; expected 4 indices",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b"", "is empty"), (b"id,x\n", "row 1: header"), (b"\xff", "UTF-8")],
)
def test_an_unreadable_file_is_one_problem(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "submission.csv"
    if content is not None:
        path.write_bytes(content)
    (problem,) = check_submission(path, EXPECTED)
    assert message in problem.message
    assert str(problem).count(str(path)) == 1


GOOD_TEXT = "".join(f"{line}\n" for line in ["ID,TopConfigs", *map(",".join, GOOD.items())])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: f"\ufeff{text}", "row 1: begins with a byte order mark"),
        (lambda text: text.replace("\n", "\r"), "row 1: holds a carriage return without a line"),
        (lambda text: text.replace("\n", "\n\n", 1), "row 2: is blank"),
        (lambda text: f"{text}\n", "row 6: is blank"),
        (lambda text: text.replace("\n", " \n", 2), "row 1: begins or ends with a blank"),
        (lambda text: text.replace(",1;0\n", ",1;00\n"), "row 2: index '00'; expected no leading"),
        (lambda text: text.replace(",1;0\n", ",01;0\n"), "row 2: index '01'"),
        (lambda text: text.replace(",1;0\n", ",1;-0\n"), "row 2: index '-0'"),
    ],
)
def test_text_that_only_our_own_reader_forgives_is_refused(
    tmp_path: Path, change: Callable[[str], str], expected: str
) -> None:
    path = tmp_path / "submission.csv"
    path.write_bytes(change(GOOD_TEXT).encode())
    assert f"{path}: {expected}" in str(check_submission(path, EXPECTED)[0])


@pytest.mark.parametrize(
    "change", [lambda text: text, lambda text: text[:-1], lambda text: text.replace("\n", "\r\n")]
)
def test_either_line_end_is_accepted(tmp_path: Path, change: Callable[[str], str]) -> None:
    path = tmp_path / "submission.csv"
    path.write_bytes(change(GOOD_TEXT).encode())
    assert check_submission(path, EXPECTED) == []


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "submission.csv")
    (problem,) = check_submission(tmp_path / "submission.csv", EXPECTED)
    assert "is not a file" in problem.message


def place_npz(folder: Path, collection: str, name: str, runtime: np.ndarray) -> Path:
    path = folder / "npz" / collection / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, config_runtime=runtime, config_feat=np.zeros((len(runtime), 24)))
    return path


def test_expected_rows_count_the_configs_of_the_split(tmp_path: Path) -> None:
    place_npz(tmp_path, "tile/xla/test", "k", np.zeros(3, np.int64))
    place_npz(tmp_path, "layout/xla/default/test", "g", np.zeros(1001, np.int64))
    place_npz(tmp_path, "layout/xla/default/valid", "other", np.zeros(7, np.int64))
    assert expected_rows(tmp_path, "test") == {"tile:xla:k": 3, "layout:xla:default:g": 1001}


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        (np.zeros(0, np.int64), "zero configs"),
        (np.zeros((2, 2), np.int64), "shape"),
        (np.zeros(2, np.float32), "dtype"),
        (np.array([{}, {}], dtype=object), "object array"),
    ],
)
def test_runtimes_of_another_kind_are_refused(
    tmp_path: Path, runtime: np.ndarray, message: str
) -> None:
    path = place_npz(tmp_path, "tile/xla/test", "k", runtime)
    with pytest.raises(PipelineError, match=message) as raised:
        count_configs(path)
    assert str(path) in str(raised.value)


def test_damaged_files_are_named_or_read_right(tmp_path: Path) -> None:
    path = place_npz(tmp_path, "tile/xla/test", "k", np.arange(1, 40))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(300):
        damaged = bytearray(whole)
        if trial % 3 == 0:
            damaged = damaged[: rng.integers(0, len(whole))]
        else:
            damaged[rng.integers(0, len(whole))] ^= 1 << rng.integers(0, 8)
        path.write_bytes(damaged)
        try:
            assert count_configs(path) == 39
        except PipelineError as error:
            refused += 1
            assert str(path) in str(error)
            assert "\n" not in str(error)
    assert refused > 150


@needs_real_files
def test_the_real_layout_graph_with_1001_configs(tmp_path: Path) -> None:
    name = "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba"
    expected = expected_rows(REAL, "test")
    assert expected[name] == 1001
    assert expected["tile:xla:d6f5f54247bd1e58a10b9e7062c636ab"] == 25
    rng = np.random.default_rng(0)
    rows = [
        SubmissionRow(submission_id, ranking_from_scores(rng.normal(size=n_configs)))
        for submission_id, n_configs in expected.items()
    ]
    write_submission(tmp_path / "good.csv", rows)
    assert check_submission(tmp_path / "good.csv", expected) == []


@needs_real_files
def test_the_sample_submission_falls_one_config_short() -> None:
    name = "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba"
    messages = [
        problem.message
        for problem in check_submission(REAL / "sample_submission.csv", expected_rows(REAL, "test"))
        if problem.id == name
    ]
    assert messages == ["has 1000 indices; expected 1001 of 1001 configs"]
