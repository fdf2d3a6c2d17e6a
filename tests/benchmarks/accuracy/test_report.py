"""The page and its picture come from the cells alone; figures against figures by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.report import (
    choice_rows,
    collection_rows,
    difference,
    estimate,
    estimate_of,
    first_measured,
    read_cells,
    table_of,
    values,
    write_report,
)
from common.atomic import write_text

FAMILIES = ["b", "a", "b", "c", "a", "b"]


def cell(task: str, contender: str, seed: int, taus: list[float], **more: Any) -> dict[str, Any]:
    slowdowns = ("slowdown@1", "slowdown@5", "slowdown@10", "diversified_slowdown@5")
    metrics = ("kendall_tau", "opa", "tile_score", *slowdowns)
    graphs = {
        f"g{i}": {
            "split": "valid",
            "family": FAMILIES[i],
            "again_tau": None,
            "noise": {"n_repeated": 20, "tau": 0.81, "best_tau": 0.9},
            "rank_cpu_s": 0.5,
            **dict.fromkeys(metrics, tau),
        }
        for i, tau in enumerate(taus)
    }
    made = {"revision": "abc", "environment": {"system": "Linux"}, "train_cpu_s": 4.0}
    known = {"task": task, "contender": contender, "seed": seed, "graphs": graphs}
    return {**known, **made, **more}


def write_cells(folder: Path, task: str, contenders: Any, n_graphs: int = 6) -> None:
    for place, name in enumerate(contenders):
        for seed in (0, 1):
            taus = [0.1 * place + 0.01 * graph + 0.002 * seed for graph in range(n_graphs)]
            path = folder / "cells" / f"{task}--{name}--{seed}.json"
            write_text(path, json.dumps(cell(task, name, seed, taus)))


def test_one_graph_has_students_interval_over_seeds() -> None:
    found = estimate(np.array([[0.5, 0.6, 0.7, 0.8, 0.4]]), ["a"])
    half = 2.7764451 * math.sqrt(sum((v - 0.6) ** 2 for v in (0.5, 0.6, 0.7, 0.8, 0.4)) / 4 / 5)
    assert (found.low, found.high) == pytest.approx((0.6 - half, 0.6 + half))
    assert math.isnan(estimate(np.ones((1, 1)), ["a"]).low)
    assert math.isnan(estimate(np.ones((2, 1)), ["a", "a"]).low)


def test_an_interval_ends_where_a_metric_is_perfect() -> None:
    cells = [cell("unet3d-all", "floor", seed, [value]) for seed, value in enumerate((1, 1, 1.9))]
    slow = estimate_of(cells, "slowdown@1")
    assert (slow.mean, slow.low, slow.high) == pytest.approx((1.3, 1.0, 2.5908), abs=1e-4)
    cells = [cell("unet3d-all", "floor", seed, [value]) for seed, value in enumerate((1, 1, 0.7))]
    tau = estimate_of(cells, "kendall_tau")
    assert (tau.mean, tau.low, tau.high) == pytest.approx((0.9, 0.4697, 1.0), abs=1e-4)
    assert math.isnan(estimate_of(cells[:1], "slowdown@1").low)


def test_two_folders_are_paired_by_model_seed_and_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, taus in (("mine", [0.5, 0.7, 0.6]), ("base", [0.4, 0.6, 0.5])):
        for name in ("linear", folder):
            path = tmp_path / folder / "cells" / f"layouts--{name}--0.json"
            write_text(path, json.dumps(cell("layouts", name, 0, taus)))
    words = ["--out", str(tmp_path / "mine"), "--against", str(tmp_path / "base")]
    main(words)
    (line,) = capsys.readouterr().out.splitlines()  # no model is in one alone
    gain = "**+0.100 [+0.100, +0.100]**"
    assert line.startswith(f"layouts, linear: tau {gain}, OPA {gain}, slowdown@1 **+0.1000 [")
    write_cells(tmp_path / "other", "tiles", ["linear"])
    with pytest.raises(SystemExit, match="1"):
        main([*words[:-1], str(tmp_path / "other")])
    told = f"mine holds linear, mine, and {tmp_path / 'other'} linear: no model with the same task"
    assert told in capsys.readouterr().err


def test_a_folders_models_are_paired_with_one_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, taus in (("gcn", [0.4, 0.6]), ("my_pkg:Mine", [0.5, 0.7]), ("linear", [0.4, 0.6])):
        path = tmp_path / "cells" / f"layouts--{name}--0.json"
        write_text(path, json.dumps(cell("layouts", name, 0, taus)))
    main(["--out", str(tmp_path), "--against", "gcn"])
    linear, mine = sorted(capsys.readouterr().out.splitlines())
    assert linear.startswith("layouts, linear: tau +0.000 [+0.000, +0.000]")
    assert mine.startswith("layouts, my_pkg:Mine: tau **+0.100 [+0.100, +0.100]**")
    with pytest.raises(SystemExit, match="1"):
        main(["--out", str(tmp_path), "--against", "gat"])
    told = "--against gat: expected a folder, or a model that"
    assert told in (said := capsys.readouterr().err)
    assert "holds: gcn, linear, my_pkg:Mine" in said
    write_cells(tmp_path, "tiles", ["late_fusion"])
    with pytest.raises(SystemExit, match="1"):
        main(["--out", str(tmp_path), "--against", "late_fusion"])
    told = "none of gcn, linear, my_pkg:Mine has a task and seed of late_fusion"
    assert told in capsys.readouterr().err


def test_differences_are_paired_by_seed_and_graph() -> None:
    shipped = [cell("layouts", "shipped", seed, [0.1 * seed, 0.5]) for seed in (0, 1, 2)]
    other = [cell("layouts", "gcn", seed, [0.1 * seed, 0.4]) for seed in (2, 1)]
    found = difference(shipped, other, "kendall_tau")
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((0.05, 0.0, 0.1))
    assert difference(other, [], "kendall_tau") is None
    table, families = values([*other, *shipped[1:]], "kendall_tau")
    assert families == ["b", "a"] and table.shape == (2, 4)
    gcn, top = table_of("layouts", {"gcn": other, "shipped": shipped})["rows"]
    assert gcn[8:] == ["+0.050 [+0.000, +0.100]", "+0.0500 [+0.0000, +0.1000]", "4.0", "0.50"]
    assert top[8:10] == ["", ""]
    of_one = {  # bold where the interval leaves out 0
        name: [cell("unet3d-all", name, seed, [tau + 0.001 * seed]) for seed in range(3)]
        for name, tau in (("linear", 0.2), ("columns", 0.5), ("shipped", 0.5))
    }
    linear, columns, _ = table_of("unet3d-all", of_one)["rows"]
    assert linear[8] == "**+0.300 [+0.300, +0.300]**"
    assert columns[8] == "+0.000 [+0.000, +0.000]"


@pytest.mark.parametrize(
    ("task", "without", "label"),
    [("layouts", "no-attention", "tau"), ("tiles", "late-join", "tile score")],
)
def test_what_attention_gains_is_paired(task: str, without: str, label: str) -> None:
    taus = {"network": [0.5, 0.7], without: [0.4, 0.5]}
    found = {name: [cell(task, name, seed, own) for seed in (0, 1)] for name, own in taus.items()}
    told = table_of(task, found)["attention"]
    assert told.startswith(f"`network` − `{without}`: {label} **+0.150")
    assert "slowdown@1 **+0.1500 [+0.1000, +0.2000]**" in told
    assert table_of(task, {"network": found["network"]})["attention"] == ""


@pytest.mark.parametrize("task", ["layouts", "tiles"])
def test_the_page_and_its_picture_come_from_the_cells_alone(task: str, tmp_path: Path) -> None:
    write_cells(tmp_path, task, ["boosting", "shipped"])
    cells = read_cells(tmp_path / "cells")
    pages = []
    for order in (cells, list(reversed(cells))):
        write_report(order, tmp_path)
        pages.append((tmp_path / "accuracy.md").read_text())
    assert pages[0] == pages[1]
    lines = pages[0].splitlines()
    assert "Held out: graphs 6, families 3." in lines
    assert "agree to tau 0.810; " in pages[0] and " and 0.900." in pages[0]
    rows = [line for line in lines if line.startswith(("| boosting |", "| shipped |"))]
    assert len(rows) == 2 and len({row.count("|") for row in rows}) == 1
    shown = imread(tmp_path / "accuracy.png")
    assert shown.shape[1] == 1210 and shown[..., :3].std() > 0.05


def test_the_page_names_the_keys_that_were_set(tmp_path: Path) -> None:
    plain, changed = cell("tiles", "floor", 0, [0.1, 0.2]), cell("tiles", "floor", 1, [0.1, 0.2])
    changed["set"] = ["tile_boosting.num_boost_round=3"]
    pages = []
    for cells in ([plain], [plain, changed], [changed]):
        write_report(cells, tmp_path)
        pages.append((tmp_path / "accuracy.md").read_text())
    assert "| floor | 1 | " in pages[0] and "--set" not in pages[0]
    own = "(`--set`): `floor` with `tile_boosting.num_boost_round=3`.\n"
    assert own in pages[1] and own in pages[2]


def test_what_is_shipped_is_held_against_the_best_member_of_each_collection() -> None:
    taus = {"network": [0.6, 0.2], "boosting": [0.5, 0.3]}
    found = {name: [cell("layouts", name, 0, own)] for name, own in taus.items()}
    assert collection_rows(found) == []  # nothing is shipped
    found["shipped"] = [cell("layouts", "shipped", 0, [0.65, 0.25])]
    for own in found.values():
        own[0]["graphs"] = {
            f"layout:{name}": own[0]["graphs"][graph]
            for name, graph in (("nlp:default:a", "g0"), ("xla:default:b", "g1"))
        }
    assert collection_rows(found) == [
        ["layout:nlp:default", "1", "network, 0.600", "+0.050", "+0.0500", "+0.0500"],
        ["layout:xla:default", "1", "boosting, 0.300", "-0.050", "-0.0500", "-0.0500"],
    ]


def test_what_choices_have_seen_is_told_apart() -> None:
    chosen_on = first_measured()
    assert len(chosen_on) == 52
    assert {"layout:xla:random:plain_b2", "layout:nlp:default:attention_b8"} <= chosen_on
    assert "layout:xla:random:conv_lstm_b2" not in chosen_on  # of a later measurement
    scores = {"floor": 0.2, "linear": 0.4, "boosting": 0.5, "shipped": 0.7}
    found = {name: [cell("layouts", name, 0, [own] * 3)] for name, own in scores.items()}
    for own in found.values():
        names = ("layout:xla:random:plain_b2", "layout:xla:random:mine", sorted(chosen_on)[0])
        graphs = dict(zip(names, own[0]["graphs"].values(), strict=True))
        graphs[names[2]] = {**graphs[names[2]], "split": "test"}
        own[0]["graphs"] = graphs
    leads = ["+0.5000", "+0.3000", "+0.2000"]
    assert choice_rows(found) == [
        [group, "1", "0.700", "0.7000", "0.7000", "0.7000", *leads]
        for group in (
            "first measured: choices were made on these",
            "labelled, measured later",
            "test split: seen by no choice, learned by no model",
        )
    ]
    assert choice_rows({"shipped": found["shipped"]}) == []


def test_no_cells_are_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="tasks of the page are missing; --report FOLDER"):
        main(["--out", str(tmp_path), "--report"])
    with pytest.raises(SystemExit):  # it would train the built-in network instead
        main(["--out", str(tmp_path), "--set", "layout.models=['my_pkg:Mine']"])
    with pytest.raises(SystemExit, match="1"):
        main(["--out", str(tmp_path), "--report", str(tmp_path)])
    assert "cells: no results; train some first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_help_names_tasks_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = "".join(capsys.readouterr().out.split())  # it breaks lines at hyphens
    assert all(name in said for name in ("sample-further", "alexnet", "no-attention", "early-join"))
    assert "sample-further:floor,linear,boosting,columns,shipped" in said
    assert "acellthatwasinterruptedbeginsanew" in said
    assert "alexnet:floor,early-join," in said and "example,someseconds:python-m" in said
