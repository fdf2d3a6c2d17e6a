"""The real client sends dataset folders to a server of ours that unpacks and remembers them."""

import json
from pathlib import Path

import pytest

from common.errors import UsageError
from common.kaggle.send_once import LOOK_AFTER_S
from kernels.datasets.folder import DATASET_METADATA_FILE, DatasetMetadata
from kernels.datasets.push import POLL_S, DatasetVersion, missing_files
from tests.command_line import call
from tests.fake_kaggle import KEY, USERNAME, Answer
from tests.fake_kaggle_datasets import DROPPED, Dataset, FakeKaggleDatasets
from tests.kernels.dataset_folders import (
    FILES,
    ID,
    SLUG,
    TITLE,
    Push,
    change_metadata,
    creations,
    failure,
)

URL = f"https://www.kaggle.com/datasets/{ID}"


def test_a_new_dataset_is_private_and_holds_every_file(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / DATASET_METADATA_FILE).read_bytes()
    assert push() == DatasetVersion(ID, 1, True, len(FILES) + 1, URL)
    made = fake_kaggle.datasets[ID]
    assert {name: made.files[name] for name in FILES} == FILES
    assert set(made.files) == {*FILES, "SHA256SUMS"}
    asked = {key: made.asked[key] for key in ("title", "slug", "ownerSlug", "licenseName")}
    assert asked == {
        "title": TITLE,
        "slug": SLUG,
        "ownerSlug": USERNAME,
        "licenseName": "CC-BY-4.0",
    }
    assert made.asked["isPrivate"] is True
    assert (folder / DATASET_METADATA_FILE).read_bytes() == before
    assert capsys.readouterr() == ("", "")


def test_an_existing_dataset_gets_a_version(fake_kaggle: FakeKaggleDatasets, push: Push) -> None:
    fake_kaggle.datasets[ID] = Dataset(version=6)
    assert push() == DatasetVersion(ID, 7, False, len(FILES) + 1, URL)
    body = fake_kaggle.calls("CreateDatasetVersion")[0].json["body"]
    assert isinstance(body, dict)
    assert body["versionNotes"] == "what is new"
    assert not fake_kaggle.calls("CreateDataset")
    assert set(fake_kaggle.datasets[ID].files) == {*FILES, "SHA256SUMS"}


def test_it_waits_until_the_dataset_is_ready(
    fake_kaggle: FakeKaggleDatasets, push: Push, waits: list[float]
) -> None:
    fake_kaggle.statuses = ["NOT_YET_PERSISTED", "BLOBS_RECEIVED"]
    assert push().version == 1
    assert waits == [POLL_S, POLL_S]


def test_a_dataset_that_never_gets_ready_is_told(
    fake_kaggle: FakeKaggleDatasets, push: Push, waits: list[float]
) -> None:
    fake_kaggle.statuses = ["BLOBS_RECEIVED"] * 50
    line = failure(push)
    assert "version 1 is not ready after 1 minutes (version 1 is blobs_received)" in line
    assert "it was sent" in line
    assert sum(waits) == 5 * POLL_S


@pytest.mark.parametrize("status", ["FAILED", "DELETED"])
def test_a_dataset_that_fails_is_told(
    fake_kaggle: FakeKaggleDatasets, push: Push, status: str
) -> None:
    fake_kaggle.statuses = [status]
    assert f"version 1 is {status.lower()}" in failure(push)


