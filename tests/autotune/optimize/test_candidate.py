"""The text of decisions."""

from autotune.measure.worker import Decisions
from autotune.optimize.candidate import setting_text


def test_setting_text_has_a_few_layouts_and_only_names_of_many() -> None:
    orders = {"dot": {"input": [1, 0], "kernel": [0, 1]}, "dot.6": {"output": [1, 2, 0]}}
    text = setting_text(
        Decisions({"options": {"fast": True}, "layouts": orders, "kept_apart": ["add"]})
    )
    layouts = "dot input {1,0} kernel {0,1}, dot.6 output {1,2,0}"
    assert text == f"fast=True; layouts: {layouts}; kept apart: add"
    many = {f"dot.{number}": {"output": [1, 0]} for number in range(7)}
    assert setting_text(Decisions({"layouts": many})) == f"layouts: {', '.join(many)}"
