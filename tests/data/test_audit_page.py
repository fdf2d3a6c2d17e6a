"""The page of an audit has every good graph in each chart."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from data.audit import audit
from data.audit_page import audit_charts
from data.graph_store.stored_graph import read_graph
from data.labels import labels_of
from data.tree import find_graphs
from tests.submissions.test_report import Page
from tests.support.command_line import call


def test_charts_have_a_value_per_graph_by_collection(tiny_tree: Path) -> None:
    files = find_graphs(tiny_tree)
    charts = {chart.title: chart.data for chart in audit_charts(audit(files))}
    places = list(dict.fromkeys(file.collection.name for file in files))
    for title in ("Nodes", "Configs", "Repeats", "Siblings"):
        assert [*charts[title]["groups"]] == places
        groups = charts[title]["groups"].values()
        assert sum(len(group["y"]) for group in groups) == len(files)
    spreads = dict[str, float]()
    for name, group in charts["Runtimes"]["groups"].items():
        pairs = zip(group["names"], group["y"], strict=True)
        spreads |= {f"{name} {graph}": value for graph, value in pairs}
    labelled = [file for file in files if read_graph(file).is_labelled]
    assert len(spreads) == len(labelled) < len(files)
    for file in labelled:
        graph = read_graph(file)
        values = graph.config_feat if file.collection.kind == "tile" else None
        if values is not None and len(np.unique(values, axis=0)) == graph.n_configs:
            runtime = labels_of(graph).runtime
            found = spreads[f"{file.collection.name} {file.split}/{file.name}"]
            assert found == pytest.approx(runtime.max() / runtime.min(), abs=1e-6)


def test_axis_is_logarithmic_only_for_a_wide_range(tiny_tree: Path) -> None:
    rows = audit(find_graphs(tiny_tree))
    charts = {chart.title: chart.data for chart in audit_charts(rows)}
    for title, values in (
        ("Nodes", [row.n_nodes for row in rows]),
        ("Configs", [row.n_configs for row in rows]),
    ):
        assert charts[title]["log"] == (max(values) > 50 * min(values))
    assert not charts["Repeats"]["log"]


def test_command_writes_the_page_also_with_a_damaged_file(tiny_tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_tree, tmp_path / "tree")
    files = find_graphs(tmp_path / "tree")
    files[0].path.write_bytes(b"no archive")
    words = ("audit", "--data", tmp_path / "tree", "--report")
    assert f"page        {tmp_path / 'a.html'}" in call(*words, tmp_path / "a.html", expect=1)
    page = Page((tmp_path / "a.html").read_text())
    assert page.open_tags == []
    assert f"Each of {len(files) - 1} graphs is a point" in page.text
    assert "1 damaged files are left out" in page.text
    assert [chart["axis"] for chart in page.charts][:2] == ["nodes", "configs"]
    for wrong, code, said in (
        (tmp_path / "a.pdf", 2, "expected a name that ends in .html"),
        (files[1].path / "a.html", 1, str(files[1].path)),
    ):
        assert said in call(*words, wrong, expect=code)
