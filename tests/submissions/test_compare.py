"""The paired comparison of two reports."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.errors import PipelineError
from submissions.compare import compare_reports
from submissions.run_report import RunReport
from tests.support.command_line import call

XLA, OTHER = "layout:xla:default", "layout:nlp:random"


def part(values: Mapping[str, float | None], **changes: Any) -> dict[str, Any]:
    per_graph = {graph: {"kendall_tau": value} for graph, value in values.items()}
    return {"metric": "kendall_tau", "value": None, "per_graph": per_graph} | changes


def report(values: Mapping[str, float | None], collection: str = XLA, **changes: Any) -> RunReport:
    return report_of({collection: part(values, **changes)})


def report_of(collections: dict[str, dict[str, Any]]) -> RunReport:
    return RunReport.model_validate({"collections": collections})


def test_only_graphs_that_both_have_judged_count() -> None:
    first = report({"a": 0.1, "b": 0.2, "c": 0.3, "d": None})
    second = report({"b": 0.4, "c": 0.4, "d": 0.9, "e": 1.0})
    compared = compare_reports(first, second)["collections"][XLA]
    assert (compared["n_graphs"], compared["n_families"], compared["only_in_one"]) == (2, 2, 3)
    means = [compared[side] for side in ("first", "second", "difference")]
    assert means == pytest.approx([0.25, 0.4, 0.15])
    # Two families give a wide interval, because it uses the quantile of Student's t.
    low, high = compared["ci95"]
    assert low < 0 and high > 0.2
    # One of the four possible draws has only the graph c.
    assert compared["probability"] == pytest.approx(0.75, abs=0.03)


def test_graphs_whose_names_are_hidden_are_drawn_by_the_programs_that_they_are() -> None:
    reports = [report({"0f": 0.1, "1e": 0.2, "2d": 0.5}), report({"0f": 0.3, "1e": 0.3, "2d": 0.6})]
    programs = {"0f": "bert.2x2.fp32", "1e": "bert.4x4.fp32", "2d": "lstm"}
    assert compare_reports(*reports)["collections"][XLA]["n_families"] == 3
    named = report({"0f": 0.1, "1e": 0.2, "2d": 0.5}, programs=programs)
    assert compare_reports(named, reports[1])["collections"][XLA]["n_families"] == 2


def test_one_family_has_a_difference_and_no_interval() -> None:
    siblings = {"bert.2x2.fp32": 0.1, "bert.4x4.fp32": 0.2}
    compared = compare_reports(report(siblings), report(dict.fromkeys(siblings, 0.5)))
    entry = compared["collections"][XLA]
    assert [entry[key] for key in ("n_families", "ci95", "probability")] == [1, None, None]
    assert compared["mean"]["difference"] == pytest.approx(0.35)
    same = report({"a": 0.1, "b": 0.2})
    mean = compare_reports(same, same)["mean"]
    assert (mean["difference"], mean["probability"]) == (0, 0.5)  # a coin's toss


def test_nothing_in_common_is_an_error() -> None:
    other = report({}, metric="opa", per_graph={"a": {"opa": 0.1}})
    for second in (report({"b": 0.2}, OTHER), other, report({"a": None})):
        with pytest.raises(PipelineError, match="no graph in common"):
            compare_reports(report({"a": 0.1}), second)


def test_compare_prints_both_runs_and_their_mean(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.json", "two.json")]
    for path, value in zip(paths, (0.1, 0.3), strict=True):
        many, few = (part(dict.fromkeys(graphs, value)) for graphs in ("abcd", "abc"))
        path.write_text(report_of({XLA: many, OTHER: few}).to_text())
    lines = call("compare", *paths).splitlines()
    assert lines.pop(0) == f"first = {paths[0]}, second = {paths[1]}"
    assert [line.split()[0] for line in lines] == ["collection", XLA, OTHER, "mean", "note:"]
    assert "P(second better)" in lines[0] and "other seeds may move" in lines[-1]
    # Less than four families have no probability.
    assert [line.split()[-1] for line in lines[1:4]] == ["0.99", "-", "-"]
    found = json.loads(call("compare", *paths, "--json"))
    assert found["mean"]["difference"] == pytest.approx(0.2)
    assert found["mean"]["probability"] == 1
    assert {"first", "second", "config"} <= found.keys()
    assert "none: no such file or folder" in call("compare", paths[0], tmp_path / "none", expect=1)
