"""The real client fetches from a Kaggle of our own; every way to fail is one line."""

import io
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import PipelineError
from common.retry import RetryPolicy
from data.fetch.job import FetchJob
from data.fetch.kaggle import COMPETITION, fetch_kaggle
from data.fetch.parts import PUBLISHED_GRAPHS
from tests.command_line import call
from tests.data.fetch.conftest import TRAIN, VALID, Notes, part_files, tree_of
from tests.data.fetch.fake_kaggle_files import (
    ARCHIVE,
    SIGNATURE,
    FakeKaggleFiles,
    running_fake_kaggle_files,
)
from tests.data.fetch.file_server import FileServer, Trouble
from tests.fake_kaggle import KEY, Answer, clear_credentials, point_client_at

MakeJob = Callable[..., FetchJob]
LEAD = "/storage/npz_all/"


@pytest.fixture
def kaggle(
    files: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[FakeKaggleFiles]:
    monkeypatch.setattr("data.fetch.kaggle._ARCHIVE_ABOUT", 1000)
    with running_fake_kaggle_files(files, monkeypatch, tmp_path / "home") as server:
        impatient = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
        monkeypatch.setattr(sys.modules["kaggle.api.kaggle_api_extended"], "time", impatient)
        server.listed["sample_submission.csv"] = 5
        for part in PUBLISHED_GRAPHS:
            server.list_and_store(part_files(part))
        yield server


def zip_bytes(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def store_archive(kaggle: FakeKaggleFiles) -> None:
    members = {"sample_submission.csv": b"ID,TopConfigs\n"}
    for part in PUBLISHED_GRAPHS:
        members |= {f"npz_all/{name}": content for name, content in part_files(part).items()}
    kaggle.storage.files[ARCHIVE] = zip_bytes(members)


def failure(job: FetchJob) -> str:
    with pytest.raises(PipelineError) as caught:
        fetch_kaggle(job)
    line = str(caught.value)
    assert "\n" not in line
    assert KEY not in line
    assert SIGNATURE not in line
    return line


def test_chosen_parts_arrive_file_by_file(
    kaggle: FakeKaggleFiles, make_job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(TRAIN, VALID)
    done = fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN) | part_files(VALID)
    assert [(got.part, got.graphs, got.was_there) for got in done] == [
        (TRAIN, 2, False),
        (VALID, 2, False),
    ]
    pages = kaggle.calls("ListDataFiles")
    assert len(pages) == -(-len(kaggle.listed) // kaggle.page)
    assert len(kaggle.calls("DownloadDataFile")) == 4
    assert kaggle.calls("DownloadDataFile")[0].json["competitionName"] == COMPETITION
    assert not kaggle.calls("DownloadDataFiles")
    assert sorted(path.name for path in job.downloads.iterdir()) == [
        f"{part.stem}.DONE" for part in (TRAIN, VALID)
    ]
    assert capsys.readouterr() == ("", "")


def test_the_key_does_not_travel_to_the_storage(kaggle: FakeKaggleFiles, make_job: MakeJob) -> None:
    kaggle.storage.url = kaggle.storage.url.replace("127.0.0.1", "localhost")
    fetch_kaggle(make_job(TRAIN))
    assert kaggle.storage.asked
    assert not any("Authorization" in asked.headers for asked in kaggle.storage.asked)


def test_a_second_call_asks_nothing_and_one_without_the_mark_only_what_is_missing(
    kaggle: FakeKaggleFiles, make_job: MakeJob
) -> None:
    job = make_job(TRAIN)
    fetch_kaggle(job)
    kaggle.received.clear()
    (done,) = fetch_kaggle(job)
    assert done.was_there
    assert not kaggle.received
    next((job.out / TRAIN.folder).iterdir()).unlink()
    fetch_kaggle(job)
    assert len(kaggle.calls("DownloadDataFile")) == 1
    assert tree_of(job.out) == part_files(TRAIN)


def test_a_transfer_that_breaks_off_goes_on(kaggle: FakeKaggleFiles, make_job: MakeJob) -> None:
    first = next(iter(part_files(TRAIN)))
    kaggle.storage.will(f"{LEAD}{first}", Trouble(cut_after=50_000), Trouble(cut_after=20_000))
    job = make_job(TRAIN)
    fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN)


def test_a_refusal_in_the_middle_is_never_stored_as_the_file(
    kaggle: FakeKaggleFiles, make_job: MakeJob, notes: Notes
) -> None:
    first = next(iter(part_files(TRAIN)))
    refusal = Trouble(403, body=b"<Error>expired</Error>")
    kaggle.storage.will(f"{LEAD}{first}", Trouble(cut_after=70_000), refusal, refusal)
    job = make_job(TRAIN)
    fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN)
    assert notes.waited == [1.0]


def test_a_graph_that_kaggle_has_zipped_is_taken_out(
    kaggle: FakeKaggleFiles, make_job: MakeJob
) -> None:
    for name, content in part_files(TRAIN).items():
        kaggle.storage.files[f"{LEAD}{name}"] = zip_bytes({Path(name).name: content})
    job = make_job(TRAIN)
    fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN)


