"""Check the README: its length, an installation, and the scores of its table."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


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
