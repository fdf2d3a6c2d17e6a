"""The note beside a dataset folder: written once Kaggle has accepted, and never sent."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.retry import RetryPolicy
from kernels.datasets.note import note_of
from kernels.datasets.push import DatasetVersion, push_dataset
from tests.fake_kaggle import Answer
from tests.fake_kaggle_datasets import Dataset, FakeKaggleDatasets
from tests.kernels.dataset_folders import ID, Push, creations, failure


@pytest.mark.parametrize("version", [0, 3])
def test_a_push_after_one_that_saw_no_end_waits_for_its_version(
    fake_kaggle: FakeKaggleDatasets, push: Push, version: int
) -> None:
    if version:
        fake_kaggle.datasets[ID] = Dataset(version)
    fake_kaggle.statuses = ["READY"] * bool(version) + ["BLOBS_RECEIVED"] * 6
    assert "pushing the same again waits for it" in failure(push)
    old = Answer(body={"currentVersionNumber": version})  # of a version whose number comes late
    fake_kaggle.will_answer("GetDataset", old, old)
    made = push()
    assert (made.version, made.is_new, made.was_sent) == (version + 1, False, False)
    assert creations(fake_kaggle) == 1
    assert push() == made
    assert creations(fake_kaggle) == 1


def test_what_was_accepted_and_failed_or_is_forced_is_sent_again(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path, policy: RetryPolicy
) -> None:
    fake_kaggle.statuses = ["FAILED"]
    assert "version 1 is failed" in failure(push)
    fake_kaggle.statuses = ["FAILED", *["BLOBS_RECEIVED"] * 6]
    failure(push)
    assert creations(fake_kaggle) == 2
    assert push_dataset(folder, "m", force=True, policy=policy).version == 3


def test_a_note_of_an_older_pipeline_counts(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path
) -> None:
    first = push()
    noted = json.loads(note_of(folder).read_text())
    del noted["ready"]
    note_of(folder).write_text(json.dumps(noted))
    assert push() == replace(first, is_new=False, was_sent=False)


def test_without_a_place_for_the_note_nothing_is_sent(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path
) -> None:
    note_of(folder).mkdir()
    line = failure(push)
    assert str(note_of(folder)) in line
    assert "nothing was sent" in line
    assert not fake_kaggle.calls("StartBlobUpload")
    assert creations(fake_kaggle) == 0


def test_the_note_lies_outside_the_folder_however_it_is_named(
    fake_kaggle: FakeKaggleDatasets, folder: Path, tmp_path: Path, policy: RetryPolicy
) -> None:
    (tmp_path / "link").symlink_to(folder)

    def push(named: Path) -> DatasetVersion:
        return push_dataset(named, "m", policy=policy)

    first = push(folder / "models" / "..")
    assert note_of(folder).is_file()
    assert not list(folder.rglob(".*"))
    for named in (tmp_path / "link", folder):
        assert push(named) == replace(first, is_new=False, was_sent=False)
