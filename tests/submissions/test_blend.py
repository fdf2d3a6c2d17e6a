"""Blended submissions agree with a slow, obvious average of places."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from submissions.blend import blend_submissions
from submissions.check import check_submission, read_submission, write_submission
from tests.support.command_line import call, stderr_of

LAYOUT, TILE = "layout:xla:default:g", "tile:xla:k"


def test_weight_counts_like_repeated_files() -> None:
    draw = random.Random(0)
    files = {Path(name): {LAYOUT: np.array(draw.sample(range(9), 9))} for name in "abc"}
    (row,) = blend_submissions(files, [3.0, 1.0, 2.0])
    rows = [files[Path(name)][LAYOUT].tolist() for name in "aaabcc"]
    assert row.ranking.tolist() == by_mean_place(rows)


def by_mean_place(rows: Sequence[Sequence[int]]) -> list[int]:
    """Sort configs by the mean of their places; one that a row does not list comes after it."""

    def places(config: int) -> list[int]:
        return [row.index(config) if config in row else len(row) for row in rows]

    configs = {config for row in rows for config in row}
    return sorted(configs, key=lambda config: (sum(places(config)) / len(rows), places(config)))


def blended(*files: dict[str, list[int]]) -> dict[str, list[int]]:
    members = {
        Path(f"{number}.csv"): {name: np.array(row, np.int64) for name, row in file.items()}
        for number, file in enumerate(files)
    }
    return {row.id: row.ranking.tolist() for row in blend_submissions(members)}


@pytest.mark.parametrize("n_files", [1, 2, 3, 5])
@pytest.mark.parametrize("n_configs", [1, 2, 4, 5, 6, 40])
def test_places_are_averaged(n_files: int, n_configs: int) -> None:
    draw = random.Random(n_files * 100 + n_configs)
    files = [
        {
            LAYOUT: draw.sample(range(n_configs), n_configs),
            TILE: draw.sample(range(n_configs), min(5, n_configs)),
        }
        for _ in range(n_files)
    ]
    for name, ranking in blended(*files).items():
        assert ranking == by_mean_place([file[name] for file in files])


def test_first_submission_decides_equal_means() -> None:
    assert blended({LAYOUT: [0, 1]}, {LAYOUT: [1, 0]}) == {LAYOUT: [0, 1]}
    assert blended({LAYOUT: [1, 0]}, {LAYOUT: [0, 1]}) == {LAYOUT: [1, 0]}


def test_tile_config_in_every_row_precedes_a_first_place_in_one_row() -> None:
    rows = [[9, 1, 2, 3, 4], [1, 5, 6, 7, 8], [1, 10, 11, 12, 13]]
    assert blended(*({TILE: row} for row in rows))[TILE][0] == 1


def test_indices_need_not_be_all_below_their_number() -> None:
    """The sample submission of the competition has 1000 of 1001 configs."""
    assert blended({LAYOUT: [3, 0, 1]}, {LAYOUT: [0, 3, 1]}) == {LAYOUT: [3, 0, 1]}


@pytest.mark.parametrize(
    ("second", "line"),
    [
        ({LAYOUT: [0, 1, 2], TILE: [0, 1]}, f"0.csv: has no row for {TILE}, which 1.csv has"),
        ({TILE: [0]}, f"1.csv: has no row for {LAYOUT}, which 0.csv has"),
        ({}, f"1.csv: has no row for {LAYOUT}, which 0.csv has; expected one"),
        ({LAYOUT: [0, 1]}, f"1.csv: {LAYOUT}: has 2 indices; expected 3 of 3 configs; expected"),
        ({LAYOUT: [0, 1, 1]}, f"1.csv: {LAYOUT}: index 1 is repeated"),
        ({LAYOUT: [0, 1, -1]}, f"1.csv: {LAYOUT}: index -1; expected 0..2"),
        ({LAYOUT: [0, 1, 3]}, f"1.csv: {LAYOUT}: has other configs; expected the configs of 0"),
        ({LAYOUT: []}, f"1.csv: {LAYOUT}: has 0 indices; expected 3"),
    ],
)
def test_other_graphs_or_configs_are_refused(second: dict[str, list[int]], line: str) -> None:
    with pytest.raises(PipelineError) as caught:
        blended({LAYOUT: [0, 1, 2]}, second)
    assert line in str(caught.value)


def test_other_numbers_of_tile_configs_are_refused() -> None:
    for second in ([0, 1, 2, 3, 4], [0, 1, 3]):
        with pytest.raises(PipelineError, match=f"{TILE}: "):
            blended({TILE: [0, 1, 2]}, {TILE: second})
    with pytest.raises(PipelineError, match="has 0 indices; expected 1"):
        blended({TILE: []}, {TILE: []})


def write(path: Path, **rows: str) -> Path:
    lines = [f"{name.replace('_', ':')},{row}" for name, row in rows.items()]
    path.write_text("\n".join(["ID,TopConfigs", *lines, ""]))
    return path


def test_command_writes_a_submission_that_is_accepted(tmp_path: Path) -> None:
    a = write(tmp_path / "a.csv", layout_xla_random_g="0;1;2", tile_xla_k="0;1;2;3;4")
    b = write(tmp_path / "b.csv", tile_xla_k="9;1;0;8;7", layout_xla_random_g="1;2;0")
    out = tmp_path / "mean.csv"
    said = call("blend", "--submissions", a, b, "--out", out)
    assert said == f"submission  {out} (2 rows)\n"
    assert out.read_text().splitlines() == [
        *("ID,TopConfigs", "tile:xla:k,0;1;9;2;3", "layout:xla:random:g,1;0;2"),
    ]
    assert not check_submission(out, {"tile:xla:k": 12, "layout:xla:random:g": 3})
    write_submission(out, blend_submissions({out: read_submission(out)}))
    assert out.read_text().splitlines()[1] == "tile:xla:k,0;1;9;2;3"


def test_command_refuses_wrong_words_in_one_line(tmp_path: Path) -> None:
    a, out = write(tmp_path / "a.csv", layout_xla_random_g="0;1;2"), tmp_path / "mean.csv"
    b = write(tmp_path / "b.csv", layout_xla_random_h="0;1;2")
    pair = ("blend", "--submissions", a, b)
    for words, code, line in (
        ((*pair, "--out", out), 1, "which "),
        ((*pair, "--out", tmp_path / "x.parquet"), 2, "expected a name that ends in .csv"),
        ((*pair, "--out", a), 2, "a run or file is given twice"),
        ((*pair, a, "--out", out), 2, "a run or file is given twice"),
        ((*pair, "--out", out, "--method", "rank-mean"), 2, "takes --out and --weights only"),
        ((*pair, "--runs", a, "--out", out), 2, "expected one of --runs and --submissions"),
        (("blend", "--submissions", a, "--out", out), 2, "expected two or more files"),
        ((*pair, "--weights", "1,0", "--out", out), 2, "1,0: expected 2 positive numbers"),
        ((*pair, "--weights", "2", "--out", out), 2, "2: expected 2 positive numbers"),
        (
            ("blend", "--runs", a, b, "--weights", "1,1", "--out", out.with_suffix(".parquet")),
            2,
            "--weights: is for --submissions",
        ),
        (("blend", "--out", out), 2, "expected one of --runs and --submissions"),
        ((*pair, tmp_path / "c.csv", "--out", out), 1, "c.csv: no such file or folder; exp"),
    ):
        (said,) = stderr_of(*words, expect=code)
        assert said.startswith("error: ") and line in said
        assert not out.exists() and a.read_text().startswith("ID,")
