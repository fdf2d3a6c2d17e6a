"""Two workers against one: the space that both search, the page, and the command itself."""

from pathlib import Path

import pytest

from benchmarks.once.tune_workers import Search, main, report, space_of
from pipeline.tuning.space import load_space


def test_a_seed_changes_the_search_and_nothing_else(tmp_path: Path) -> None:
    shipped = load_space("cpu")
    first, second = (load_space(str(space_of(seed, tmp_path))) for seed in (0, 5))
    assert first.parameters == second.parameters == shipped.parameters
    assert (first.study.seed, second.study.seed) == (0, 5)
    assert first.study.model_copy(update={"seed": 5}) == second.study
    assert (second.study.pruner, second.study.finalists) == ("none", 0)


def test_the_page_gives_the_ratio_of_all_seconds() -> None:
    found = [
        (1, Search(2, 30.0, 0.75, 0.5, 16)),
        (0, Search(1, 100.0, 0.7, 0.5, 16)),
        (1, Search(1, 60.0, 0.72, 0.5, 16)),
        (0, Search(2, 50.0, 0.71, 0.5, 16)),
    ]
    lines = report(found, steps=40)
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert rows[0] == "| 0 | 1 | 16 | 100.0 | 0.5000 | 0.7000 |"
    assert rows[3] == "| 1 | 2 | 16 | 30.0 | 0.5000 | 0.7500 |"
    (text,) = [line for line in lines if line.startswith("Two workers take")]
    assert text.startswith("Two workers take 0.50 of the time of one")
    assert "Their best is 0.7300 on average, that of one 0.7100" in text
    assert "differs by 0.0400 with two and by 0.0200 with one" in text


@pytest.mark.slow
def test_the_command_runs_both_ways_and_counts_all_trials(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    code = main(["--seeds", "1", "--trials", "3", "--steps", "2", "--out", str(page)])
    assert code in (0, 1)  # two idle cores are not promised here
    rows = [line for line in page.read_text().splitlines() if line.startswith("| 0 |")]
    assert [line.split(" | ")[1:3] for line in rows] == [["1", "3"], ["2", "3"]]
