"""The overview is a picture whose size follows what there is to show."""

import struct
from pathlib import Path
from typing import Any

import polars as pl

from submissions.report.pictures import DPI, ROW_INCHES, WIDTH_INCHES, write_overview
from submissions.score import score_submission
from tests.submissions.pages import illustrated_report, scored_report


def size_of(report: dict[str, Any], ranks: pl.DataFrame | None, path: Path) -> tuple[int, int]:
    write_overview(report, ranks, path)
    content = path.read_bytes()
    write_overview(report, ranks, path)
    assert path.read_bytes() == content
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_a_row_for_scores_and_one_for_each_judged_collection(tmp_path: Path) -> None:
    report, ranks = illustrated_report()
    expected = (round(WIDTH_INCHES * DPI), round(3 * ROW_INCHES * DPI))
    assert size_of(report, ranks, tmp_path / "report.png") == expected
    write_overview(report, None, tmp_path / "without.png")
    assert (tmp_path / "report.png").read_bytes() != (tmp_path / "without.png").read_bytes()


def test_without_pictures_or_labels_it_still_renders(tmp_path: Path) -> None:
    assert size_of(scored_report(), None, tmp_path / "a.png")[1] == round(3 * ROW_INCHES * DPI)
    empty = score_submission({}, {})
    assert size_of(empty, None, tmp_path / "b.png")[1] == round(ROW_INCHES * DPI)
