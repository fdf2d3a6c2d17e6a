"""The catalogue of programs, and users' own functions."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.collect.programs import SPLIT_OF_FAMILY, catalogue, load_program, split_of

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


def test_names_are_unique_and_begin_with_their_family() -> None:
    programs = catalogue()
    assert len({program.name for program in programs}) == len(programs) >= 24
    assert all(program.name.startswith(program.family) for program in programs)


def test_every_family_lies_in_one_source_and_one_split() -> None:
    sources = defaultdict(set)
    for program in catalogue():
        sources[program.family].add(program.source)
        assert split_of(program) in ("train", "valid", "test")
    assert all(len(found) == 1 for found in sources.values())
    assert set(sources) == set(SPLIT_OF_FAMILY)


def test_both_sources_have_all_splits() -> None:
    found = {(program.source, split_of(program)) for program in catalogue()}
    assert found == {(s, split) for s in ("xla", "nlp") for split in ("train", "valid", "test")}


def test_equal_builds_give_equal_arguments() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    for program in catalogue():
        _, first = program.build()
        _, again = program.build()
        for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(one, other)


def test_every_program_traces() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    for program in catalogue():
        function, arguments = program.build()
        outputs = jax.tree.leaves(jax.eval_shape(function, *arguments))
        assert outputs
        assert sum(leaf.size for leaf in jax.tree.leaves(arguments)) < 10_000_000


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_layout_program.py").write_text(OWN_PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_layout_program"


def test_a_users_function_is_loaded_with_its_arguments(own_module: str) -> None:
    program = load_program(f"{own_module}:step")
    assert (program.name, program.family, program.source) == (f"{own_module}.step", "toy", "nlp")
    function, arguments = program.build()
    np.testing.assert_array_equal(function(*arguments), np.full((2, 4), 3))


def test_example_arguments_serve_every_function(own_module: str) -> None:
    function, arguments = load_program(f"{own_module}:other").build()
    assert np.shape(function(*arguments)) == (3, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_program", "not in the catalogue; known: plain_b2"),
        ("no.such.module:step", "cannot be imported: No module named"),
        ("own_layout_program:absent", "has no function absent"),
        ("json:dumps", r"has no dumps_arguments\(\) nor example_arguments\(\)"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(
    own_module: str, name: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        load_program(name)
    assert "\n" not in str(caught.value)


def test_arguments_have_to_be_a_tuple(own_module: str) -> None:
    with pytest.raises(PipelineError, match="are a list; expected a tuple"):
        load_program(f"{own_module}:wrong").build()
