"""The page says what the report holds, in balanced HTML without network; and the overview."""

import base64
import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

from submissions.report.page import MAX_BARS, write_report_page
from submissions.report.pictures import DPI, MAX_SCATTERS, ROW_INCHES, WIDTH_INCHES, write_overview
from submissions.score import score_submission
from tests.submissions.pages import LAYOUT, Page, illustrated_report, scored_report


def render(report: dict[str, Any], tmp_path: Path, ranks: pl.DataFrame | None = None) -> Page:
    path = tmp_path / "out" / "report.html"
    write_report_page(report, path, ranks)
    html = path.read_text(encoding="utf-8")
    write_report_page(report, path, ranks)
    assert path.read_text(encoding="utf-8") == html
    page = Page(html)
    assert page.open_tags == []
    assert not re.search(r"https?://|url\(|@import|<script", html)
    assert not any("href" in attributes for _, attributes in page.tags)
    sources = [attributes["src"] or "" for _, attributes in page.tags if "src" in attributes]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    return page


def test_a_full_report_is_told_in_full(tmp_path: Path) -> None:
    report = scored_report() | {
        "models": {
            "layout:xla:default": {
                "members": ["gnn-0", "gbm-1"],
                "member_values": {"gnn-0": 0.5, "gbm-1": None},
                "importances": {
                    "gbm": [{"statistic": "copied_bytes_share", "gain": 0.25, "splits": 0.125}]
                },
                "fallback_from": None,
            },
            "layout:nlp:random": {
                "members": ["gnn-xla"],
                "fallback_from": "layout:nlp:random",
                "reason": "no training graphs",
            },
        },
        "missing_parts": ["layout:nlp:default/train"],
        "seeds": [3, 4],
        "environment": {"python": "3.11.9", "device": "cpu"},
        "revision": "abc1234",
    }
    text = render(report, tmp_path).text
    part = report["collections"]["layout:xla:default"]
    low, high = part["ci95"]
    assert f"layout:xla:default Kendall tau {part['value']:.4f} {low:.4f} to {high:.4f} 3" in text
    assert "tile:xla tile score −7.0000 – 1" in text
    assert "Mean of 2 of 5 collections" in text
    assert "layout:xla:default : gnn-0 (0.5000 alone), gbm-1" in text
    assert "What gbm rests on statistic share of the gain of the splits" in text
    assert "copied_bytes_share 25.0% 12.5%" in text
    assert "Borrowed from layout:nlp:random: no training graphs." in text
    assert "1 graph: constant runtimes give no order" in text
    assert "layout:xla:default:flat: constant runtimes" in text
    assert "holds no files of: layout:nlp:default/train" in text
    assert "Seeds: 3, 4; ± is" in text
    assert "revision abc1234 python 3.11.9 device cpu" in text
    assert "top-5 error 800.0%" in text


def test_bars_stand_where_the_values_are(tmp_path: Path) -> None:
    report = scored_report(2)
    bars = render(report, tmp_path).rects("bar")
    # The tile kernel scores -7 on an axis from -7 to 1; then the two graphs, lowest first.
    assert bars[0]["class"] == "bar negative"
    assert (float(bars[0]["x"] or ""), float(bars[0]["width"] or "")) == (0, 87.5)
    graphs = report["collections"]["layout:xla:default"]["per_graph"].values()
    expected = sorted(round(100 * graph["kendall_tau"], 2) for graph in graphs)
    assert [float(bar["width"] or "") for bar in bars[1:]] == expected
    assert all(bar["class"] == "bar" and float(bar["x"] or "") == 0 for bar in bars[1:])


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    report = scored_report()
    graphs = report["collections"]["layout:xla:default"]["per_graph"]
    graphs["<b>&'\""] = graphs.pop("graph-00")
    report["environment"] = {"<i>": "</dd><script>"}
    page = render(report, tmp_path)
    assert "<b>&'\"" in page.text
    assert "<i> </dd><script>" in page.text


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (
            {"chosen": "greedy", "nested_value": 0.625, "nested_ci95": [0.5, 0.75]},
            "(nested): 0.6250, 0.5000 to 0.7500.",
        ),
        (
            {
                **{"chosen": "recipe", "nested_value": 0.625, "nested_ci95": [0.5, 0.75]},
                **{"recipe_difference": 0.125, "recipe_difference_ci99": [-0.25, 0.5]},
            },
            "more than noise on the valid split (gain of the best other, nested: 0.1250, "
            "99 % interval −0.2500 to 0.5000).",
        ),
    ],
)
def test_a_chosen_blend_is_told_with_its_nested_value(
    tmp_path: Path, choice: dict[str, Any], told: str
) -> None:
    report = scored_report() | {"models": {"tile:xla": {"members": ["a", "b"], "blend": choice}}}
    write_report_page(report, tmp_path / "report.html")
    assert told in (tmp_path / "report.html").read_text()


