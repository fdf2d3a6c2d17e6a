"""The real client fetches from a Kaggle of our own; every way to fail is one line."""

import io
import sys
import time
import zipfile
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from common.retry import RetryPolicy
from data.fetch.fetch import COMPETITION, FetchJob, fetch_kaggle
from data.official.published import PUBLISHED_GRAPHS
from tests.data.fetch.conftest import TRAIN, VALID, part_files, tree_of
from tests.data.fetch.file_server import FileServer, Trouble
from tests.fake_kaggle import SIGNATURE, Answer, FakeKaggle, failure_of

MakeJob = Callable[..., FetchJob]
METHOD, ARCHIVE = "DownloadDataFiles", "/storage/archive.zip"


@pytest.fixture
def kaggle(
    fake_kaggle: FakeKaggle, files: FileServer, monkeypatch: pytest.MonkeyPatch
) -> FakeKaggle:
    """A Kaggle that sends to a signed address on another host for the competition's archive."""
    monkeypatch.setattr("data.fetch.fetch._KAGGLE_ABOUT", 1000)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("sample_submission.csv", "ID,TopConfigs\n")
        for part in PUBLISHED_GRAPHS:
            for name, content in part_files(part).items():
                archive.writestr(f"npz_all/{name}", content)
    files.files[ARCHIVE] = packed.getvalue()
    host = files.url.replace("127.0.0.1", "localhost")
    fake_kaggle.archive = f"{host}{ARCHIVE}?signature={SIGNATURE}"
    impatient = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr(sys.modules["kaggle.api.kaggle_api_extended"], "time", impatient)
    return fake_kaggle


def test_chosen_parts_arrive_and_a_second_call_asks_nothing(
    kaggle: FakeKaggle, files: FileServer, make_job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(TRAIN, VALID)
    fetch_kaggle(job)
    done = fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN) | part_files(VALID)
    facts = [(got.part, got.graphs, got.was_there) for got in done]
    assert facts == [(TRAIN, 2, True), (VALID, 2, True)]
    assert [request.json for request in kaggle.received] == [{"competitionName": COMPETITION}]
    assert not (job.downloads / COMPETITION).exists()
    assert not any("Authorization" in asked.headers for asked in files.asked)
    assert capsys.readouterr() == ("", "")


def test_an_archive_that_broke_off_is_gone_on_with(
    kaggle: FakeKaggle, files: FileServer, make_job: MakeJob
) -> None:
    retries = [Trouble(cut_after=0)] * 5  # the client's own
    files.will(ARCHIVE, Trouble(cut_after=2_500_000), *retries)
    assert "was dropped" in failure_of(
        lambda: fetch_kaggle(make_job(TRAIN, policy=RetryPolicy(attempts=1)))
    )
    job = make_job(TRAIN)
    fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN)
    assert int(files.gets(ARCHIVE)[-1].range[6:-1]) >= 1_000_000


def test_a_refusal_is_one_line(kaggle: FakeKaggle, make_job: MakeJob) -> None:
    kaggle.will_answer(METHOD, Answer(403, {"code": 403, "message": "a\nreason"}))
    line = failure_of(lambda: fetch_kaggle(make_job(TRAIN)))
    assert f"{COMPETITION}: HTTP 403: the account may not do this; accept the" in line
    assert len(kaggle.calls(METHOD)) == 1
