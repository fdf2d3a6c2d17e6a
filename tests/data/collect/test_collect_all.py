"""Several graphs are measured into one tree, at once where asked."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import PipelineError, UsageError
from common.locks import alone_in
from common.progress import log
from data.collect.collect import collect_jobs
from data.collect.job import JOURNALS
from data.collect.manifest import read_manifest
from data.read import read_graph
from data.tree import find_graphs
from data.withheld import read_withheld
from tests.data.collect.fakes import SpinSource, layout_job

N_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
needs_two_cores = pytest.mark.skipif(N_CORES < 2, reason="one core: programs would disturb others")


@needs_two_cores
def test_two_workers_measure_every_graph_once_into_one_manifest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [
        layout_job(program=f"spin_b{batch}", n_configs=6, split=split, family=split)
        for batch, split in enumerate(("train", "test") * 3)
    ]
    with caplog.at_level(logging.INFO, log.name):
        outcomes = collect_jobs(jobs, tmp_path, remeasure=True, workers=2)
    assert [outcome.job.program for outcome in outcomes] == [job.program for job in jobs]
    manifest = read_manifest(tmp_path)
    assert set(manifest["graphs"]) == {job.submission_id for job in jobs}
    assert all(entry["again_tau"] is not None for entry in manifest["graphs"].values())
    assert set(read_withheld(tmp_path)) == {j.submission_id for j in jobs if j.split == "test"}
    assert [read_graph(file).n_configs for file in find_graphs(tmp_path)] == [6] * 6
    assert sorted(line.split()[0] for line in caplog.messages) == [f"{n}/6" for n in range(1, 7)]


@needs_two_cores
def test_a_program_that_cannot_be_opened_stops_no_other_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [layout_job(program=f"spin_b{batch}", n_configs=4) for batch in range(3)]
    broken = layout_job(SpinSource(broken=True), program="broken")
    with caplog.at_level(logging.INFO, log.name):
        outcomes = collect_jobs([broken, *jobs], tmp_path, workers=2)
    assert [outcome.job.program for outcome in outcomes] == [job.program for job in jobs]
    assert any("no such device" in line for line in caplog.messages)


@needs_two_cores
def test_a_full_disk_stops_all_workers_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise PipelineError("spin.npz: cannot be written: No space left on device")

    monkeypatch.setattr("data.collect.collect.write_graph", full)
    jobs = [layout_job(program=f"spin_b{batch}", n_configs=4) for batch in range(8)]
    with pytest.raises(PipelineError, match="No space left on device"):
        collect_jobs(jobs, tmp_path, workers=2)
    assert not (tmp_path / "npz").exists()


def test_more_workers_than_cores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"expected at most {N_CORES}"):
        collect_jobs([layout_job()], tmp_path / "out", workers=N_CORES + 1)
    assert not (tmp_path / "out").exists()


def test_a_second_process_in_one_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNALS).mkdir()
    with (
        alone_in(tmp_path / JOURNALS),
        pytest.raises(UsageError, match="another process works in it"),
    ):
        collect_jobs([layout_job()], tmp_path)


INTERRUPTED = """
from pathlib import Path
from data.collect.collect import collect_jobs
from tests.data.collect.fakes import layout_job
jobs = [layout_job(program=f"spin_b{{batch}}", n_configs=200) for batch in range(4)]
collect_jobs(jobs, Path({out!r}), workers={workers})
"""


def test_ctrl_c_ends_soon_and_no_config_counts_as_failed(tmp_path: Path) -> None:
    code = INTERRUPTED.format(out=str(tmp_path), workers=min(2, N_CORES))
    process = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while sum(path.read_bytes().count(b"\n") for path in tmp_path.rglob("*.jsonl")) < 8:
        assert time.monotonic() < deadline, "nothing is measured"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.wait(timeout=20)
    assert process.returncode != 0
    lines = [line for path in tmp_path.rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) >= 8
    assert not [line for line in lines if '"failed"' in line]
