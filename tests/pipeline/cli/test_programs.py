"""The command line for programs: a kernel end to end, custom modules and one-line errors."""

import json
import re
from pathlib import Path

import pytest

from autotune.job import sample_jobs
from autotune.tiles.catalogue import catalogue
from common.settings import ROOT
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import TileGraph
from data.tree import find_graphs
from tests.support.command_line import call

OWN_KERNEL = """
from autotune.tiles.kernel import Operand, TileKernel

def kernel():
    return TileKernel(
        name="doubled", family="mine", extents={"a": 256, "b": 192},
        operands=(Operand("ab"),), output="ab", tiled="ab", combine=lambda x: x * 2,
    )

number = 7
"""


def test_a_kernel_of_ones_own_end_to_end_and_not_taken_for_an_edited_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    module = tmp_path / "own_kernels.py"
    module.write_text(OWN_KERNEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ("--kind", "tile", "--program", "own_kernels:kernel", "--configs", 12)
    place = ("--out", tmp_path / "data", "--device", "cpu")
    words = ("collect", *options, *place, "--json")
    entry = json.loads(call(*words))["tile:xla:doubled"]
    assert entry["n_configs"] == 12
    assert entry["failed"] == []
    assert entry["spread"] >= 1.2
    graph = read_graph(find_graphs(tmp_path / "data")[0])
    assert isinstance(graph, TileGraph)
    assert graph.n_configs == 12
    assert set(graph.node_opcode.tolist()) >= {63, 59}  # parameter, multiply
    assert (graph.config_feat[:, 8:10] <= [256, 192]).all()
    assert len(entry["function"]) == 16 and entry["n_modules"] == 12
    assert json.loads(call(*words))["tile:xla:doubled"] == entry
    module.write_text(OWN_KERNEL.replace("x * 2", "x * 3"))  # of the same graph
    said = call(*words[:-1], expect=2)
    assert "the program was edited after its measurement; give another --out" in said


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        ((), 2, "expected --program or --plan"),
        (("--program", "a", "--kind", "loop"), 2, "--kind loop: no such value; known: layout, "),
        (("--program", "softmax", "--kind", "tile"), 1, "no such kernel; --list names all"),
        (("--program", "nowhere:x", "--kind", "tile"), 1, "cannot be imported: ModuleNotFound"),
        (("--program", "json:codecs"), 2, "a TileKernel is of --space tiles, in collect of --kind"),
        (
            ("--program", "json:codecs", "--kind", "tile"),
            2,
            "see docs/guides/measure.md",
        ),
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
    options = ("--program", "softmax_h8_q128_s128", "--kind", "tile", "--out", tmp_path)
    said = call("collect", *options, "--device", "tpu", expect=1)
    assert "--device tpu: jax finds none here, only " in said and said.count("\n") == 1


def test_programs_are_listed() -> None:
    assert len(call("collect", "--kind", "tile", "--list").splitlines()) == 1 + len(catalogue())
    listed = json.loads(call("collect", "--kind", "tile", "--list", "--json"))
    assert {"program": "softmax_h8_q128_s128", "family": "softmax"} in listed
    assert len(listed) == len(catalogue())


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    """`make sample` is the command that the Makefile has, with no time to measure in."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (words,) = re.findall(r"-m pipeline collect (--plan sample .*) --out data/raw/sample", makefile)
    options = re.sub(r"--max-minutes \d+", "--max-minutes 0", words)
    said = call("collect", *options.split(), "--out", tmp_path)
    n = len(sample_jobs())
    assert f"not done: {n} of {n} graphs; the same command resumes" in said
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"]
