"""What was pushed is not sent again, pushes wait for each other, and nothing is left behind."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.kaggle.scratch import private_place, scratch_folder
from common.settings import ROOT
from tests.fake_kaggle import Answer
from tests.fake_kaggle_datasets import FakeKaggleDatasets
from tests.kernels.dataset_folders import ID, Push, change_metadata, creations, failure
from tests.kernels.test_verbose import CODE


def test_the_same_content_is_not_sent_again(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path
) -> None:
    first = push()
    assert push() == replace(first, is_new=False, was_sent=False)
    assert creations(fake_kaggle) == 1
    (folder / "SHA256SUMS").unlink()
    (folder / "top.txt").write_bytes(b"changed")
    assert push().version == 2
    change_metadata(folder, subtitle="Another subtitle for the tests")
    assert push().version == 3
    fake_kaggle.datasets[ID].version = 7  # somebody else's
    assert push().version == 8
    del fake_kaggle.datasets[ID].files["top.txt"]
    assert push().version == 9
    assert creations(fake_kaggle) == 5


def test_two_at_once_make_one_version(
    fake_kaggle: FakeKaggleDatasets, folder: Path, tmp_path: Path
) -> None:
    """Their settings of TMPDIR do not matter."""
    command = [
        sys.executable,
        "-c",
        CODE,
        fake_kaggle.url,
        "dataset",
        "push",
        str(folder),
        "-m",
        "m",
    ]
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    pushes = [
        subprocess.Popen(command, env={**os.environ, "TMPDIR": str(place)}, **options)
        for place in places
    ]
    told = sorted(push.communicate(timeout=60)[0].split()[0] for push in pushes)
    assert told == ["created", "unchanged"]
    assert creations(fake_kaggle) == 1


def test_what_killed_calls_left_is_cleared_and_what_is_in_use_is_not(
    fake_kaggle: FakeKaggleDatasets, push: Push, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "common"))
    (tmp_path / "common").mkdir()
    code = (
        "import os, sys, tempfile; from common.kaggle.scratch import scratch_folder\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "with scratch_folder('uploads') as folder:\n"
        "    (folder / 'address.json').write_text('signed')\n"
        "    os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, tempfile.tempdir], cwd=ROOT, check=False)
    (left,) = (tmp_path / "common").rglob("address.json")
    assert left.stat().st_mode & 0o777 == 0o600
    with scratch_folder("uploads") as mine:
        (mine / "kept").touch()
        place = private_place()
        assert place.stat().st_mode & 0o777 == 0o700
        assert not left.exists()
        push()
        assert (mine / "kept").exists()
    assert not [path for path in place.iterdir() if path.is_dir()]


def test_clearing_follows_no_link_and_empties_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place, outside = private_place(), tmp_path / "outside"
    outside.mkdir()
    for name in ("victim", "in-use.lock"):
        (outside / name).write_text("kept")
    (place / "uploads-a").mkdir()
    (place / "uploads-a" / "in-use.lock").symlink_to(outside / "victim")
    (place / "uploads-b").symlink_to(outside)
    with scratch_folder("uploads"):
        pass
    assert (place / "uploads-a").is_dir()  # whose lock cannot be told
    assert {path.name: path.read_text() for path in outside.iterdir()} == {
        "victim": "kept",
        "in-use.lock": "kept",
    }


def test_a_place_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = private_place()
    place.rmdir()
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PipelineError, match="expected a folder of this user's own"):
        private_place()


def test_nothing_is_left_in_the_temporary_folder(
    fake_kaggle: FakeKaggleDatasets,
    push: Push,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = tmp_path / "common"
    common.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(common))
    push()
    (folder / "SHA256SUMS").unlink()
    (folder / "top.txt").write_bytes(b"changed")
    fake_kaggle.will_answer("PUT", Answer(403, {}))
    failure(push)
    assert {path.suffix for path in common.rglob("*") if path.is_file()} == {".lock"}
    assert tempfile.tempdir == str(common)
