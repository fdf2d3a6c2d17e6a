"""Every command of docs/reproduce.md and of the README's blocks is one that the program takes."""

import json
import re
import shlex

import pytest
import typer

from common.settings import ROOT
from models.config.recipe import load_recipe
from pipeline.__main__ import app
from tests.command_line import call

PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
CALL = ".venv/bin/python -m pipeline "
COMMANDS = [line.removeprefix(CALL) for line in PAGE.splitlines() if line.startswith(CALL)]
README = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
SHOWN = [line.removeprefix(CALL) for line in README.splitlines() if line.startswith(CALL)]


def parse(line: str) -> None:
    """Let the command line take its arguments, and run nothing.

    Raises:
        LookupError: no such command.
        Exception: of typer; no such option, or one that is missing.
    """
    command = typer.main.get_command(app)
    words = shlex.split(line)
    while (commands := getattr(command, "commands", None)) and not words[0].startswith("-"):
        command = commands[words.pop(0)]
    command.make_context("pipeline", words)


@pytest.mark.parametrize("line", sorted({*COMMANDS, *SHOWN}))
def test_the_command_is_taken(line: str) -> None:
    parse(line)


def test_all_stages_of_the_way_are_there() -> None:
    stages = {line.split()[0] for line in COMMANDS}
    assert {"fetch", "audit", "prepare", "plan", "run", "train", "kernel", "dataset"} <= stages
    assert {"score", "submission"} <= stages


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(LookupError, match="fetsch"):
        parse("fetsch --out DIR")
    with pytest.raises(Exception, match="No such option: --memry"):
        parse("plan --memry 16")


def test_every_key_that_is_set_there_is_one_of_the_recipe() -> None:
    settings = re.findall(r"--set ([\w.]+=[^\s`]+)", PAGE)
    assert settings
    for setting in settings:
        load_recipe("leaderboard", [setting])


def test_the_costs_on_the_page_are_those_of_the_plan() -> None:
    made = json.loads(call("plan", "--recipe", "leaderboard", "--json"))["total"]
    for name, value in (("GPU", made["gpu_hours"]), ("CPU", made["cpu_hours"])):
        told = re.search(rf"^{name} +([\d.]+) hours", PAGE, flags=re.MULTILINE)
        assert told, name
        assert float(told[1]) == pytest.approx(value, abs=0.06)


def test_the_sessions_on_the_page_are_those_of_the_plan() -> None:
    (line,) = [line for line in COMMANDS if line.startswith("plan") and "--gpu-hours" in line]
    words = shlex.split(line)
    made = json.loads(call(*words[: words.index("--out")], "--json"))
    hours = [session["hours"] for session in made["sessions"]]
    ranking = [s["hours"] for s in made["sessions"] if s["collection"] == "all"]
    weeks = made["sessions"][-1]["week"]
    text = " ".join(PAGE.split())
    assert f"The third leaves {made['seeds']} of 5 seeds" in text
    assert f"{len(hours)} sessions in {weeks} weeks, {sum(hours):.0f} GPU hours" in text
    assert f"The last {len(ranking)} of them, which rank" in text
    assert f"take {sum(ranking):.1f} hours" in text
