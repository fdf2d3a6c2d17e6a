"""What the README tells to type is taken, and does what it is said to do."""

import re
from pathlib import Path

import pytest

from common.settings import ROOT
from models.config.recipe import load_recipe

README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = re.findall(r"--set ([\w.]+=[^\s`]+)", README)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are shown on the web."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert links
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), anchor


def test_every_key_that_is_set_there_is_one_of_a_recipe() -> None:
    assert len(SETTINGS) > 5
    for setting in SETTINGS:
        load_recipe("cpu", [re.sub(r"processes=[24]", "processes=1", setting)])


def test_the_early_stop_can_come_before_the_last_step() -> None:
    settings = [setting for setting in SETTINGS if re.search("early_stop|evaluate_every", setting)]
    training = load_recipe("cpu", settings).cross_config_sage.training
    assert training.early_stop > 0
    # The first evaluation is no worse than any before it, and so many that are have to follow.
    assert (1 + training.early_stop) * training.evaluate_every < training.steps
