"""What the README tells to type is taken, and does what it is said to do."""

import re

from models.recipe import load_recipe
from settings import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = re.findall(r"--set ([\w.]+=[^\s`]+)", README)


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
