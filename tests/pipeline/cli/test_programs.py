"""The command line for programs: lists, and one-line errors."""

import json
import re
from pathlib import Path

import pytest

from autotune.plan import sample_requests
from common.settings import ROOT
from tests.support.command_line import call


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        ((), 2, "expected --program or --plan"),
        (("--program", "a", "--kind", "loop"), 2, "--kind loop: no such value; known: layout, "),
        (("--program", "mlp_b16", "--kind", "tile"), 2, "known: layout, options, fusion"),
        (("--program", "json:codecs"), 2, "is a module; expected a function"),
        (("--program", "mlp_b16", "--device", "npu"), 2, "--device npu: no such value; known: cpu"),
        (("--plan", "huge"), 2, "--plan huge: no such plan; known: sample"),
    ],
)
def test_mistakes_are_one_line(
    options: tuple[str, ...], code: int, line: str, tmp_path: Path
) -> None:
    said = call("collect", *options, "--out", tmp_path, expect=code)
    assert said.startswith("error: ") and line in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_missing_device_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    options = ("--program", "mlp_b16", "--out", tmp_path)
    said = call("collect", *options, "--device", "tpu", expect=1)
    assert "--device tpu: jax finds none here, only " in said and said.count("\n") == 1


def test_programs_are_listed() -> None:
    listed = json.loads(call("collect", "--list", "--json"))
    assert {"program": "mlp_b16", "family": "mlp"} in listed
    assert len(call("collect", "--kind", "options", "--list").splitlines()) == 1 + len(listed)


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    """`make sample` is the command that the Makefile has, with no time to measure in."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (words,) = re.findall(r"-m pipeline collect (--plan sample .*) --out data/raw/sample", makefile)
    options = re.sub(r"--max-minutes \d+", "--max-minutes 0", words)
    said = call("collect", *options.split(), "--out", tmp_path)
    n = len(sample_requests())
    assert f"not done: {n} of {n} graphs; the same command resumes" in said
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"]
