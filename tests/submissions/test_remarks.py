"""What a report hides is said: a member or the floor ahead, intervals over few graphs."""

from pathlib import Path
from typing import Any

import pytest

from submissions.report.page import write_report_page
from submissions.score import FEW_GRAPHS, remarks_on

X = "layout:xla:default"


def report(**changes: Any) -> dict[str, Any]:
    part = {
        "metric": "kendall_tau",
        "value": 0.656,
        "ci95": [0.6, 0.7],
        "n_graphs": FEW_GRAPHS,
        "per_graph": {},
        "floor": 0.5,
        "slowdown_curve": {"k": [1, 5, 7], "model": [1.2, 1.1, 1.1], "floor": [1.3, 1.1, 1.0]},
    }
    models = {X: {"members": ["net", "trees"], "member_values": {"net": 0.6, "trees": None}}}
    return {"score": 0.656, "collections": {X: part | changes}, "models": models}


def test_nothing_is_said_where_the_blend_leads() -> None:
    assert remarks_on(report()) == []
    assert remarks_on({"collections": {X: {"value": None}}}) == remarks_on({}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"value": 0.55}, "net alone has 0.6000, more than the blend with it, 0.5500"),
        ({"floor": 0.7}, "the floor, without training, has 0.7000, more than this run"),
        (
            {"slowdown_curve": {"k": [1, 5], "model": [1.2, 1.1], "floor": [1.1, 1.2]}},
            "the floor is ahead at the first picks: 10.0 % slower than the best after 1, this run "
            "20.0 %",
        ),
        ({"n_graphs": 2}, "few graphs in layout:xla:default (2): these intervals are"),
    ],
)
def test_what_is_behind_is_named_on_the_page_too(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    found = report(**changes)
    (line,) = remarks_on(found)
    assert expected in line
    del found["collections"][X]["slowdown_curve"]
    write_report_page(found, tmp_path / "p.html")
    shown = (tmp_path / "p.html").read_text()
    assert (expected in shown) == ("slowdown_curve" not in changes)
