"""The page of a graph: its points with what members think, its best configs; and that of a pair."""

import re
from pathlib import Path

import polars as pl
import pytest

from submissions.compare import compare_reports, paired_scores
from submissions.report import charts
from submissions.report.charts import BEST_SCHEMA
from submissions.report.page import (
    graph_address,
    page_name,
    write_comparison_page,
    write_graph_pages,
)
from tests.submissions.pages import LAYOUT, Page, illustrated_report, scored_report

HOSTILE = "../../</script><b>&'\""


def test_a_page_shows_points_and_best_configs(tmp_path: Path) -> None:
    report, ranks = illustrated_report()
    ranks = ranks.with_columns(members=pl.concat_list(pl.col("rank").cast(pl.Float32), pl.lit(0.5)))
    graphs = report["collections"][LAYOUT]["per_graph"]
    graphs[HOSTILE] = graphs.pop("graph-00") | {"noise_ceiling": 0.93}
    ranks = ranks.with_columns(pl.col("graph").replace("graph-00", HOSTILE))
    rows = {"names": [["dot (node 7)"]], "cells": [[["output - → {0,1}", ""]]], "n_more": [3]}
    first = {"collection": [LAYOUT], "graph": [HOSTILE], "configs": [[9, 4]], "against": [2]}
    best = pl.DataFrame(first | rows, schema=BEST_SCHEMA)
    for alone in (None, (LAYOUT, HOSTILE)):
        write_graph_pages(tmp_path, report, ranks, best, alone=alone)
        first = {path: path.read_bytes() for path in (tmp_path / "graphs").iterdir()}
        write_graph_pages(tmp_path, report, ranks, best, alone=alone)
        assert {path: path.read_bytes() for path in (tmp_path / "graphs").iterdir()} == first
        html = (tmp_path / graph_address(LAYOUT, HOSTILE)).read_text()
        assert ("const PLOTLY" in html) == (alone is not None)
        assert ('<script src="plotly.js">' in html) == (alone is None)
    assert len(list(tmp_path.rglob("*"))) == 1 + 3 + 1  # the folder, pages, the script
    page = Page(html)
    assert page.open_tags == []
    assert HOSTILE in page.text
    (points,) = page.charts[0]["graphs"].values()
    own = ranks.filter(pl.col("graph") == HOSTILE).sort("rank")
    facts = zip(own["config"], own["runtime_ns"], own["rank"], strict=True)
    assert points["configs"] == [[config, ns, rank, 0.5] for config, ns, rank in facts]
    assert page.charts[0]["members"] == ["net-seed0", "net-seed1"]
    assert "1: config 9" in page.text
    assert "dot (node 7) output - → {0,1} –" in page.text
    assert "differs from config 2" in page.text
    assert "Two measurements of its configs agree to a Kendall tau of 0.93" in page.text
    assert "3 more nodes differ" in page.text


def test_an_explanation_is_held_by_its_page(tmp_path: Path) -> None:
    report, ranks = illustrated_report()
    picture = tmp_path / "graphs" / f"{page_name(LAYOUT, 'graph-01')}.svg"
    picture.parent.mkdir()
    picture.write_text("<svg/>")
    write_graph_pages(tmp_path, report, ranks, None)
    page = Page((tmp_path / graph_address(LAYOUT, "graph-01")).read_text())
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert sources == ["data:image/svg+xml;base64,PHN2Zy8+"]
    assert "valid-best.parquet has nothing on this graph" in page.text


@pytest.mark.parametrize("name", [HOSTILE, "a" * 250, "ä", "a?b#c%d", ".."])
def test_names_of_pages_stay_in_their_folder_and_apart(name: str) -> None:
    assert re.fullmatch(r"tile-xla-[A-Za-z0-9_.-]{1,120}", page_name("tile:xla", name))
    assert page_name("tile:xla", name) != page_name("tile:xla", f"{name}'")


def test_the_page_of_two_runs_tells_every_difference(tmp_path: Path) -> None:
    first, second = scored_report(3), scored_report(4)
    graphs = second["collections"][LAYOUT]["per_graph"]
    for own in (first["collections"][LAYOUT]["per_graph"], graphs):
        own[HOSTILE] = dict(own["graph-00"])
    graphs[HOSTILE]["kendall_tau"] = -0.25
    compared, pairs = compare_reports(first, second), paired_scores(first, second)
    assert set(pairs[LAYOUT]) == {"graph-00", "graph-01", "graph-02", HOSTILE}
    path = tmp_path / "both.html"
    keys = {"recipe.name": ["<i>", "</script>"]}
    write_comparison_page(path, ["a", "b"], compared, pairs, keys)
    page = Page(path.read_text())
    assert page.open_tags == []
    before = first["collections"][LAYOUT]["per_graph"][HOSTILE]["kendall_tau"]
    told = f"{HOSTILE} {-0.25 - before:.4f} {LAYOUT} {before:.4f} −0.2500".replace(" -", " −")
    assert told in page.text
    assert "recipe.name <i> </script>" in page.text
    differences, both = page.charts
    assert differences["pairs"] == both["pairs"]
    assert both["pairs"][LAYOUT] == {name: list(own) for name, own in pairs[LAYOUT].items()}
    assert list(differences["means"]) == [*compared["collections"], "mean"]
    assert differences["means"][LAYOUT] == compared["collections"][LAYOUT]


def test_without_plotly_there_is_nothing_to_draw_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    assert charts.library.__wrapped__() == ""
