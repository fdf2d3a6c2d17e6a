"""The catalogue of programs, and users' own functions."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.collect.programs.catalogue import catalogue, load_program

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
"""


def test_every_program_traces_and_equal_builds_give_equal_arguments() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    for program in catalogue():
        function, arguments = program.build()
        assert jax.tree.leaves(jax.eval_shape(function, *arguments))
        leaves, again = jax.tree.leaves(arguments), jax.tree.leaves(program.build()[1])
        assert sum(leaf.size for leaf in leaves) < 10_000_000
        for one, other in zip(leaves, again, strict=True):
            np.testing.assert_array_equal(one, other)


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_program", "not in the catalogue, which `collect --list` prints"),
        ("no.such.module:step", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raises_two_lines:step", "cannot be imported: ValueError: one two;"),
        ("ends_the_process:step", "cannot be imported: SystemExit: 3"),
        ("own_layout_program:absent", "holds no 'absent'"),
        ("json:dumps", r"has no dumps_arguments\(\) nor example_arguments\(\)"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(
    own_module: str, name: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        load_program(name)
    assert "\n" not in str(caught.value)
