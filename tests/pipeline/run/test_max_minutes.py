"""`--max-minutes`: one line, exit code 0, no DONE mark, and the same bytes once resumed."""

from pathlib import Path

from common.settings import SAMPLE
from tests.command_line import call


def test_a_run_that_is_out_of_time_goes_on_later(tmp_path: Path) -> None:
    arguments = ["train", "--data", SAMPLE, "--collection", "layout:xla:random"]
    arguments += ["--recipe", "smoke", "--model", "cross_config_sage", "--set", "threads=1"]
    said = call(*arguments, "--out", tmp_path / "a", "--max-minutes", 0)
    stops = [line for line in said.splitlines() if "--max-minutes" in line]
    assert len(stops) == 1
    assert "--resume" in stops[0]
    assert not list(tmp_path.glob("a/*/DONE"))
    call(*arguments, "--out", tmp_path / "a", "--resume")
    call(*arguments, "--out", tmp_path / "b")
    for name in ("metrics.jsonl", "model.safetensors"):
        first, second = (next(tmp_path.glob(f"{run}/*/{name}")) for run in "ab")
        assert first.read_bytes() == second.read_bytes()
