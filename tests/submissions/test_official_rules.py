"""Without the test files, a submission is checked against what is known of the competition."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from common.settings import SAMPLE
from data.tree import COLLECTIONS
from submissions.check import expected_rows
from submissions.official_rules import all_official, check_official, official_rows
from submissions.upload.check import problems_before_upload
from tests.real_data import REAL, requires_real_data
from tests.submissions.official_file import official_lines, write_official
from tests.submissions.test_check import place_npz

Change = Callable[[list[str]], list[str]]
LONG = "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba"


def picks(line: str, indices: str) -> str:
    return f"{line.partition(',')[0]},{indices}"


def with_picks(indices: str) -> Change:
    """Return what gives a row of five picks these instead."""
    return lambda lines: [*lines[:500], picks(lines[500], indices), *lines[501:]]


def messages(tmp_path: Path, lines: list[str]) -> list[str]:
    path = write_official(tmp_path / "s.csv", lines)
    return [str(p).removeprefix(f"{path}: ") for p in check_official(path, {})]


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


def test_a_good_file_is_accepted_in_any_order_within_a_collection(tmp_path: Path) -> None:
    lines = official_lines()
    assert messages(tmp_path, lines) == []
    assert messages(tmp_path, [*reversed(lines[:844]), *lines[844:]]) == []
    assert messages(tmp_path, with_picks("99;3;7;1;0")(lines)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: lines[:-1], "row is missing; expected 1000 indices"),
        (lambda lines: [*lines[:9], *lines[10:]], "row is missing; expected 5 indices"),
        (lambda lines: [*lines, "tile:xla:other,0;1;2;3;4"], "expected no such row"),
        (lambda lines: [*lines, lines[-1]], "comes twice"),
        (lambda lines: [*lines[844:], *lines[:844]], "expected the order tile:xla, layout"),
        (
            lambda lines: [li.removesuffix(";1000") if li.startswith(LONG) else li for li in lines],
            "has 1000 indices; expected 1001",
        ),
        (lambda lines: [*lines[:-1], lines[-1] + ";1000"], "has 1001 indices; expected 1000"),
        (lambda lines: [*lines[:-1], lines[-1].replace(";7;", ";8;")], "index 8 is repeated"),
        (lambda lines: [picks(li, "0;1;2;3;4") for li in lines[:844]] + lines[844:], "0 tile rows"),
        (with_picks("0;1;2"), "9 tile rows"),
        (with_picks("0"), "1 tile rows hold 1"),
        (with_picks("0;1;3"), "expected 0..2"),
        (with_picks("4;5;4;1;0"), "is repeated"),
        (with_picks("4;-1;2;1;0"), "index -1"),
        (with_picks("0;1;2;3;4;5"), "6 indices"),
        (with_picks("99999999;1;2;3;4"), "index 99999999; expected one below 13000000"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, change: Change, expected: str) -> None:
    assert expected in messages(tmp_path, change(official_lines()))[0]


def test_test_files_that_are_at_hand_give_the_exact_counts(tmp_path: Path) -> None:
    line = official_lines()[500]
    name = line.partition(",")[0].rpartition(":")[2]
    place_npz(tmp_path, "tile/xla/test", name, np.zeros(7, np.int64))
    lines = official_lines()
    good = write_official(tmp_path / "good.csv", lines)
    assert problems_before_upload(good, tmp_path) == []
    lines[500] = picks(line, "0;1;2;3;7")
    (problem,) = problems_before_upload(write_official(good, lines), tmp_path)
    assert "index 7; expected 0..6" in str(problem)


def test_the_competition_has_the_say_beside_other_data(tmp_path: Path) -> None:
    place_npz(tmp_path, "tile/xla/test", "mine", np.zeros(3, np.int64))
    path = write_official(tmp_path / "s.csv", ["tile:xla:mine,2;0;1"])
    (problem,) = problems_before_upload(path, tmp_path)
    assert "not the competition's" in problem.message
    (problem,) = problems_before_upload(write_official(path), tmp_path)
    assert "does not answer the test graphs of" in problem.message
    problems = problems_before_upload(write_official(path, official_lines()[:-3]), tmp_path)
    assert ["row is missing" in problem.message for problem in problems] == [True] * 3


def test_without_test_files_the_competition_has_the_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_npz(tmp_path, "tile/xla/train", "mine", np.zeros(3, np.int64))
    path = write_official(tmp_path / "s.csv")
    assert problems_before_upload(path, tmp_path) == []
    monkeypatch.setattr("submissions.upload.check.default_data_dir", lambda: SAMPLE)
    assert problems_before_upload(path, None) == []
    with pytest.raises(PipelineError, match="no such folder"):
        problems_before_upload(path, tmp_path / "none")


@requires_real_data
def test_the_counts_are_those_of_the_real_files() -> None:
    real = expected_rows(REAL, "test")
    assert all_official(real)
    assert real[LONG] == 1001
    rows = official_rows()
    assert all(rows[name] in (None, n_configs) for name, n_configs in real.items())


@requires_real_data
def test_the_order_of_collections_is_that_of_the_sample_submission() -> None:
    sample = REAL / "sample_submission.csv"
    if not sample.is_file():
        pytest.skip(f"{REAL} has no sample_submission.csv")
    names = [line.partition(",")[0] for line in sample.read_text().splitlines()[1:]]
    assert set(names) == set(official_rows())
    order = [collection.name for collection in COLLECTIONS]
    places = [order.index(name.rpartition(":")[0]) for name in names]
    assert places == sorted(places)
