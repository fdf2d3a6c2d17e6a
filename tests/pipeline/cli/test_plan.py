"""The command `plan`: its output and its errors."""

import json
import re
from pathlib import Path

import pytest

from pipeline.planning import costs as step_costs
from tests.support.command_line import call

SMALL = ("--recipe", "smoke", "--set", "cross_config_sage.hidden=8")
LINEAR = ("--set", "layout.models=[layout_linear]", "--set", "tile.models=[tile_linear]")


@pytest.fixture(autouse=True)
def _without_measurements_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(step_costs, "MEASURED_HERE", tmp_path / "none.json")


def test_without_a_gpu_the_steps_are_those_of_a_processor() -> None:
    text = call("plan", *SMALL)
    assert "layout:nlp:random" in text and "GPU   " not in text
    assert re.search(r"^steps +measured on one thread of an AMD EPYC$", text, re.MULTILINE)


def test_each_factor_of_the_hours_is_in_the_table() -> None:
    made = json.loads(call("plan", "--recipe", "leaderboard", "--gpu", "t4", "--json"))
    for row in made["models"]:
        if row["on_gpu"]:
            slower_ms = max(row["step_ms"], row["host_ms"])
            assert row["train_hours"] * 3.6e6 >= 0.99 * row["steps"] * slower_ms
    networks = [row for row in made["models"] if row["on_gpu"]]
    hours = sum(row["runs"] * row["train_hours"] + row["rank_hours"] for row in networks)
    assert made["gpu_hours"] == pytest.approx(hours)
    text = call("plan", *SMALL, "--gpu", "t4")
    assert re.search(r"^recipe +\S+, \d seeds$", text, re.MULTILINE)
    for line in ("raw data", "store", "run files"):
        assert re.search(rf"^{line} +[\d.]+ [GM]iB$", text, re.MULTILINE)
    assert "computed: bytes of a step / 250 GB/s of the t4" in text


def test_measured_steps_decide_the_card_and_the_time(tmp_path: Path) -> None:
    step = {"model": "cross_config_sage", "nodes": 1000, "configs": 128, "hidden": 128}
    step |= {"precision": "bfloat16", "step_ms": 1e9, "host_ms": 1.0}
    file = tmp_path / "steps.json"
    file.write_text(json.dumps({"card": "NVIDIA H200", "steps": [step]}))
    plan = json.loads(call("plan", *SMALL, "--steps", file, "--json"))
    assert plan["card"]["name"] == "h200"
    assert plan["gpu_hours"] > 1
    assert "measured on NVIDIA H200" in plan["steps"]


def test_the_run_has_a_lower_bound_on_all_cards_and_cores() -> None:
    run = r"^run +at least [\d.]+ (s|min|h) on 3 t4 and 5 cores$"
    text = call("plan", *SMALL, "--gpu", "t4", "--gpus", 3, "--cores", 5)
    assert re.search(run, text, re.MULTILINE)
    one_core = json.loads(call("plan", "--recipe", "smoke", "--cores", 1, *LINEAR, "--json"))
    assert one_core["min_run_hours"] == pytest.approx(one_core["cpu_hours"])


def test_a_network_that_does_not_fit_the_card_has_keys_to_halve() -> None:
    text = call("plan", "--recipe", "reference", "--gpu", "t4")
    key = 'collection."layout:xla:random".tgraph.configs_per_step (now 128)'
    told = rf"^tgraph needs \d+ GiB of 14\.6 GiB to train: halve one of\n  {re.escape(key)}\n"
    assert re.search(told, text, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--gpu", "None"), "there is no GPU; pass --gpu NAME"),
        (("--set", "accelerator=cpu"), "the recipe uses no GPU"),
    ],
)
def test_two_gpus_that_are_not_there_are_one_line(words: tuple[str, ...], reason: str) -> None:
    text = call("plan", "--gpus", 2, *words, expect=2)
    assert f"--gpus 2: {reason}" in text and text.count("\n") == 1
