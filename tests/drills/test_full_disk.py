"""A full disk is one line, whatever the stage; with more space --resume ends as if it had been."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.settings import ROOT
from tests.drills.outcome import check_same, check_same_store, contents
from tests.drills.processes import Scene
from tests.kernels.kaggle_machine import has_namespaces

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not has_namespaces(), reason="needs a disk of its own: unshare -rm"),
]

COMMANDS = ("run", "prepare", "train", "predict", "report")


@pytest.fixture(scope="module")
def told(calm: Scene, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The attempts of each command, and under "left" where what they left is."""
    work = tmp_path_factory.mktemp("full")
    words = ["unshare", "-rm", sys.executable, "-m", "tests.drills.full_disk"]
    done = subprocess.run(
        [*words, str(work), str(calm.data), str(calm.out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "left": work / "left"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_line_until_there_is_space(command: str, told: dict[str, Any]) -> None:
    *failed, last = told[command]
    assert last["code"] == 0, last
    assert failed, "the first disk was large enough"
    for attempt in failed:
        errors = [line for line in attempt["lines"] if line.startswith("error: ")]
        assert attempt["code"] == 1 and len(errors) == 1, attempt
        assert errors[0].endswith("No space left on device"), attempt
        assert "/disk" in errors[0], attempt
        assert not any("Traceback" in line for line in attempt["lines"]), attempt


def test_it_failed_in_many_stages(told: dict[str, Any]) -> None:
    stages = {attempt["stage"] for attempt in told["run"][:-1]}
    assert len(stages) >= 4, stages
    assert any(stage.startswith("train ") for stage in stages)


def test_what_is_left_in_the_end_is_as_if_there_had_been_space(
    told: dict[str, Any], calm: Scene
) -> None:
    left: Path = told["left"]
    check_same(left / "run" / "run", calm.out)
    check_same_store(left / "run" / "store", calm.store)
    models = calm.out / "models" / "layout-xla-random"
    assert contents(left / "train" / "m") == {**contents(models), "DONE": b"done\n"}
    drawn = {"report.html", "report.png"}
    assert drawn <= contents(left / "report" / "run").keys()
