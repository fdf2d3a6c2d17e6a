"""The catalogue of programs, and functions of a user."""

from pathlib import Path

import numpy as np
import pytest

from autotune.programs.catalogue import catalogue
from autotune.programs.files import load_program
from common.errors import PipelineError

OWN_PROGRAM = """
import numpy as np

FAMILY = "toy"
SOURCE = "nlp"

def step(weights, x):
    return x @ weights["w"]

def step_arguments():
    return {"w": np.ones((3, 4), np.float32)}, np.ones((2, 3), np.float32)

def other(x):
    return x.T @ x

def example_arguments():
    return (np.ones((2, 3), np.float32),)

def wrong(x):
    return x

def wrong_arguments():
    return [1]

def failing(x):
    return x

def failing_arguments():
    raise OSError("no\\ndata")
"""


def test_programs_of_every_family_trace_and_equal_builds_give_equal_arguments() -> None:
    """All programs, of other sizes, are compiled in a slow test of test_spaces.py."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    programs = {p.family: p for p in sorted(catalogue(), key=lambda p: "_train_" in p.name)}
    for place, program in enumerate(programs.values()):
        function, arguments = program.build()
        assert jax.tree.leaves(jax.eval_shape(function, *arguments))
        leaves = jax.tree.leaves(arguments)
        assert sum(leaf.size for leaf in leaves) < 10_000_000
        if place % 8 == 0:
            again = jax.tree.leaves(program.build()[1])
            assert all(map(np.array_equal, leaves, again)) and len(leaves) == len(again)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_layout_program.py").write_text(OWN_PROGRAM)
    (tmp_path / "raises_two_lines.py").write_text('raise ValueError("one\\ntwo")')
    (tmp_path / "ends_the_process.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_layout_program"


def test_a_users_function_is_loaded_with_its_arguments_or_those_of_all(own_module: str) -> None:
    program = load_program(f"{own_module}:step")
    assert (program.name, program.family, program.source) == (f"{own_module}.step", "toy", "nlp")
    function, arguments = program.build()
    np.testing.assert_array_equal(function(*arguments), np.full((2, 4), 3))
    function, arguments = load_program(f"{own_module}:other").build()
    assert np.shape(function(*arguments)) == (3, 3)
    with pytest.raises(PipelineError, match="are a list; expected a tuple"):
        load_program(f"{own_module}:wrong").build()
    with pytest.raises(
        PipelineError, match=r"failing: failing_arguments\(\) fails: OSError: no data"
    ):
        load_program(f"{own_module}:failing").build()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_program", "not in the catalogue, which `collect --list` prints"),
        ("no.such.module:step", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raises_two_lines:step", "cannot be imported: ValueError: one two;"),
        ("ends_the_process:step", "cannot be imported: SystemExit: 3"),
        ("own_layout_program:absent", "holds no 'absent'; it has .*step"),
        ("json:dumps", r"has no dumps_arguments\(\) nor example_arguments\(\)"),
        ("json:codecs", "is a module; expected a function$"),
    ],
)
def test_programs_that_cannot_be_loaded_are_one_line_errors(
    own_module: str, name: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        load_program(name)
    assert "\n" not in str(caught.value)
