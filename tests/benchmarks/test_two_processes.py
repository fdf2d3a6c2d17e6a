"""One process against two: the page, and the commands themselves."""

from pathlib import Path

import pytest
import torch

from benchmarks.once.two_processes import MODEL, Way, check_same, main, report
from models.training.weights import save_tensors


def test_the_page_compares_medians_job_by_job() -> None:
    ways = [
        Way("a", "one process", [10.0, 30.0, 20.0]),
        Way("a", "two processes", [12.0, 11.0, 90.0]),
        Way("b", "one process", [4.0]),
        Way("b", "two processes", [3.0]),
    ]
    lines = report(ways, ["Same."], steps=60)
    rows = [line for line in lines if line.startswith(("| a", "| b"))]
    assert rows == [
        "| a | one process | 10.0, 30.0, 20.0 | 20.0 | 1.00 |",
        "| a | two processes | 12.0, 11.0, 90.0 | 12.0 | 0.60 |",
        "| b | one process | 4.0 | 4.0 | 1.00 |",
        "| b | two processes | 3.0 | 3.0 | 0.75 |",
    ]
    assert "Same." in lines


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a folder with what two ways have written, the same but for rounding."""
    for way in ("1", "2"):
        (tmp_path / "shards" / way).mkdir(parents=True)
        (tmp_path / "shards" / way / "submission.csv").write_text("ID,TopConfigs\n")
        _write_weights(tmp_path, way, 1.0 + 2**-20 * int(way))
    return tmp_path


def _write_weights(folder: Path, way: str, weight: float, *, flag: bool = True) -> None:
    path = folder / "fabric" / way / f"{MODEL}-seed0" / "model.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, {"weight": torch.tensor([0.5, weight]), "flag": torch.tensor([flag])}, {})


def test_weights_may_differ_by_rounding_alone(both: Path) -> None:
    assert check_same(both, both) == 2**-20
    _write_weights(both, "2", 1.001)
    with pytest.raises(AssertionError, match="weights differ by"):
        check_same(both, both)


def test_flags_among_the_weights_are_compared(both: Path) -> None:
    _write_weights(both, "2", 1.0, flag=False)
    with pytest.raises(AssertionError, match="weights differ by 1"):
        check_same(both, both)


def test_another_submission_is_refused(both: Path) -> None:
    (both / "shards" / "2" / "submission.csv").write_text("ID,TopConfigs\nx,0\n")
    with pytest.raises(AssertionError, match="another submission"):
        check_same(both, both)


@pytest.mark.slow
def test_both_ways_end_alike(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert main(["--rounds", "1", "--steps", "2", "--out", str(page)]) == 0
    assert "give the bytes of one process's submission" in page.read_text()
