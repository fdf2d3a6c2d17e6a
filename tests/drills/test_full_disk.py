"""A full disk is one line, whatever the stage; with more space --resume ends as if it had been."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.drills.outcome import check_same, check_same_store
from tests.drills.processes import Scene


def has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    script = 'd=$(mktemp -d) && mount -t tmpfs tmpfs "$d" && exec chroot / true'
    tried = ["unshare", "-rmn", "sh", "-c", script]
    return not subprocess.run(tried, capture_output=True, check=False, timeout=20).returncode


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has_namespaces(), reason="needs a disk of its own: unshare -rm")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_line_until_there_is_space(
    workers: int, calm: Scene, tmp_path: Path
) -> None:
    words = ["unshare", "-rm", sys.executable, "-m", "tests.drills.full_disk"]
    done = subprocess.run(
        [*words, str(tmp_path), str(calm.data), str(workers)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *failed, last = json.loads(done.stdout)
    assert last["code"] == 0, last
    for attempt in failed:
        errors = [line for line in attempt["lines"] if line.startswith("error: ")]
        assert attempt["code"] == 1 and len(errors) == 1, attempt
        assert errors[0].endswith("No space left on device"), attempt
        assert "/disk" in errors[0], attempt
        assert not any("Traceback" in line for line in attempt["lines"]), attempt
    stages = {attempt["stage"] for attempt in failed}
    assert len(stages) >= 4 and any(stage.startswith("train ") for stage in stages), stages
    check_same(tmp_path / "left" / "run", calm.out)
    check_same_store(tmp_path / "left" / "store", calm.store)
