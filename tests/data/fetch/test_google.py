"""The command against a server of our own: whole, killed, refused, on a small disk."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.settings import ROOT
from data.fetch.fetch import FetchJob, fetch_google
from data.official.published import PUBLISHED_GRAPHS, Part
from data.tree import find_graphs
from pipeline.cli.data import BASE_VARIABLE
from tests.command_line import call
from tests.data.fetch.conftest import TRAIN, VALID, part_files, tar_bytes, tree_of
from tests.data.fetch.file_server import FileServer, Trouble

MakeJob = Callable[..., FetchJob]
Usage = namedtuple("Usage", "total used free")


def serve(files: FileServer, *parts: Part) -> dict[str, bytes]:
    """Put the parts' archives on the server; return the tree that they hold."""
    wanted = {}
    for part in parts:
        wanted |= part_files(part)
        files.files[f"/{part.stem}.tar"] = tar_bytes(part_files(part))
    return wanted


@pytest.fixture
def two_graphs(files: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BASE_VARIABLE, files.url)
    monkeypatch.setattr("data.fetch.fetch.PUBLISHED_GRAPHS", dict.fromkeys(PUBLISHED_GRAPHS, 2))


def small_disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(10 * free, 9 * free, free))


@pytest.mark.usefixtures("two_graphs")
def test_the_whole_dataset_arrives_and_the_same_command_again_asks_nothing(
    files: FileServer, tmp_path: Path
) -> None:
    wanted = serve(files, *PUBLISHED_GRAPHS)
    text = call("fetch", "--out", tmp_path)
    assert tree_of(tmp_path) == wanted
    assert len(find_graphs(tmp_path)) == len(wanted)
    assert text.endswith(f"data        {tmp_path}\n")
    assert not list((tmp_path / "downloads").glob("*.tar*"))
    n_asked = len(files.asked)
    options = ("--collections", "layout:xla:default", "--splits", "valid,test", "--json")
    told = json.loads(call("fetch", *options, "--out", tmp_path))
    size = sum(map(len, part_files(VALID).values()))
    assert told["parts"][0] == {"part": VALID.label, "graphs": 2, "bytes": size, "was_there": True}
    assert told["next"].endswith(f"audit --data {tmp_path}")
    assert len(files.asked) == n_asked


def test_a_part_that_fails_leaves_those_before_it_done(
    files: FileServer, make_job: MakeJob
) -> None:
    wanted = serve(files, TRAIN, VALID)
    files.will(f"/{VALID.stem}.tar", Trouble(403))
    with pytest.raises(PipelineError, match=rf"{VALID.stem}\.tar: HTTP 403"):
        fetch_google(make_job(TRAIN, VALID), base=files.url)
    done = fetch_google(make_job(TRAIN, VALID), base=files.url)
    assert [part.was_there for part in done] == [True, False]
    assert tree_of(make_job().out) == wanted
    assert len(files.gets(f"/{TRAIN.stem}.tar")) == 1


def test_a_small_disk_is_said_before_anything_is_downloaded(
    files: FileServer, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = serve(files, TRAIN, VALID)
    size = len(files.files[f"/{TRAIN.stem}.tar"])
    small_disk(monkeypatch, 3 * size - 1)  # the first part unpacked, the second one twice
    with pytest.raises(PipelineError, match=r"out: needs 0\.00 GiB, 0\.00 GiB are free"):
        fetch_google(make_job(TRAIN, VALID), base=files.url)
    assert not files.gets(f"/{TRAIN.stem}.tar")
    small_disk(monkeypatch, 3 * size)
    fetch_google(make_job(TRAIN, VALID), base=files.url)
    assert tree_of(make_job().out) == wanted


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--source", "ftp"), "known: google, kaggle"),
        (("--collections", "layout:tpu"), "known: tile:xla"),
        (("--splits", "train,private"), "expected one of train, valid, test"),
    ],
)
def test_wrong_usage_is_exit_2_and_makes_no_folder(
    tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    assert expected in call("fetch", *options, "--out", tmp_path / "out", expect=2)
    assert not (tmp_path / "out").exists()


CHILD = """
import sys
from pathlib import Path
from data.fetch.fetch import FetchJob, fetch_google
from data.official.published import Part
from data.tree import collection_named
part = Part(collection_named("layout:xla:default"), "train")
fetch_google(FetchJob([part], Path(sys.argv[2]), expected={part: 40}), base=sys.argv[1])
"""


@pytest.mark.parametrize(
    ("stage", "signal_number"), [("download", signal.SIGKILL), ("unpack", signal.SIGTERM)]
)
def test_a_killed_process_is_gone_on_with_and_ends_byte_identical(
    files: FileServer, make_job: MakeJob, tmp_path: Path, stage: str, signal_number: signal.Signals
) -> None:
    name, wanted = f"/{TRAIN.stem}.tar", part_files(TRAIN, 40)
    files.files[name] = tar_bytes(wanted)
    if stage == "download":  # stall in the middle
        files.will(name, Trouble(cut_after=2_000_000, stalls=True))
        sign = f"downloads{name}.part-*"
    else:
        sign = f"{TRAIN.folder}/g.3.npz"
    out = tmp_path / "out"
    command = [sys.executable, "-c", CHILD, files.url, str(out)]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ})
    least = 10**6 if stage == "download" else 1
    while not any(path.stat().st_size >= least for path in out.glob(sign)):
        assert child.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    child.send_signal(signal_number)
    child.wait()
    (done,) = fetch_google(make_job(TRAIN, expected={TRAIN: 40}), base=files.url)
    assert done.graphs == 40
    assert tree_of(out) == wanted
    assert not [path for path in (out / TRAIN.folder).iterdir() if path.suffix != ".npz"]
    gets = files.gets(name)
    assert gets[-1].range is not None if stage == "download" else len(gets) == 1