def told(page: Page) -> str:
    return " | ".join(attributes["alt"] or "" for attributes in page.pictures())


def test_pictures_show_what_the_report_holds(tmp_path: Path) -> None:
    report, ranks = illustrated_report()
    page = render(report, tmp_path, ranks)
    part = report["collections"][LAYOUT]
    at_five = 100 * (part["slowdown_curve"]["model"][4] - 1)
    assert f"best of 5: {at_five:.1f} % slower" in told(page)
    assert "net: loss over steps; at the end: net-seed0 2.500, net-seed1 2.500" in told(page)
    worst = min(part["per_graph"].items(), key=lambda entry: entry[1]["kendall_tau"])
    assert f"{worst[0]}: {worst[1]['kendall_tau']:.3f}: predicted rank" in told(page)
    assert len(page.pictures()) == 1 + 1 + 3
    for attributes in page.pictures():
        svg = base64.b64decode((attributes["src"] or "").partition(",")[2])
        assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert f"{LAYOUT} Kendall tau {part['value']:.4f}" in page.text
    assert "0.8750 0.1250" in page.text  # ceiling, and the spread of seeds
    assert "Each seed alone: seed 0 0.5000, seed 1 0.2500 (± 0.1250)" in page.text
    assert "all of these 50.0" in page.text
    assert "Method: rank-mean." in page.text
    assert "net-seed0 75.0% net-seed1 25.0%" in page.text
    assert [bar["width"] for bar in page.rects("weight")] == ["75.0", "25.0"]
    assert "train 40.0 512 predict 10.0 –" in page.text
    assert [bar["width"] for bar in page.rects("cost")] == ["100.0", "25.0"]


def test_of_many_graphs_some_are_drawn(tmp_path: Path) -> None:
    n_graphs = MAX_BARS + 5
    report, ranks = illustrated_report(n_graphs)
    page = render(report, tmp_path, ranks)
    graphs = report["collections"][LAYOUT]["per_graph"]
    ranked = sorted(graphs, key=lambda name: graphs[name]["kendall_tau"])
    assert f"The {MAX_BARS} lowest of {n_graphs} graphs." in page.text
    assert len(page.rects("bar")) == MAX_BARS + 1
    drawn = [a["alt"] or "" for a in page.pictures() if "predicted rank" in (a["alt"] or "")]
    assert len(drawn) == MAX_SCATTERS
    assert (drawn[0].split(":")[0], drawn[-1].split(":")[0]) == (ranked[0], ranked[-1])
    assert f"{MAX_SCATTERS} of {n_graphs} graphs, from the worst to the best" in page.text


def test_what_pictures_lack_is_said(tmp_path: Path) -> None:
    page = render(scored_report() | {"missing_stages": ["Nothing was trained."]}, tmp_path)
    assert page.pictures() == []
    assert "Nothing was trained." in page.text
    assert "No slowdown curves: there are none in the report." in page.text
    assert "No learning curves" in page.text
    assert "valid-ranks.parquet is missing" in page.text
    assert "does not say what the stages took" in page.text
    unjudged = render(score_submission({}, {}), tmp_path)
    assert "No collection has measured runtimes" in unjudged.text
    assert "No graph was judged." in unjudged.text
    assert "does not say which models" in unjudged.text
    assert unjudged.rects("bar") == []
    assert "No slowdown curves: no graph was judged." in unjudged.text
    assert "valid-ranks.parquet" not in unjudged.text


def size_of(report: dict[str, Any], ranks: pl.DataFrame | None, path: Path) -> tuple[int, int]:
    write_overview(report, ranks, path)
    content = path.read_bytes()
    write_overview(report, ranks, path)
    assert path.read_bytes() == content
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_a_row_for_scores_and_one_for_each_judged_collection(tmp_path: Path) -> None:
    report, ranks = illustrated_report()
    expected = (round(WIDTH_INCHES * DPI), round(3 * ROW_INCHES * DPI))
    assert size_of(report, ranks, tmp_path / "report.png") == expected
    write_overview(report, None, tmp_path / "without.png")
    assert (tmp_path / "report.png").read_bytes() != (tmp_path / "without.png").read_bytes()


def test_without_pictures_or_labels_it_still_renders(tmp_path: Path) -> None:
    assert size_of(scored_report(), None, tmp_path / "a.png")[1] == round(3 * ROW_INCHES * DPI)
    empty = score_submission({}, {})
    assert size_of(empty, None, tmp_path / "b.png")[1] == round(ROW_INCHES * DPI)
