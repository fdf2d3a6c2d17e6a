"""The benchmark of statistics measures both sets, and both ways of summing agree."""

from benchmarks.speed.statistics_cost import GOAL_MIB, compare_sums, report
from data.synthetic import GraphSize


def test_a_line_per_set_has_seconds_and_memory() -> None:
    lines = report(GraphSize(400, 20, 300))
    rows = [
        line.strip("| ").split(" | ") for line in lines if line.startswith(("| plain", "| all"))
    ]
    assert [row[0] for row in rows] == ["plain", "all"]
    assert int(rows[0][1]) < int(rows[1][1])
    assert all(float(row[2]) >= 0 and 0 <= float(row[3]) < GOAL_MIB for row in rows)


def test_both_ways_to_sum_are_timed() -> None:
    assert all(seconds > 0 for seconds in compare_sums(20).values())
