"""Run the commands of the README that need no account and no dataset."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.support.command_line import python_in

README = (ROOT / "README.md").read_text(encoding="utf-8")
CALL = "fast-or-slow "
# These need an account on Kaggle, the dataset, or a program of the reader's.
ELSEWHERE = ("data/raw/tpugraphs", "submission upload", "my_model:step")


def blocks(language: str, page: str = README) -> list[str]:
    """Return the texts of the fenced blocks of a language; a shell's blocks have none."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for named, text in fences if named == language]


SHELL = [line for block in blocks("") for line in block.splitlines()]
RUN = [
    line for line in SHELL if line.startswith(CALL) and not any(word in line for word in ELSEWHERE)
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README has it after `make run`, which is called with the recipe smoke."""
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip("make run is tested in the environment that it makes: make test")
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "data").mkdir()
    (folder / "data" / "sample").symlink_to(ROOT / "data" / "sample")
    (folder / "runs").mkdir()
    (folder / "runs" / "first").symlink_to(folder / "runs" / "smoke")
    assert "make run" in SHELL
    out = f"OUT={folder / 'runs' / 'smoke'}"
    done = subprocess.run(
        ["make", "run", "RECIPE=smoke", out], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for shown in ("collection ", "mean ", "submission ", "report "):
        assert any(line.startswith(shown) for line in done.stdout.splitlines()), shown
    return folder


@pytest.mark.parametrize("line", RUN)
def test_a_command_that_needs_nothing_else_runs(workplace: Path, line: str) -> None:
    assert python_in(workplace, "-m", "pipeline", *shlex.split(line.removeprefix(CALL)))


def test_the_example_in_python_runs(workplace: Path) -> None:
    (example,) = blocks("python")
    lines = python_in(workplace, "-c", example).splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("name", ["api.md", "files.md"])
def test_an_example_of_the_reference_runs(workplace: Path, name: str) -> None:
    page = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    (example,) = blocks("python", page)
    assert python_in(workplace, "-c", example)


def test_every_line_of_a_shell_block_is_a_command_that_is_tested() -> None:
    assert len(RUN) >= 2
    others = [line for line in SHELL if line not in RUN]
    targets = ("make run", "make test", "make setup-collect")
    assert all(line in targets or line.startswith(CALL) for line in others)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.slow
def test_an_editable_install_in_a_fresh_environment_works_from_any_folder(tmp_path: Path) -> None:
    fresh, elsewhere = tmp_path / "fresh", tmp_path / "elsewhere"
    (elsewhere / "data").mkdir(parents=True)  # hides nothing
    subprocess.run([sys.executable, "-m", "venv", fresh], check=True)
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--python", fresh]
    subprocess.run([*uv, "-e", ROOT, "-c", ROOT / "constraints.txt"], check=True)
    python = fresh / "bin" / "python"
    for words in (["-m", "pipeline", "--help"], ["-c", "from ensembles import rank; rank"]):
        done = subprocess.run([python, *words], cwd=elsewhere, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()


PAGE = (ROOT / "docs" / "results" / "accuracy.md").read_text(encoding="utf-8")
LAYOUTS, TILES, UNET = (
    "Layouts of families never seen",
    "Tiles of families never seen",
    "TPU: further configs of unet3d, of 545",
)
# Rows of the table of models: the section of the accuracy page, and the name there.
ROWS = {
    "cross_config_sage": (LAYOUTS, "network"),
    "segment_sage": (LAYOUTS, "segments"),
    "tgraph": (LAYOUTS, "tgraph"),
    "baseline_gcn": (LAYOUTS, "gcn"),
    "layout_boosting": (LAYOUTS, "boosting"),
    "layout_linear": (LAYOUTS, "linear"),
    "config_columns_boosting": (UNET, "columns"),
    "late_fusion_sage": (TILES, "network"),
    "early_fusion_sage": (TILES, "early-join"),
    "tile_boosting": (TILES, "boosting"),
    "tile_linear": (TILES, "linear"),
}


@pytest.mark.parametrize("model", ROWS)
def test_the_score_of_a_model_is_the_pages(model: str) -> None:
    title, name = ROWS[model]
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    measured = re.search(rf"^\| {name} \| \d+ \| (\S+)", section, re.MULTILINE)
    row = next(
        line for line in README.splitlines() if line.startswith("| [`") and f"`{model}`" in line
    )
    told = re.findall(r"\.\d{3}", row.split("|")[-2])
    named = re.findall(r"`(\w+)`", row.split("|")[1])
    assert measured
    assert float(told[named.index(model)]) == pytest.approx(float(measured[1]), abs=5.1e-4)
