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
RESULTS = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
LAYOUTS, TILES, UNET = (
    "Layouts of families never seen",
    "Tiles of families never seen",
    "TPU: further configs of unet3d, of 545",
)
ALEXNET = "TPU: tiles of alexnet's kernels, learned on a CPU"
# The section of the accuracy page for each row of the README's table of models.
SECTIONS = {
    **dict.fromkeys(("cross_config_sage", "segment_sage", "tgraph", "baseline_gcn"), LAYOUTS),
    **dict.fromkeys(("layout_boosting", "layout_linear"), LAYOUTS),
    **dict.fromkeys(("late_fusion_sage", "early_fusion_sage"), TILES),
    **dict.fromkeys(("tile_boosting", "tile_linear"), TILES),
    "config_columns_boosting": UNET,
}


# The column of the accuracy page for the metric of a README row, and the page's own names.
COLUMNS = {"Kendall's tau": "tau", "tile score": "tile score"}


def page_cell(title: str, model: str, column: str) -> list[float]:
    """Return the numbers of one cell of the accuracy page: a mean, and perhaps its interval.

    The last table of a section has the intervals. The first one has the same mean.
    """
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line.split("|") for line in section.splitlines() if line.startswith("|")]
    lines = [[text.strip() for text in line] for line in lines]
    starts = [row for row, line in enumerate(lines) if line[1] == "model"]
    assert len(starts) == 2
    cells = []
    for start in starts:
        row = next(line for line in lines[start:] if line[1] == model)
        cells.append(row[lines[start].index(column)])
    cell = cells[-1]
    assert cell.partition(" [")[0] == cells[0]
    return [float(number) for number in re.findall(r"-?\d*\.\d+", cell)]


@pytest.mark.parametrize(
    ("row", "title", "network"),
    [
        ("113 layout", LAYOUTS, "baseline_gcn"),
        ("326 tile", TILES, "early_fusion_sage"),
        ("1 TPU", UNET, "baseline_gcn"),
        ("15 TPU", ALEXNET, "early_fusion_sage"),
    ],
)
def test_all_columns_of_a_result_are_one_column_of_the_page(
    row: str, title: str, network: str
) -> None:
    line = next(line for line in README.splitlines() if line.startswith(f"| {row}"))
    column = COLUMNS[line.split("|")[2].strip()]
    printed = [float(number) for number in re.findall(r"-?\.\d{3}", line)]
    rule, other, ours = (page_cell(title, m, column) for m in ("baseline", network, "default"))
    assert printed == pytest.approx([rule[0], other[0], *ours], abs=5.1e-4)


@pytest.mark.parametrize("model", SECTIONS)
def test_the_score_of_a_model_is_the_pages(model: str) -> None:
    row = next(
        line for line in README.splitlines() if line.startswith("| [`") and f"`{model}`" in line
    )
    column = "tile score" if SECTIONS[model] == TILES else "tau"
    printed = re.findall(r"\.\d{3}", row.split("|")[-2])
    named = re.findall(r"`(\w+)`", row.split("|")[1])
    measured = page_cell(SECTIONS[model], model, column)[0]
    assert float(printed[named.index(model)]) == pytest.approx(measured, abs=5.1e-4)


@pytest.mark.parametrize("row", re.findall(r"^\| \[\w+\.md\].*", RESULTS, re.MULTILINE))
def test_numbers_of_an_answer_are_on_its_page(row: str) -> None:
    page, answer = re.findall(r"\((\w+\.md)\)", row)[0], row.split("|")[3]
    text = (ROOT / "docs" / "results" / page).read_text(encoding="utf-8").replace(",", "")
    values = [abs(float(number)) for number in re.findall(r"-?\d*\.?\d+", text)]
    for number in re.findall(r"(?<![\w.])\d*\.\d+", answer):
        half_a_digit = 0.51 * 10.0 ** -len(number.partition(".")[2])
        assert any(abs(float(number) - value) < half_a_digit for value in values), number


def test_rows_of_a_group_of_speed_have_one_width() -> None:
    """A network may be compared only at the width of the others."""
    text = (ROOT / "docs" / "results" / "speed.md").read_text(encoding="utf-8")
    table = text.split("\n## ")[1]
    header, _, *rows = [line.split("|")[1:-1] for line in table.splitlines() if line[:1] == "|"]
    assert header[0].strip() == "n, c, width"
    groups = {row[0].strip() for row in rows if row[1].strip() == "tgraph"}
    assert groups <= {row[0].strip() for row in rows if row[1].strip() == "cross_config_sage"}
