"""Helpers for tests of the report: a parser of HTML pages, and synthetic reports."""

import json
from html.parser import HTMLParser
from typing import Any

import numpy as np
import polars as pl

from common.metrics import ranking_from_scores
from data.labels import Labels
from submissions.report.charts import CURVE_PICKS, RANKS_SCHEMA, rank_points, slowdown_curve
from submissions.run_report import RunReport
from submissions.score import score_submission

VOID = {"meta", "line", "rect", "br", "img", "input"}
LAYOUT = "layout:xla:default"


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
            }
        },
        "seconds": {"train": 40.0, "predict": 10.0},
        "peak_mib": {"train": 512, "predict": None},
        "seeds": [0, 1],
    }
    return with_facts(report, facts), pl.concat([pl.DataFrame(schema=RANKS_SCHEMA), *tables])
