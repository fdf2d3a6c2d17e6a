"""Mean, deviation and range over submissions against numbers by hand."""

from typing import Any

import pytest

from submissions.compare import seed_spread

X, N, T = "layout:xla:default", "layout:nlp:random", "tile:xla"


def report(score: float | None, **values: float | None) -> dict[str, Any]:
    names = {"x": X, "n": N, "t": T}
    parts = {names[key]: {"value": value} for key, value in values.items()}
    return {"score": score, "collections": parts}


def test_the_figures_by_hand() -> None:
    spread = seed_spread(
        [report(0.4, x=0.1, t=0.7), report(0.5, x=0.2, t=0.8), report(0.9, x=0.6, t=1.2)]
    )
    found = spread.collections[X]
    assert found is not None
    assert list(found) == ["mean", "sd", "min", "max"]
    assert found["mean"] == pytest.approx(0.3)
    assert found["sd"] == pytest.approx(((0.2**2 + 0.1**2 + 0.3**2) / 2) ** 0.5)
    assert (found["min"], found["max"]) == (0.1, 0.6)
    assert spread.score is not None
    assert spread.score["mean"] == pytest.approx(0.6)
    assert spread.score["sd"] == pytest.approx(found["sd"])  # each score is x + 0.3
    assert spread.answered_by_some == []


def test_what_one_answers_and_another_does_not_has_no_spread() -> None:
    reports = [report(0.4, x=0.4, n=None, t=None), report(0.5, x=0.6, n=0.4, t=None)]
    spread = seed_spread(reports)
    assert spread.collections[N] is spread.collections[T] is None
    assert spread.collections[X] is not None
    assert spread.answered_by_some == [N]  # nobody answers tiles: nothing to remark
    assert spread.score is None  # a mean of one collection beside a mean of two


def test_nothing_judged_at_all() -> None:
    spread = seed_spread([report(None, x=None)] * 2)
    assert (spread.collections, spread.score, spread.answered_by_some) == ({X: None}, None, [])


def test_one_report_has_no_spread() -> None:
    with pytest.raises(ValueError, match="at least two"):
        seed_spread([report(0.4, x=0.4)])
