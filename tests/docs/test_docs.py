"""Links, commands, keys, messages and numbers of the pages exist in the program."""

import json
import re
import shlex
import tomllib
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from benchmarks.results import git
from common.settings import ROOT
from data.manifest import read_manifest
from models.config.recipe import load_recipe
from pipeline import reference
from pipeline.__main__ import app
from submissions.run_report import CollectionReport, RunReport
from tests.support.command_line import call, parse

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
CALL = "fast-or-slow "
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = sorted(
    {
        line.removeprefix(CALL)
        for text in TEXTS.values()
        for language, block in FENCE.findall(text)
        if not language
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith(CALL)
    }
)
COMPETE, FILES, ERRORS = (
    TEXTS[ROOT / "docs" / page]
    for page in ("guides/compete.md", "reference/files.md", "reference/errors.md")
)
PACKAGES = ("common", "data", "models", "submissions", "pipeline")


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as they are shown on the web."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_somewhere(page: object) -> None:
    for path, anchor in LINK.findall(TEXTS[page]):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), anchor


def test_every_command_is_on_a_page() -> None:
    shown = {line.split()[0] for line in COMMANDS}
    assert {*typer.main.get_command(app).commands} <= shown  # type: ignore[attr-defined]


def test_every_page_is_named_by_another() -> None:
    linked = {
        (page.parent / path).resolve()
        for page in PAGES
        for path, _ in LINK.findall(TEXTS[page])
        if path
    }
    assert {page for page in PAGES if page.resolve() not in linked} <= {
        ROOT / "README.md",
        ROOT / "docs" / "index.md",
    }


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_is_taken(line: str) -> None:
    parse(line)


def test_every_key_that_is_set_is_one_of_a_recipe() -> None:
    text = "\n".join(TEXTS.values()).replace("\\\n", " ")
    lines = re.sub(r"--own ([\w.:]+)", r'--set layout.models=["\1"]', text).splitlines()
    overrides = [re.findall(r"--set '?([a-z_.]+=[^\s`']+)", line) for line in lines]
    assert sum(map(bool, overrides)) > 3
    for of_line in overrides:
        load_recipe("leaderboard", of_line)


def test_settings_with_reasons_are_those_of_the_recipe() -> None:
    recipe = load_recipe("leaderboard").model_dump()
    rows = re.findall(r"^\| `([a-z_.]+) = (.+?)` \|", COMPETE, flags=re.MULTILINE)
    assert len(rows) > 5
    for key, value in rows:
        setting = reduce(getitem, key.split("."), recipe)
        assert setting == type(setting)(tomllib.loads(f"value = {value}")["value"]), key


@pytest.mark.parametrize("record", [RunReport, CollectionReport])
def test_every_key_of_a_report_is_on_the_page(record: type[BaseModel]) -> None:
    assert [key for key in record.model_fields if f"`{key}`" not in FILES] == []


def test_every_message_on_the_page_is_one_of_the_program() -> None:
    paths = [path for package in (*PACKAGES, "autotune") for path in (ROOT / package).rglob("*.py")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    section = ERRORS.split("## Frequent errors")[1]
    messages = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(messages) > 10
    assert [message for message in messages if message not in source] == []


def test_the_page_of_commands_is_up_to_date() -> None:
    page = reference.PAGE.read_text(encoding="utf-8")
    assert page == reference.page(), "run `.venv/bin/python -m pipeline.reference`"


def planned(*words: object) -> dict[str, Any]:
    steps = ROOT / "pipeline/planning/steps.json"
    costs: dict[str, Any] = json.loads(call("plan", *words, "--steps", steps, "--json"))
    return costs


def test_the_costs_on_the_page_are_those_of_the_plan() -> None:
    costs = planned("--recipe", "leaderboard-small", "--gpu", "t4")
    for name, value in (("GPU", costs["gpu_hours"]), ("CPU", costs["cpu_hours"])):
        printed = re.findall(rf"^{name} +([\d.]+) h ", COMPETE, flags=re.MULTILINE)
        assert [float(hours) for hours in printed] == [float(f"{value:.2g}")], name


HARDWARE = re.compile(
    r"^\| ([^|]*\d+ cores) \| `([a-z-]+)` \| ([\d.]+) \| (\d+) \| .+$", re.MULTILINE
)
CARDS = {"one T4": ("t4", 1), "two T4": ("t4", 2), "one H100": ("h100", 1)}


def test_hours_and_disk_of_each_hardware_are_those_of_the_plan() -> None:
    rows = HARDWARE.findall(COMPETE)
    assert len(rows) == 5
    assert [row.group() for row in HARDWARE.finditer(TEXTS[ROOT / "README.md"])] == [
        row.group() for row in HARDWARE.finditer(COMPETE)
    ]
    for hardware, recipe, hours, gib in rows:
        gpu, n = next((card for key, card in CARDS.items() if key in hardware), ("none", 1))
        cores = re.search(r"(\d+) cores", hardware)
        assert cores
        costs = planned("--recipe", recipe, "--gpu", gpu, "--gpus", n, "--cores", cores[1])
        assert float(hours) == float(f"{costs['min_run_hours']:.2g}"), hardware
        assert int(gib) == round(sum(costs["disk_bytes"].values()) / 2**30), hardware


def test_revisions_of_results_are_in_the_history() -> None:
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("needs the whole history")
    pages = [page for page in PAGES if page.parent.name == "results" and page.stem != "README"]
    assert pages
    for page in pages:
        revisions = re.findall(
            r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,12}\b", TEXTS[page]
        )
        assert revisions, page
        for revision in revisions:
            full = git("rev-parse", revision).strip()
            assert git("merge-base", full, "HEAD").strip() == full != "", (page, revision)


def test_the_function_of_the_page_on_measuring_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    page = TEXTS[ROOT / "docs" / "guides" / "measure.md"]
    (source,) = re.findall(r"Save this as `my_model\.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
    (line,) = re.findall(r"fast-or-slow (collect [^\n]* --program my_model:step [^\n]*)", page)
    (tmp_path / "my_model.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = shlex.split(line.replace("--configs 30", "--configs 10"))
    done = CliRunner().invoke(app, words)
    manifest = read_manifest(tmp_path / words[words.index("--out") + 1])
    name = "layout:xla:random:my_model.step"
    entry = (manifest["graphs"] | manifest["left_out"])[name]
    assert (entry["family"], entry["n_configs"], entry["failed"]) == ("two_layers", 10, [])
    # Its time may depend too little on layouts.
    assert done.exit_code == int(name in manifest["left_out"])
