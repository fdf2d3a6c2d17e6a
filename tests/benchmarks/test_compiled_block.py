"""The comparison of a block as it is and compiled."""

from typing import Any, NoReturn

import pytest
import torch

from benchmarks.speed import compiled_block


def test_a_compiled_function_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(function: Any) -> Any:
        return lambda y: tuple(2 * z for z in function(y))

    monkeypatch.setattr(torch, "compile", wrong)
    with pytest.raises(AssertionError):
        compiled_block.report(4, rounds=1)


def test_the_same_function_gives_a_line_of_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    line = next(line for line in compiled_block.report(64, rounds=1) if line.startswith("| 128,"))
    assert line.endswith("| 0e+00 |")


def test_a_compiler_that_fails_leaves_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: Any) -> Any:
        def call(y: torch.Tensor) -> NoReturn:
            raise RuntimeError("no compiler")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    assert compiled_block.report(64, rounds=1)[-1].startswith("Not measured: torch.compile fails")