def test_a_file_of_another_size_than_listed_is_refused(
    kaggle: FakeKaggleFiles, make_job: MakeJob
) -> None:
    first = next(iter(part_files(TRAIN)))
    kaggle.storage.files[f"{LEAD}{first}"] = b"<html>"
    assert "as Kaggle lists, found 6" in failure(make_job(TRAIN))
    assert tree_of(make_job().out) == {}


@pytest.mark.parametrize("reason", ["listing is short", "too many"])
def test_the_archive_is_used_where_single_files_will_not_do(
    kaggle: FakeKaggleFiles, make_job: MakeJob, notes: Notes, reason: str
) -> None:
    store_archive(kaggle)
    if reason == "too many":
        fetch_kaggle(make_job(TRAIN, VALID), most_single_files=3)
    else:
        del kaggle.listed[f"npz_all/{next(iter(part_files(VALID)))}"]
        fetch_kaggle(make_job(TRAIN, VALID))
    job = make_job()
    assert tree_of(job.out) == part_files(TRAIN) | part_files(VALID)
    assert "whole archive" in notes.said[0]
    assert "4 files are too many" in notes.said[0] or "lists 1 of 2 graphs" in notes.said[0]
    assert not kaggle.calls("DownloadDataFile")
    assert not (job.downloads / COMPETITION).exists()


def test_an_archive_that_broke_off_is_gone_on_with(
    kaggle: FakeKaggleFiles, make_job: MakeJob
) -> None:
    store_archive(kaggle)
    kaggle.listed.clear()
    retries = [Trouble(cut_after=0)] * 5  # the client's own
    kaggle.storage.will(ARCHIVE, Trouble(cut_after=2_500_000), *retries)
    assert "was dropped" in failure(make_job(TRAIN, policy=RetryPolicy(attempts=1)))
    job = make_job(TRAIN, keep_archives=True)
    fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN)
    assert int(kaggle.storage.gets(ARCHIVE)[-1].range[6:-1]) >= 1_000_000
    (archive,) = (job.downloads / COMPETITION).iterdir()
    assert archive.read_bytes() == kaggle.storage.files[ARCHIVE]


def test_a_kept_archive_serves_other_parts(kaggle: FakeKaggleFiles, make_job: MakeJob) -> None:
    store_archive(kaggle)
    fetch_kaggle(make_job(TRAIN, keep_archives=True), most_single_files=0)
    kaggle.received.clear()
    fetch_kaggle(make_job(VALID, keep_archives=True))
    assert tree_of(make_job().out) == part_files(TRAIN) | part_files(VALID)
    assert [request.method for request in kaggle.received] == ["DownloadDataFiles"]


