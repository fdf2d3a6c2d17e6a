"""The page holds what the report says, in balanced HTML that asks for nothing over the network."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from submissions.labels import Labels
from submissions.report_page import MAX_BARS, write_report_page
from submissions.score import score_submission
from submissions.write import ranking_from_scores

VOID = {"meta", "line", "rect", "br"}


class Page(HTMLParser):
    """Collects text, tags and addresses; `open_tags` must be empty at the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags[-1:] != ["style"]:
            self.text += f" {data}"

    def rects(self, kind: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for tag, attributes in self.tags
            if tag == "rect" and kind in (attributes["class"] or "").split()
        ]


def render(report: dict[str, Any], tmp_path: Path) -> Page:
    path = tmp_path / "out" / "report.html"
    write_report_page(report, path)
    html = path.read_text(encoding="utf-8")
    write_report_page(report, path)
    assert path.read_text(encoding="utf-8") == html
    page = Page(html)
    assert page.open_tags == []
    assert not re.search(r"https?://|url\(|@import|<script", html)
    assert not any({"src", "href"} & attributes.keys() for _, attributes in page.tags)
    return page


def scored_report(n_graphs: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    labels, rankings = {}, {}
    for graph in range(n_graphs):
        name = f"layout:xla:default:graph-{graph:02}"
        labels[name] = Labels(rng.permutation(50) + 1)
        rankings[name] = ranking_from_scores(labels[name].runtime + rng.normal(0, 10, 50))
    labels["layout:xla:default:flat"] = Labels(np.full(4, 7))
    labels["tile:xla:slow"] = Labels(np.array([9, 9, 9, 9, 9, 1]), np.ones(6, np.int64))
    rankings |= {"tile:xla:slow": np.arange(5), "layout:xla:default:flat": np.arange(4)}
    return score_submission(rankings, labels)


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
    assert "Seeds: 3, 4." in text
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


def test_only_the_lowest_of_many_graphs_are_drawn(tmp_path: Path) -> None:
    report = scored_report(MAX_BARS + 5)
    page = render(report, tmp_path)
    graphs = report["collections"]["layout:xla:default"]["per_graph"]
    ranked = sorted(graphs, key=lambda name: graphs[name]["kendall_tau"])
    assert f"The {MAX_BARS} lowest of {MAX_BARS + 5} graphs." in page.text
    assert len(page.rects("bar")) == MAX_BARS + 1
    assert ranked[0] in page.text
    assert ranked[-1] not in page.text


def test_a_report_without_labels_says_so(tmp_path: Path) -> None:
    page = render(score_submission({}, {}), tmp_path)
    assert "No collection has measured runtimes" in page.text
    assert "No graph was judged." in page.text
    assert "does not say which models" in page.text
    assert page.rects("bar") == []


def test_one_graph_and_one_seed_are_told_as_such(tmp_path: Path) -> None:
    report = scored_report(1) | {"seeds": [7]}
    text = render(report, tmp_path).text
    assert "One seed was trained (7)" in text
    value = report["collections"]["layout:xla:default"]["value"]
    assert f"layout:xla:default Kendall tau {value:.4f} – 1" in text


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
            {"chosen": "recipe", "nested_value": 0.625, "nested_ci95": [0.5, 0.75]},
            "nothing beat it by more than noise",
        ),
        (
            {"chosen": "recipe", "nested_value": None, "reason": "2 labelled graphs"},
            "since there are 2 labelled graphs.",
        ),
    ],
)
def test_a_chosen_blend_is_told_with_its_nested_value(
    tmp_path: Path, choice: dict[str, Any], told: str
) -> None:
    report = scored_report() | {"models": {"tile:xla": {"members": ["a", "b"], "blend": choice}}}
    write_report_page(report, tmp_path / "report.html")
    assert told in (tmp_path / "report.html").read_text()
