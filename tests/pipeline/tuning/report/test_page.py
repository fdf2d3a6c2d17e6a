"""Reports on searches: of one trial, of failures only, of a running one, of a full one."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import PipelineError
from models.config.recipe import Recipe
from models.run_folder import begin, mark_done
from pipeline.tuning.report.page import write_tune_report
from pipeline.tuning.report.plots import place
from pipeline.tuning.report.sheet import draw_sheet
from pipeline.tuning.report.study import importances, read_search
from pipeline.tuning.result import TrialRecord
from pipeline.tuning.space import SearchSpace, space_from_table
from tests.command_line import call

RATE, LEAVES, STATISTICS = (
    "layout_boosting.learning_rate",
    "layout_boosting.leaves",
    "layout_boosting.statistics",
)


def space(objectives: str = "score") -> SearchSpace:
    study = {"collection": "layout:xla:random", "model": "layout_boosting"}
    table: dict[str, Any] = {
        "study": {**study, "objectives": objectives},
        RATE: {"low": 0.01, "high": 1.0, "log": True},
        LEAVES: {"low": 2, "high": 32},
        STATISTICS: {"choices": ["plain", "all"]},
    }
    return space_from_table(table, source="test")


def trials(n: int) -> list[TrialRecord]:
    """The value depends on the learning rate alone."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(n):
        rate = float(10 ** rng.uniform(-2, 0))
        params = {RATE: rate, LEAVES: int(rng.integers(2, 33)), STATISTICS: "all"}
        params[STATISTICS] = ["plain", "all"][int(rng.integers(2))]
        value = 0.5 + 0.2 * np.log10(rate)
        found.append(TrialRecord(number, "complete", value, params, number == 0, None, 2.0, "w"))
    return found


def folder_of(
    out: Path,
    own: list[TrialRecord],
    verdict: Mapping[str, Any] | None = None,
    objectives: str = "score",
) -> Path:
    config = {"train_data": "x", "recipe": Recipe().model_dump(mode="json")}
    begin(out, {**config, "space": space(objectives).decisive()}, resume=False)
    (out / "trials.json").write_text(json.dumps([asdict(trial) for trial in own]))
    if verdict:
        (out / "finalists.json").write_text(json.dumps(verdict))
    return out


def without_value(trial: TrialRecord, state: str, reason: str | None) -> TrialRecord:
    return replace(trial, state=state, value=None, reason=reason)


def test_a_full_search_has_every_picture_and_the_same_bytes_again(tmp_path: Path) -> None:
    own = trials(12)
    own[5] = without_value(own[5], "fail", "the loss is <nan>")
    own[6] = without_value(own[6], "pruned", "pruned after 1 of 2 folds")
    out = folder_of(tmp_path / "out", own, {"trial": 3, "reason": "trial 3 beats the baseline"})
    mark_done(out)
    page, sheet = write_tune_report(out)
    text = page.read_text()
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert titles[:3] == ["History", "Importances", "Parallel coordinates"]
    assert titles[3:] == [RATE, *titles[4:]] and set(titles[3:]) == {RATE, LEAVES, STATISTICS}
    assert f"{own[3].value:.4f}" in text and "trial 3 beats the baseline" in text
    assert "10 complete, 1 fail, 1 pruned" in text
    assert "1 × the loss is &lt;nan&gt;" in text
    assert "has not ended" not in text
    assert not re.search(r'(src|href)="(?!data:)', text), "the page needs the network"
    for encoded in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text):
        assert base64.b64decode(encoded).startswith(b"<?xml")
    assert sheet.read_bytes().startswith(b"\x89PNG")
    before = page.read_bytes(), sheet.read_bytes()
    write_tune_report(out)
    assert (page.read_bytes(), sheet.read_bytes()) == before


def test_what_alone_matters_is_the_most_important() -> None:
    shares = importances(space(), trials(40))
    assert next(iter(shares)) == RATE and shares[RATE] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert importances(space(), trials(3)) == {}
    assert importances(space(), [replace(trial, value=0.5) for trial in trials(9)]) == {}