def test_a_title_that_is_taken_is_told_in_kaggles_words(
    fake_kaggle: FakeKaggleDatasets, push: Push
) -> None:
    taken = {"status": "error", "error": "The requested title is already in use"}
    fake_kaggle.will_answer("CreateDataset", Answer(body=taken))
    assert f"dataset {ID}: Kaggle refused it: The requested title is already" in failure(push)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(401, {"code": 401, "message": "no"}), "make a new token"),
        (Answer(403, {"code": 403, "message": "no"}), "the token allows it"),
        (Answer(404, {"code": 404, "message": "no"}), "Kaggle knows no such thing"),
        (Answer(429, {}, {"Retry-After": "3600"}), "wait 3600 seconds"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_refusal_is_not_sent_again(
    fake_kaggle: FakeKaggleDatasets, push: Push, answer: Answer, expected: str, is_new: bool
) -> None:
    if not is_new:
        fake_kaggle.datasets[ID] = Dataset()
    fake_kaggle.will_answer("CreateDataset" if is_new else "CreateDatasetVersion", answer)
    line = failure(push)
    assert expected in line
    assert "may have been made" not in line
    assert creations(fake_kaggle) == 1


def test_a_refused_login_sends_nothing(fake_kaggle: FakeKaggleDatasets, push: Push) -> None:
    fake_kaggle.will_answer("GetDatasetStatus", Answer(401, {"code": 401, "message": "no"}))
    assert "HTTP 401" in failure(push)
    assert not fake_kaggle.calls("StartBlobUpload")


def test_two_server_faults_and_a_busy_server_then_success(
    fake_kaggle: FakeKaggleDatasets, push: Push, waits: list[float]
) -> None:
    faults = [Answer(500, {}), Answer(503, {}), Answer(429, {}, {"Retry-After": "9"})]
    fake_kaggle.will_answer("CreateDataset", *faults)
    assert push().version == 1
    assert 9.0 in waits


@pytest.mark.parametrize("lost", [DROPPED, Answer(500, {})])
@pytest.mark.parametrize("version", [0, 3])
def test_a_lost_answer_makes_no_second_version(
    fake_kaggle: FakeKaggleDatasets, push: Push, lost: Answer, version: int
) -> None:
    if version:
        fake_kaggle.datasets[ID] = Dataset(version)
    fake_kaggle.will_lose("CreateDatasetVersion" if version else "CreateDataset", lost)
    assert push().version == version + 1
    assert creations(fake_kaggle) == 1


def test_a_version_that_is_being_made_has_arrived(
    fake_kaggle: FakeKaggleDatasets, push: Push, waits: list[float]
) -> None:
    fake_kaggle.datasets[ID] = Dataset(3)
    fake_kaggle.will_lose("CreateDatasetVersion", Answer(500, {}))
    fake_kaggle.statuses = ["READY", "BLOBS_RECEIVED", "BLOBS_RECEIVED"]
    old = Answer(body={"currentVersionNumber": 3})  # until it is ready
    fake_kaggle.will_answer("GetDataset", old, old, old)
    assert push().version == 4
    assert creations(fake_kaggle) == 1


def test_a_version_that_kaggle_shows_a_minute_later_is_not_made_again(
    fake_kaggle: FakeKaggleDatasets, push: Push, waits: list[float]
) -> None:
    fake_kaggle.datasets[ID] = Dataset(3)
    fake_kaggle.will_lose("CreateDatasetVersion", Answer(500, {}))
    old = Answer(body={"currentVersionNumber": 3})
    fake_kaggle.will_answer("GetDataset", *[old] * 6)
    assert push().version == 4
    assert creations(fake_kaggle) == 1
    assert waits == list(LOOK_AFTER_S)


def test_where_asking_fails_as_well_the_doubt_is_told(
    fake_kaggle: FakeKaggleDatasets, push: Push
) -> None:
    fake_kaggle.datasets[ID] = Dataset(3)
    fake_kaggle.will_answer("CreateDatasetVersion", Answer(500, {}))
    ready = Answer(body={"status": "READY"})
    fake_kaggle.will_answer("GetDatasetStatus", ready, *[Answer(503, {})] * 4 * len(LOOK_AFTER_S))
    line = failure(push)
    assert "HTTP 500" in line
    assert "may have been made" in line
    assert creations(fake_kaggle) == 1


def test_a_failed_version_can_be_followed_by_another(
    fake_kaggle: FakeKaggleDatasets, push: Push
) -> None:
    fake_kaggle.datasets[ID] = Dataset(2)
    fake_kaggle.statuses = ["FAILED"]
    assert push().version == 3


def test_a_dropped_connection_is_told_as_doubt(fake_kaggle: FakeKaggleDatasets, push: Push) -> None:
    fake_kaggle.will_answer("CreateDataset", DROPPED)
    line = failure(push)
    assert "dropped" in line
    assert "may have been made" in line
    assert creations(fake_kaggle) == 1


def test_a_file_that_storage_refuses_makes_no_dataset(
    fake_kaggle: FakeKaggleDatasets, push: Push
) -> None:
    fake_kaggle.will_answer("PUT", Answer(403, {}))
    line = failure(push)
    assert line.startswith(f"push dataset {ID}: ")
    assert "Kaggle's storage refused it: HTTP 403; no version was made" in line
    assert len(fake_kaggle.calls("PUT")) == 1
    assert creations(fake_kaggle) == 0


@pytest.mark.parametrize("fault", [Answer(500, {}), Answer(429, {})])
def test_a_storage_that_fails_for_now_is_tried_again_from_the_start(
    fake_kaggle: FakeKaggleDatasets, push: Push, waits: list[float], fault: Answer
) -> None:
    fake_kaggle.will_answer("PUT", fault, fault)
    assert push().version == 1
    assert waits[:2] == [2.0, 4.0]
    assert {name: fake_kaggle.datasets[ID].files[name] for name in FILES} == FILES


def test_a_storage_that_keeps_failing_is_named_with_its_status(
    fake_kaggle: FakeKaggleDatasets, push: Push
) -> None:
    fake_kaggle.will_answer("PUT", *[Answer(500, {})] * 4)
    line = failure(push)
    assert f"push dataset {ID}: " in line
    assert "storage answers HTTP 500; gave up after 4 tries; no version was made" in line
    assert creations(fake_kaggle) == 0


def test_an_upload_is_begun_again_where_that_does_no_harm(
    fake_kaggle: FakeKaggleDatasets, push: Push, waits: list[float]
) -> None:
    fake_kaggle.will_answer("StartBlobUpload", Answer(429, {}, {"Retry-After": "4"}), DROPPED)
    assert push().version == 1
    assert waits[:1] == [4.0]


def test_a_file_that_kaggle_does_not_list_is_named(
    fake_kaggle: FakeKaggleDatasets, push: Push
) -> None:
    listed = [{"name": name} for name in (*FILES, "SHA256SUMS") if name != "top.txt"]
    fake_kaggle.will_answer("ListDatasetFiles", Answer(body={"datasetFiles": listed}))
    assert "Kaggle does not list top.txt" in failure(push)


def test_a_folder_listed_as_an_archive_counts_as_there() -> None:
    assert missing_files(["a", "m/x", "m/y/z", "n/x"], ["a", "m.zip", "n"]) == []
    assert missing_files(["a", "m/x"], ["m/y"]) == ["a", "m/x"]


def test_a_credential_in_a_file_is_not_sent(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path
) -> None:
    (folder / "top.txt").write_bytes(b"\0" * ((1 << 20) - 5) + KEY.encode())
    (folder / "SHA256SUMS").unlink()
    assert "top.txt: holds a Kaggle credential" in failure(push)
    assert not fake_kaggle.received


def test_the_command_says_what_was_made(fake_kaggle: FakeKaggleDatasets, folder: Path) -> None:
    assert call("dataset", "push", folder, "-m", "one") == f"created     {ID} version 1  {URL}\n"
    same = call("dataset", "push", folder, "-m", "one")
    assert same == f"unchanged   {ID} version 1  {URL}\n"
    made = json.loads(call("dataset", "push", folder, "-m", "two", "--force", "--json"))
    facts = {"dataset": ID, "version": 2, "created": False, "files": 6, "url": URL}
    assert made == {**facts, "sent": True}
    assert "error: -m: expected a text" in call("dataset", "push", folder, "-m", " ", expect=2)


def test_a_public_dataset_must_be_asked_for(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path
) -> None:
    change_metadata(folder, isPrivate=False)
    push()
    assert not fake_kaggle.datasets[ID].asked.get("isPrivate")


def test_a_licence_that_kaggle_does_not_know_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="key 'licenses'"):
        DatasetMetadata.of(TITLE, subtitle="", licence="mine")
