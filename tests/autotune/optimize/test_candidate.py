"""The text of decisions, the status of a candidate, and intervals over processes."""

from dataclasses import replace

import numpy as np
import pytest

from autotune.measure.program import Decisions
from autotune.optimize.candidate import (
    Comparison,
    OptimizeCandidate,
    Ratio,
    Setting,
    Status,
    pool_ratios,
    setting_text,
)
from autotune.optimize.optimize import _distinct


def test_setting_text_has_a_few_layouts_and_only_names_of_many() -> None:
    orders = {"dot": {"input": [1, 0], "kernel": [0, 1]}, "dot.6": {"output": [1, 2, 0]}}
    text = setting_text(
        Decisions({"options": {"fast": True}, "layouts": orders, "kept_apart": ["add"]})
    )
    layouts = "dot input {1,0} kernel {0,1}, dot.6 output {1,2,0}"
    assert text == f"fast=True; layouts: {layouts}; kept apart: add"
    many = {f"dot.{number}": {"output": [1, 0]} for number in range(7)}
    assert setting_text(Decisions({"layouts": many})) == f"layouts: {', '.join(many)}"


SAME = Ratio(1.0, 0.99, 1.01)


def compared(value: float, half: float, same: Ratio = SAME) -> Comparison:
    return Comparison(Ratio(value, value - half, value + half), same, 4, 40, 1.0)


NOISY = compared(0.97, 0.1, Ratio(1.0, 0.8, 1.25))


@pytest.mark.parametrize(
    ("alone", "together", "status", "why_not"),
    [
        (compared(0.5, 0.1), compared(0.8, 0.02), Status.FASTER, ""),
        (compared(0.5, 0.1), compared(0.995, 0.02), Status.FASTER, ""),
        (compared(0.5, 0.1), compared(1.0, 0.3), Status.UNDECIDED, "undecided whether it is a l"),
        (compared(0.5, 0.1), None, Status.UNDECIDED, "undecided whether it is a loss"),
        (compared(0.5, 0.1), compared(1.13, 0.02), Status.LOSS, "on all cores it is a loss"),
        (compared(0.97, 0.02), None, Status.UNDECIDED, "undecided: the confirmed candidate does n"),
        (compared(1.0, 0.01), None, Status.NO_GAIN, "the confirmed candidate does not surely gain"),
        (compared(0.98, 0.004), None, Status.NO_GAIN, "the confirmed candidate does not surely"),
        (
            NOISY,
            None,
            Status.UNDECIDED,
            "undecided: the confirmed candidate does not surely gain 25",
        ),
        (compared(1.04, 0.02), None, Status.SLOWER, "the confirmed candidate is slower"),
    ],
)
def test_status_follows_from_the_measurements(
    alone: Comparison, together: Comparison | None, status: Status, why_not: str
) -> None:
    own = OptimizeCandidate((1,), "menu", alone=alone, together=together)
    assert own.status is status and own.why_not.startswith(why_not)
    assert bool(own.why_not) == (status is not Status.FASTER)
    if alone.gains:
        assert replace(own, together=None, needs_all_cores=False).status is Status.FASTER


def test_candidates_of_equal_code_are_one_and_the_simplest_wins() -> None:
    def code(setting: Setting) -> str:
        return str(setting[:2])  # the last knob changes nothing

    tried = [(0, 0, 1), (1, 0, 1), (1, 0, 0), (2, 0, 1), (3, 1, 0), (2, 1, 0)]
    ordered = [OptimizeCandidate(setting, "menu") for setting in tried]
    found = [c.setting for c in _distinct(ordered, (0, 0, 0), code, 3)]
    assert found == [(1, 0, 0), (2, 0, 1), (3, 1, 0)]


def test_pooled_interval_covers_the_truth_if_processes_differ() -> None:
    """The truth is .9; processes differ by 8 %, rounds of one process by 1 %."""
    rng = np.random.default_rng(0)
    n_covered = 0
    for _ in range(400):
        process = 0.9 * np.exp(0.08 * rng.normal(size=3))
        rounds = process[:, None] * np.exp(0.01 * rng.normal(size=(3, 14)))
        found = pool_ratios([float(np.median(own)) for own in rounds])
        n_covered += found.low <= 0.9 <= found.high
    assert n_covered >= 0.93 * 400