def test_costs_are_drawn_with_their_front(tmp_path: Path) -> None:
    own = [replace(trial, cost=1.0 + trial.number) for trial in trials(6)]
    out = folder_of(tmp_path / "out", own, objectives="score-and-training-time")
    text = write_tune_report(out)[0].read_text()
    assert "<figcaption>Pareto front" in text
    assert "<th>seconds of training, all folds</th><th>seconds in all</th>" in text
    assert f"<td>{own[5].value:.4f}</td><td>6</td><td>2</td>" in text
    values = [trial.value or 0.0 for trial in own]
    front = [n for n in range(6) if values[n] > max(values[:n], default=-1.0)]
    assert f"than trials\n{', '.join(map(str, front))}: the Pareto front" in text


def test_the_sheet_has_slices_the_front_and_the_axes_numbers(tmp_path: Path) -> None:
    own = [replace(trial, cost=1.0 + trial.number) for trial in trials(6)]
    search = read_search(folder_of(tmp_path, own, objectives="score-and-training-time"))
    axes = draw_sheet(search, importances(search.space, search.complete)).axes
    labels = [a.get_xlabel() for a in axes]
    assert labels[2] == "seconds of training, all folds"
    assert set(labels[4:]) >= {"learning_rate", "leaves", "statistics"}
    told = {text.get_text() for text in axes[3].texts}
    assert {"0.01", "1", "2", "32", "plain", "all"} <= told
    [key] = [a for a in axes if a.get_ylabel() == "held-out value" and not a.get_xlabel()]
    values = [trial.value or 0.0 for trial in own]
    assert key.get_ylim() == pytest.approx((min(values), max(values)))
    alone = read_search(folder_of(tmp_path / "alone", trials(6)))
    assert len(draw_sheet(alone, {}).axes) == len(axes) - 1


def test_one_trial_makes_a_report(tmp_path: Path) -> None:
    text = write_tune_report(folder_of(tmp_path / "out", trials(1)))[0].read_text()
    assert "Too few trials" in text and "1 complete" in text


def test_failures_alone_make_a_report(tmp_path: Path) -> None:
    own = [without_value(trial, "fail", "out of memory") for trial in trials(3)]
    page, sheet = write_tune_report(folder_of(tmp_path / "out", own))
    assert "No trial has a value" in page.read_text()
    assert "3 × out of memory" in page.read_text()
    assert sheet.stat().st_size > 0


def test_a_running_search_makes_a_report(tmp_path: Path) -> None:
    own = trials(3)
    own[2] = replace(without_value(own[2], "running", None), params={}, seconds=None)
    text = write_tune_report(folder_of(tmp_path / "out", own))[0].read_text()
    assert "has not ended" in text and "2 complete, 1 running" in text


def test_a_baseline_outside_the_space_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    own = trials(6)
    own[0] = replace(own[0], params={LEAVES: 4})
    assert "as given" in write_tune_report(folder_of(tmp_path / "out", own))[0].read_text()


def test_places_are_shares_of_the_range() -> None:
    own = space().parameters
    assert place(own[RATE], 0.1) == pytest.approx(0.5)
    assert place(own[LEAVES], 17) == pytest.approx(0.5)
    assert [place(own[STATISTICS], name) for name in ("plain", "all")] == [0, 1]


def test_the_command_writes_both_files_and_names_what_is_missing(tmp_path: Path) -> None:
    out = folder_of(tmp_path / "out", trials(5))
    told = json.loads(call("tune", "report", "--out", out, "--json"))
    assert Path(told["page"]) == out / "tune.html" and Path(told["sheet"]).exists()
    assert "no such folder; expected the --out of a search" in call(
        "tune", "report", "--out", tmp_path / "none", expect=1
    )
    (out / "trials.json").unlink()
    with pytest.raises(PipelineError, match="comes with the first trial's end"):
        write_tune_report(out)
    assert "--out is missing" in call("tune", "--trials", 3, expect=2)
