"""One process against two: the page, and the commands themselves."""

from pathlib import Path

import pytest

from benchmarks.two_processes import Way, main, report


def test_the_page_compares_medians_job_by_job() -> None:
    ways = [
        Way("a", "one process", [10.0, 30.0, 20.0]),
        Way("a", "two processes", [12.0, 11.0, 90.0]),
        Way("b", "one process", [4.0]),
        Way("b", "two processes", [3.0]),
    ]
    lines = report(ways, ["Same."], steps=60)
    rows = [line for line in lines if line.startswith(("| a", "| b"))]
    assert rows == [
        "| a | one process | 10.0, 30.0, 20.0 | 20.0 | 1.00 |",
        "| a | two processes | 12.0, 11.0, 90.0 | 12.0 | 0.60 |",
        "| b | one process | 4.0 | 4.0 | 1.00 |",
        "| b | two processes | 3.0 | 3.0 | 0.75 |",
    ]
    assert "Same." in lines


@pytest.mark.slow
def test_both_ways_end_alike(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert main(["--rounds", "1", "--steps", "2", "--out", str(page)]) == 0
    assert "give the bytes of one process's submission" in page.read_text()
