"""Pages show all values of a report or a graph, in valid offline HTML, and in a real browser."""

import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from common import pages
from common.metrics import ranking_from_scores, slowdown_at_k
from data.labels import Labels
from submissions.report.charts import (
    CURVE_PICKS,
    DPI,
    FIRST_POINTS,
    MAX_FAMILIES,
    POINTS_PER_GRAPH,
    RANKS_SCHEMA,
    SIZE_INCHES,
    family_charts,
    rank_points,
    slowdown_curve,
    write_overview,
)
from submissions.report.page import (
    MAX_PAGES,
    graph_address,
    page_name,
    write_graph_pages,
    write_report_page,
)
from submissions.run_report import RunReport
from submissions.score import score_submission
from tests.support.browser import needs_browser, used

VOID = {"meta", "line", "rect", "br", "img", "input"}
LAYOUT = "layout:xla:default"
HOSTILE = "../../</script><b>&'\""


class Page(HTMLParser):
    """Collects text, tags and addresses; `open_tags` must be empty at the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        # The data of each chart.
        self.charts: list[Any] = []
        self.feed(html)
        self.close()
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:  # of <line/> too
        assert tag in VOID or self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags[-1:] == ["script"]:
            if self.tags[-1][1].get("type") == "application/json":
                self.charts.append(json.loads(data))
        elif self.open_tags[-1:] != ["style"]:
            self.text += f" {data}"

    def addresses(self) -> list[str]:
        return [attributes["href"] or "" for tag, attributes in self.tags if tag == "a"]

    def rects(self, kind: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for tag, attributes in self.tags
            if tag == "rect" and kind in (attributes["class"] or "").split()
        ]


def scored_report(n_graphs: int = 3) -> RunReport:
    """Score random rankings of `n_graphs` layout graphs, one without order, and a tile kernel."""
    rng = np.random.default_rng(0)
    labels, rankings = {}, {}
    for graph in range(n_graphs):
        name = f"{LAYOUT}:graph-{graph:02}"
        labels[name] = Labels(rng.permutation(50) + 1)
        rankings[name] = ranking_from_scores(labels[name].runtime + rng.normal(0, 10, 50))
    labels[f"{LAYOUT}:flat"] = Labels(np.full(4, 7))
    labels["tile:xla:slow"] = Labels(np.array([9, 9, 9, 9, 9, 1]), np.ones(6, np.int64))
    rankings |= {"tile:xla:slow": np.arange(5), f"{LAYOUT}:flat": np.arange(4)}
    return score_submission(rankings, labels)


def with_facts(report: RunReport, facts: dict[str, Any]) -> RunReport:
    return RunReport.model_validate(report.as_json() | facts)


def illustrated_report(n_graphs: int = 3) -> tuple[RunReport, pl.DataFrame]:
    report, rng = scored_report(n_graphs), np.random.default_rng(1)
    part = report.collections[LAYOUT]
    tables, rankings, runtimes = [], [], []
    for graph in part.per_graph:
        runtime = rng.permutation(50) + 1
        rankings.append(ranking_from_scores(runtime + rng.normal(0, 10, 50)))
        runtimes.append(runtime)
        tables.append(rank_points(LAYOUT, graph, rankings[-1], Labels(runtime)))
    curve = {"k": CURVE_PICKS, "model": slowdown_curve(rankings, runtimes), "baseline": None}
    evidence = {
        "slowdown_curve": curve,
        "noise_ceiling": 0.875,
        "seed_values": {"0": 0.5, "1": 0.25},
        "seed_sd": 0.125,
    }
    losses = {"step": [20, 40], "loss": [3.0, 2.5], "held_out_step": [40], "held_out": [0.5]}
    collections = report.as_json()["collections"]
    facts = {
        "collections": collections | {LAYOUT: collections[LAYOUT] | evidence},
        "learning_curves": [
            {"group": LAYOUT, "member": f"net-seed{seed}", **losses} for seed in (0, 1)
        ],
        "models": {
            LAYOUT: {
                "members": ["net-seed0", "net-seed1"],
                "method": "rank-mean",
                "weights": {"net-seed0": 0.75, "net-seed1": 0.25},
                "gains": {"net-seed0": 0.02, "net-seed1": -0.01},
            }
        },
        "seconds": {"train": 40.0, "predict": 10.0},
        "peak_mib": {"train": 512, "predict": None},
        "seeds": [0, 1],
    }
    return with_facts(report, facts), pl.concat([pl.DataFrame(schema=RANKS_SCHEMA), *tables])


def render(report: RunReport, tmp_path: Path, ranks: pl.DataFrame | None = None) -> Page:
    path = tmp_path / "out" / "report.html"
    write_report_page(report, path, ranks)
    html = path.read_text(encoding="utf-8")
    write_report_page(report, path, ranks)
    assert path.read_text(encoding="utf-8") == html
    page = Page(html)
    assert page.open_tags == []
    assert not re.search(r"https?://|url\(|@import", html)
    assert not any({"src", "srcset"} & attributes.keys() for _, attributes in page.tags)
    return page


def test_a_full_report_is_shown_completely(tmp_path: Path) -> None:
    facts = {
        "models": {
            "layout:xla:default": {
                "members": ["gnn-0", "gbm-1"],
                "member_values": {"gnn-0": 0.5, "gbm-1": None},
                "gains": {"gnn-0": -0.25},
                "unused": ["gbm-1"],
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
    report = with_facts(scored_report(), facts)
    text = render(report, tmp_path).text
    part = report.collections[LAYOUT]
    low, high = part.ci95
    for shown in (
        f"layout:xla:default Kendall tau {part.value:.4f} {low:.4f} to {high:.4f} 3",
        "tile:xla tile score −7.0000 – 1",
        "Mean of 2 of 5 collections",
        f"layout:xla:default {part.value:.4f} gnn-0 0.5000 – −0.2500 gbm-1 – not used –",
        "layout:nlp:random – gnn-xla – – –",
        "statistics that gbm uses most statistic share of the gain of the splits",
        "copied_bytes_share 25.0% 12.5%",
        "Borrowed from layout:nlp:random: no training graphs.",
        "1 graph: constant runtimes give no order",
        "layout:xla:default:flat: constant runtimes",
        "has no files of: layout:nlp:default/train",
        "The seeds are 3, 4. ± is",
        "revision abc1234 python 3.11.9 device cpu",
        "top-5 error 800.0%",
    ):
        assert shown in text


def test_every_graph_has_a_row_the_lowest_first(tmp_path: Path) -> None:
    report = scored_report(2)
    text = render(report, tmp_path).text
    graphs = report.collections["layout:xla:default"].per_graph
    rows = ["slow −7.0000 tile:xla"]
    for name in sorted(graphs, key=lambda graph: graphs[graph]["kendall_tau"]):
        tau, opa = graphs[name]["kendall_tau"], graphs[name]["opa"]
        rows.append(f"{name} {tau:.4f} layout:xla:default {opa:.4f}")
    places = [text.index(row) for row in rows]
    assert places == sorted(places)


def test_marks_are_at_the_values_between_the_lowest_end_and_1(tmp_path: Path) -> None:
    report = scored_report()
    marks = {"mean": list[float](), "interval": list[float]()}
    for part in report.collections.values():
        if part.value is not None:
            low, _ = part.ci95 or (part.value, part.value)
            start = min(0.0, low)
            marks["mean"].append(100 * (part.value - start) / (1 - start) - 0.3)
            marks["interval"].append(100 * (low - start) / (1 - start))
    page = render(report, tmp_path)
    for kind, places in marks.items():
        found = [float(rect["x"] or "") for rect in page.rects(kind)]
        assert found == pytest.approx(places, abs=0.02) and len(found) == 2


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    report, ranks = illustrated_report()
    graphs, name = report.collections[LAYOUT].per_graph, "</script><b>&'\"/.."
    graphs[name] = graphs.pop("graph-00")
    ranks = ranks.with_columns(pl.col("graph").replace("graph-00", name))
    curves = [curve.model_dump() for curve in report.learning_curves]
    curves[0]["member"] = "</script>"
    facts = {"environment": {"<i>": "</dd><script>"}, "learning_curves": curves}
    report = with_facts(report, facts)
    page = render(report, tmp_path, ranks)
    # In the table and, as a family, in the chart.
    assert page.text.count(name) == 2
    assert "<i> </dd><script>" in page.text
    _, learning, *_ = page.charts
    assert learning[0]["member"] == "</script>"
    assert all(re.fullmatch(r"graphs/[\w.-]+\.html", address) for address in page.addresses())


def test_page_has_the_held_out_value_of_fitted_weights(tmp_path: Path) -> None:
    greedy = {"chosen": "greedy", "held_out_value": 0.625, "held_out_ci95": [0.5, 0.75]}
    gain = {"gain": 0.125, "gain_ci99": [-0.25, 0.5]}
    blends = {"tile:xla": greedy, LAYOUT: greedy | gain | {"chosen": "recipe"}}
    models = {name: {"members": ["a", "b"], "blend": blend} for name, blend in blends.items()}
    text = render(with_facts(scored_report(), {"models": models}), tmp_path).text
    assert "outside the fit: 0.6250, 0.5000 to 0.7500." in text
    assert "outside the fit: 0.1250, 99 % interval −0.2500 to 0.5000)." in text


def test_charts_show_what_the_report_holds(tmp_path: Path) -> None:
    report, ranks = illustrated_report()
    page = render(report, tmp_path, ranks)
    part = report.collections[LAYOUT]
    slowdown, learning, *_ = page.charts
    assert part.slowdown_curve and slowdown == {LAYOUT: part.slowdown_curve.model_dump()}
    assert learning == [curve.model_dump() for curve in report.learning_curves]
    for shown in (
        f"{LAYOUT}: best of 5 {100 * (part.slowdown_curve.model[4] - 1):.1f} % slower",
        "and the held-out metric; loss at the end: net-seed0 2.500, net-seed1 2.500",
        f"{LAYOUT} Kendall tau {part.value:.4f}",
        "0.8750 0.1250",  # ceiling, and the spread of seeds
        "Each seed alone: seed 0 0.5000, seed 1 0.2500 (± 0.1250)",
        "all of these 50.0",
        f"{LAYOUT}, rank-mean {part.value:.4f}",
        "net-seed0 – 75.0% 0.0200 net-seed1 – 25.0% −0.0100",
        "train 40.0 512 predict 10.0 –",
    ):
        assert shown in page.text
    bars = [page.rects(kind)[0] for kind in ("gain", "loss")]
    assert [(bar["x"], bar["width"]) for bar in bars] == [("0.0", "100.0"), ("-50.0", "50.0")]
    assert [bar["width"] for bar in page.rects("cost")] == ["100.0", "25.0"]


def test_scores_by_family_are_means_the_lowest_first() -> None:
    part = scored_report().collections[LAYOUT]
    taus = {"vae_b1": 0.9, "vae_b8": 0.5, "gru_b2": 0.2, **{f"f{i}net_b1": 0.95 for i in range(20)}}
    graphs = {name: {"kendall_tau": tau, "opa": None} for name, tau in taus.items()}
    part = part.changed(per_graph=graphs | {"flat": {"kendall_tau": None}})
    chart, *others = family_charts({LAYOUT: part, "tile:xla": part.changed(per_graph={})})
    assert not others and chart.title == f"{LAYOUT}: {MAX_FAMILIES} of 22 families"
    assert chart.data["names"][:2] == ["gru (1)", "vae (2)"]
    assert chart.data["values"][:3] == pytest.approx([0.2, 0.7, 0.95])
    assert len(chart.data["names"]) == MAX_FAMILIES


def test_of_many_graphs_some_have_a_page(tmp_path: Path) -> None:
    n_graphs = MAX_PAGES + 5
    report, ranks = illustrated_report(n_graphs)
    page = render(report, tmp_path, ranks)
    graphs = report.collections[LAYOUT].per_graph
    ranked = sorted(graphs, key=lambda name: graphs[name]["kendall_tau"])
    assert page.addresses() == [graph_address(LAYOUT, graph) for graph in ranked[:MAX_PAGES]]
    write_graph_pages(tmp_path, report, ranks)
    assert len(list(tmp_path.glob("graphs/*.html"))) == MAX_PAGES


def test_missing_values_of_charts_are_named(tmp_path: Path) -> None:
    page = render(scored_report(), tmp_path)
    assert [chart["axis"] for chart in page.charts] == ["kendall_tau"]  # of the families
    assert "No learning curves" in page.text
    assert "No slowdown curves: there are none in the report." in page.text
    unjudged = render(score_submission({}, {}), tmp_path).text
    assert "No collection has measured runtimes" in unjudged
    assert "No slowdown curves: no graph was judged." in unjudged


def test_a_page_shows_points(tmp_path: Path) -> None:
    report, ranks = illustrated_report()
    ranks = ranks.with_columns(members=pl.concat_list(pl.col("rank").cast(pl.Float32), pl.lit(0.5)))
    graphs = report.collections[LAYOUT].per_graph
    graphs[HOSTILE] = graphs.pop("graph-00") | {"noise_ceiling": 0.93}
    ranks = ranks.with_columns(pl.col("graph").replace("graph-00", HOSTILE))
    write_graph_pages(tmp_path, report, ranks)
    written = {path: path.read_bytes() for path in (tmp_path / "graphs").iterdir()}
    write_graph_pages(tmp_path, report, ranks)
    assert {path: path.read_bytes() for path in (tmp_path / "graphs").iterdir()} == written
    html = (tmp_path / graph_address(LAYOUT, HOSTILE)).read_text()
    assert '<script src="plotly.js">' in html
    assert len(list(tmp_path.rglob("*"))) == 1 + 3 + 1  # the folder, pages, the script
    page = Page(html)
    assert page.open_tags == []
    assert HOSTILE in page.text
    points = page.charts[0]["points"]
    rows = ranks.filter(pl.col("graph") == HOSTILE).sort("rank")
    facts = zip(rows["config"], rows["runtime_ns"], rows["rank"], strict=True)
    assert points["configs"] == [[config, ns, rank, 0.5] for config, ns, rank in facts]
    assert points["rank"] == (rows["rank"] + 1).to_list()
    assert points["slowdown"] == pytest.approx(rows["slowdown"].to_list(), abs=1e-4)
    assert page.charts[0]["members"] == ["net-seed0", "net-seed1"]
    assert "Two measurements of the configs agree to a Kendall tau of 0.93" in page.text


@pytest.mark.parametrize("name", [HOSTILE, "a" * 250, "ä", "a?b#c%d", ".."])
def test_names_of_pages_stay_in_their_folder_and_apart(name: str) -> None:
    assert re.fullmatch(r"tile-xla-[A-Za-z0-9_.-]{1,120}", page_name("tile:xla", name))
    assert page_name("tile:xla", name) != page_name("tile:xla", f"{name}'")


def test_a_curve_is_the_mean_slowdown_at_each_k() -> None:
    rng = np.random.default_rng(0)
    sizes = (3, 40, 250)
    runtimes = [rng.integers(10, 1000, size).astype(np.float64) for size in sizes]
    rankings = [rng.permutation(size) for size in sizes]
    curve = slowdown_curve(rankings, runtimes)
    for value, k in zip(curve, CURVE_PICKS, strict=True):
        plain = [slowdown_at_k(*pair, k) for pair in zip(rankings, runtimes, strict=True)]
        assert value == pytest.approx(np.mean(plain), abs=1e-6)


def test_points_hold_first_and_last_config_and_no_more_than_a_picture_shows() -> None:
    rng = np.random.default_rng(0)
    runtime, ranking = rng.permutation(5000) + 100, rng.permutation(5000)
    points = rank_points("layout:xla:default", "g", ranking, Labels(runtime))
    ranks = points["rank"].to_list()
    fastest = int(runtime[ranking].argmin())
    assert set(range(FIRST_POINTS)) | {fastest, 4999} <= set(ranks)
    assert POINTS_PER_GRAPH <= len(ranks) <= POINTS_PER_GRAPH + FIRST_POINTS + 1
    assert np.diff(ranks).max() == np.ceil(4999 / (POINTS_PER_GRAPH - 1))
    assert points["config"].to_list() == ranking[ranks].tolist()
    assert points["runtime_ns"].to_list() == runtime[ranking[ranks]].tolist()
    expected = runtime[ranking[ranks]] / 100
    assert points["slowdown"].to_numpy() == pytest.approx(expected)


def test_points_of_a_tile_are_normalised_and_name_rows_and_what_members_think() -> None:
    labels = Labels(np.array([30, 20]), np.array([1, 2]))
    scored = [pl.DataFrame({"config": [7, 9], "score": score}) for score in ([0, 1], [0.5, 2])]
    points = rank_points("tile:xla", "g", np.array([1, 0]), labels, scored)
    assert points["slowdown"].to_list() == [1, 3]
    assert points["config"].to_list() == [9, 7]
    assert points["members"].to_list() == [[2], [0.5]]


def test_the_picture_is_the_same_for_the_same_report_with_scores_or_without(tmp_path: Path) -> None:
    one, two = tmp_path / "1.png", tmp_path / "2.png"
    for report in (illustrated_report()[0], score_submission({}, {})):
        write_overview(report, one)
        write_overview(report, two)
        assert one.read_bytes() == two.read_bytes()
        size = struct.unpack(">II", one.read_bytes()[16:24])
        assert size == tuple(round(inches * DPI) for inches in SIZE_INCHES)


def test_without_plotly_there_is_nothing_to_draw_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    assert pages.library.__wrapped__() == ""


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [390, 1400])
def test_pages_are_drawn_sorted_searched_and_fit_the_window(width: int, tmp_path: Path) -> None:
    report, ranks = illustrated_report(20)
    write_report_page(report, tmp_path / "report.html", ranks)
    state = used(tmp_path / "report.html", width)
    assert state["plots"] == 1 + 1 + 1 and state["focused"] and state["found"] == ["graph-07"]
    direction, values = state["sorted"]
    numbers = [float(text.replace("−", "-").replace("–", "-inf")) for text in values]
    assert (direction, numbers) == ("descending", sorted(numbers, reverse=True))
    write_graph_pages(tmp_path, report, ranks)
    page = tmp_path / "graphs" / "layout-xla-default-graph-07.html"
    assert used(page, width)["plots"] == 1