def test_an_archive_with_a_wrong_number_of_graphs_is_named(
    kaggle: FakeKaggleFiles, make_job: MakeJob
) -> None:
    store_archive(kaggle)
    line = failure(make_job(TRAIN, expected=dict.fromkeys(PUBLISHED_GRAPHS, 3)))
    assert f"{TRAIN.label}: expected 3 graphs, found 2" in line


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, "make a new token"),
        (403, "accept the competition's rules"),
        (404, "check the competition's"),
    ],
)
@pytest.mark.parametrize("method", ["ListDataFiles", "DownloadDataFile"])
def test_a_refusal_is_one_line(
    kaggle: FakeKaggleFiles, make_job: MakeJob, method: str, status: int, expected: str
) -> None:
    kaggle.will_answer(method, Answer(status, {"code": status, "message": "a\nreason"}))
    line = failure(make_job(TRAIN))
    assert f"HTTP {status}" in line
    assert expected in line
    assert COMPETITION in line
    assert len(kaggle.calls(method)) == 1


def test_a_refusal_by_the_storage_does_not_show_the_signed_address(
    kaggle: FakeKaggleFiles, make_job: MakeJob
) -> None:
    first = next(iter(part_files(TRAIN)))
    kaggle.storage.will(f"{LEAD}{first}", Trouble(403))
    assert "HTTP 403" in failure(make_job(TRAIN))


@pytest.mark.parametrize("method", ["ListDataFiles", "DownloadDataFile"])
def test_what_may_pass_is_tried_again_with_the_wait_that_kaggle_asks_for(
    kaggle: FakeKaggleFiles, make_job: MakeJob, notes: Notes, method: str
) -> None:
    busy = {"code": 429, "message": "slow down"}
    kaggle.will_answer(
        method, Answer(429, busy, {"Retry-After": "9"}), Answer(502, {}), Answer(drop=True)
    )
    job = make_job(TRAIN)
    fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN)
    assert notes.waited == [9.0, 2.0, 4.0]


def test_a_server_that_stays_busy_ends_in_one_line(
    kaggle: FakeKaggleFiles, make_job: MakeJob
) -> None:
    kaggle.will_answer("ListDataFiles", *[Answer(503, {})] * 9)
    assert "list the files: HTTP 503; gave up after 4 tries" in failure(make_job(TRAIN))


def test_nobody_listening_is_one_line(
    kaggle: FakeKaggleFiles, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_client_at("http://127.0.0.1:9", monkeypatch)
    assert "connection refused; gave up" in failure(make_job(TRAIN))


def test_a_list_that_repeats_its_pages_ends(
    kaggle: FakeKaggleFiles, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = {"files": [], "nextPageToken": "3"}
    kaggle.will_answer("ListDataFiles", *[Answer(body=endless)] * 9)
    store_archive(kaggle)
    fetch_kaggle(make_job(TRAIN))
    assert len(kaggle.calls("ListDataFiles")) == 2


def test_a_hostile_name_in_the_list_is_refused(kaggle: FakeKaggleFiles, make_job: MakeJob) -> None:
    kaggle.listed["npz_all/npz/../../x.npz"] = 5
    assert "would leave the folder" in failure(make_job(TRAIN))


def test_a_small_disk_is_said_before_anything_is_downloaded(
    kaggle: FakeKaggleFiles, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert "are free; make room" in failure(make_job(TRAIN))
    assert not kaggle.calls("DownloadDataFile")


def test_missing_credentials_are_one_line_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clear_credentials(monkeypatch, tmp_path / "home")
    text = call("fetch", "--source", "kaggle", "--out", tmp_path / "out", expect=1)
    assert text.startswith(f"error: fetch {COMPETITION}: no Kaggle credentials; set KAGGLE_API")
    assert len(text.splitlines()) == 1


def test_the_command_names_what_it_fetched(
    kaggle: FakeKaggleFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("data.fetch.job.PUBLISHED_GRAPHS", dict.fromkeys(PUBLISHED_GRAPHS, 2))
    text = call(
        "fetch", "--source", "kaggle", "--collections", "layout:xla:default", "--out", tmp_path
    )
    assert text.splitlines()[-1] == f"data        {tmp_path}"
    assert KEY not in text
