"""The example on the documented program: configs are ranked, measured and compared."""

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from common.settings import ROOT
from examples.rank_jax_function import main
from tests.command_line import call

PAGE = (ROOT / "docs" / "collect.md").read_text(encoding="utf-8")

app = typer.Typer()
app.command()(main)


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    words = ("--run", tmp_path / "none", "--program", "mlp_b16")
    for more, code, expected in (
        ((), 1, f"{tmp_path / 'none'}: no such folder"),
        (("--kind", "loop"), 2, "--kind loop: no such value"),
    ):
        given, said = run(*words, *more)
        assert (given, said.count("\n")) == (code, 1)
        assert expected in said


@pytest.mark.slow
def test_the_picks_of_the_documented_program_are_measured(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    words = ("--collection", "layout:xla:random", "--model", "cross_config_sage")
    call("train", "--data", tiny_tree, *words, "--recipe", "smoke", "--out", tmp_path)
    (source,) = re.findall(r"Save this as `my_model\.py`:\n\n```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "my_model.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = ("--run", tmp_path / "cross_config_sage-seed0", "--program", "my_model:step")
    code, said = run(*model, "--candidates", 40, "--measured", 6, "--rounds", 2)
    assert code == 0, said
    lines = [line for line in said.splitlines() if not line.startswith("stage: ")]
    assert [line.split()[0] for line in lines[1:6]] == ["1", "2", "3", "4", "5"]
    (known,) = re.findall(r"best pick / best known ([0-9.]+)", said)
    assert float(known) >= 1
    assert "ranked       40 configs" in said
