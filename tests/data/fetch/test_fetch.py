"""Fetching from a server and a Kaggle of our own: whole, killed, refused, on a small disk.

Hostile, damaged and incomplete archives write nothing; a killed unpacking goes on.
"""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.retry import RetryPolicy
from common.settings import ROOT
from data.fetch.fetch import (
    COMPETITION,
    FetchJob,
    fetch_google,
    fetch_kaggle,
    finished,
    unpack,
)
from data.official.published import PUBLISHED_GRAPHS, Part
from data.tree import find_graphs
from pipeline.cli.data import BASE_VARIABLE
from tests.data.fetch.conftest import TRAIN, VALID, part_files, tar_bytes, tree_of
from tests.data.fetch.file_server import FileServer, Trouble
from tests.support.command_line import call
from tests.support.fake_kaggle import SIGNATURE, Answer, FakeKaggle, failure_of

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


METHOD, ARCHIVE = "DownloadDataFiles", "/storage/archive.zip"


@pytest.fixture
def kaggle(
    fake_kaggle: FakeKaggle, files: FileServer, monkeypatch: pytest.MonkeyPatch
) -> FakeKaggle:
    """A Kaggle that sends to a signed address on another host for the competition's archive."""
    monkeypatch.setattr("data.fetch.fetch._KAGGLE_BYTES", 1000)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("sample_submission.csv", "ID,TopConfigs\n")
        for part in PUBLISHED_GRAPHS:
            for name, content in part_files(part).items():
                archive.writestr(f"npz_all/{name}", content)
    files.files[ARCHIVE] = packed.getvalue()
    host = files.url.replace("127.0.0.1", "localhost")
    fake_kaggle.archive = f"{host}{ARCHIVE}?signature={SIGNATURE}"
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
    files.will(ARCHIVE, Trouble(), Trouble(cut_after=2_500_000))
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


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


def unpack_archive(job: FetchJob, content: bytes) -> Path:
    job.out.mkdir(exist_ok=True)
    name = "a.zip" if content.startswith(b"PK") else "a.tar"
    archive = job.out / name
    archive.write_bytes(content)
    unpack(job, job.parts, archive)
    return job.out


def zip_bytes(*members: tuple[str | zipfile.ZipInfo, bytes], compression: int = 0) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return packed.getvalue()


def refusal(job: FetchJob, content: bytes) -> str:
    """Return the line that refuses an archive; nothing was written."""
    line = failure_of(lambda: unpack_archive(job, content))
    assert len(line) < 500 and tree_of(job.out) == {}
    return line


@pytest.mark.parametrize("lead", ["", "./npz_all/"])
def test_every_graph_lands_in_its_place(make_job: MakeJob, lead: str) -> None:
    folders = special(f"{lead}npz/layout/xla/default/train", tarfile.DIRTYPE)
    out = unpack_archive(make_job(TRAIN), tar_bytes(part_files(TRAIN), folders, lead=lead))
    assert tree_of(out) == part_files(TRAIN)


PLACE = "npz/layout/xla/default/train"


@pytest.mark.parametrize(
    "extra",
    [
        tarfile.TarInfo("../x.npz"),
        tarfile.TarInfo(f"{PLACE}/../../../../../../x.npz"),
        tarfile.TarInfo("/tmp/x.npz"),
        tarfile.TarInfo(f"{PLACE}/x\\..\\y.npz"),
        tarfile.TarInfo(f"{PLACE}/x\n.npz"),
        tarfile.TarInfo(f"{PLACE}/{'x' * 4000}.npz"),
        special(f"{PLACE}/x.npz", tarfile.SYMTYPE),
        special(f"{PLACE}/x.npz", tarfile.LNKTYPE),
        special(f"{PLACE}/x.npz", tarfile.FIFOTYPE),
        special(PLACE, tarfile.SYMTYPE),
    ],
    ids=lambda info: f"{info.name[:60]!r} {info.type!r}",
)
def test_a_hostile_member_stops_everything(
    make_job: MakeJob, tmp_path: Path, extra: tarfile.TarInfo
) -> None:
    job = make_job(TRAIN)
    content = tar_bytes(part_files(TRAIN), extra)
    assert "nothing of it was unpacked" in refusal(job, content)
    assert {path.name for path in tmp_path.rglob("*")} == {"out", "a.tar"}


def sized(kind: bytes, size: int) -> bytes:
    """Return a member's header alone, with a size as only a forged one can have."""
    info = tarfile.TarInfo(f"{PLACE}/x.npz")
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    return bytes(header)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (tarfile.REGTYPE, -512),
        (tarfile.DIRTYPE, -512),
        (tarfile.XHDTYPE, -512),
        (tarfile.GNUTYPE_LONGNAME, 10**9),
        (tarfile.XGLTYPE, 10**9),
        (tarfile.REGTYPE, 2**40),
    ],
)
def test_a_member_of_an_impossible_size_is_refused_at_once(
    make_job: MakeJob, kind: bytes, size: int
) -> None:
    content = tar_bytes(part_files(TRAIN))
    forged = content[: content.rindex(b"PK") // 512 * 512 + 512] + sized(kind, size) + bytes(1024)
    assert "a.tar: " in refusal(make_job(TRAIN), forged)


def test_a_size_that_cannot_be_is_refused_before_anything_is_written(make_job: MakeJob) -> None:
    bomb = bytearray(zip_bytes(*part_files(TRAIN).items()))
    central = bomb.rindex(b"PK\x01\x02")
    bomb[central + 24 : central + 28] = (2**32 - 2).to_bytes(4, "little")
    line = refusal(make_job(TRAIN), bytes(bomb))
    assert "announces 4294967294 bytes, more than can be" in line


def test_a_graph_that_is_there_twice_is_refused(make_job: MakeJob) -> None:
    twice = {f"npz_all/{name}": content for name, content in part_files(TRAIN).items()}
    content = tar_bytes(part_files(TRAIN) | twice)
    assert "is there twice" in refusal(make_job(TRAIN), content)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_archive_is_one_line_or_whole(make_job: MakeJob, seed: int) -> None:
    draw = random.Random(seed)
    small = {name: content[:3000] for name, content in part_files(TRAIN).items()}
    is_tar = bool(seed % 2)
    damaged = bytearray(tar_bytes(small) if is_tar else zip_bytes(*small.items(), compression=8))
    first, last = (100, 500) if is_tar else (len(damaged) - 250, len(damaged))  # of its directory
    for _ in range(2):
        damaged[draw.randrange(first, last)] = draw.randrange(256)
    if is_tar:
        damaged[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(damaged[:512]))[0]
    try:
        unpack_archive(make_job(TRAIN), bytes(damaged))
    except PipelineError as error:
        assert len(str(error).splitlines()) == 1
        assert "a.tar" in str(error) or "a.zip" in str(error)


@pytest.mark.parametrize("found", [0, 3])
def test_a_wrong_number_of_graphs_names_the_part_and_writes_nothing(
    make_job: MakeJob, found: int
) -> None:
    job = make_job(TRAIN)
    line = refusal(job, tar_bytes(part_files(TRAIN, found)))
    assert f"default/train: expected 2 graphs, found {found}" in line
    assert finished(job, TRAIN) is None


@pytest.mark.parametrize("cut", [100, 150_000, -11_000])
def test_a_cut_archive_and_a_file_that_is_not_of_the_dataset_are_named(
    make_job: MakeJob, cut: int
) -> None:
    line = refusal(make_job(TRAIN), tar_bytes(part_files(TRAIN))[:cut])
    assert re.search(r"a\.tar: (not a whole archive|.*found [01];)", line)
    job = make_job(TRAIN)
    (job.out / TRAIN.folder).mkdir(parents=True)
    for name in ("mine.npz", "g.0.npz"):  # as many as there are graphs
        (job.out / TRAIN.folder / name).write_bytes(b"x")
    assert finished(job, TRAIN) is None
    with pytest.raises(PipelineError, match=r"mine\.npz: not of the dataset"):
        unpack_archive(job, tar_bytes(part_files(TRAIN)))


def test_zip_members_are_checked_alike(make_job: MakeJob) -> None:
    wanted = part_files(TRAIN)
    members = [(f"npz_all/{name}", content) for name, content in wanted.items()]
    link = zipfile.ZipInfo(f"{PLACE}/x.npz")
    link.external_attr = 0o120777 << 16
    for hostile in (link, "../x.npz", "/x.npz"):
        content = zip_bytes(*members, (hostile, b"x"))
        assert "nothing of it" in refusal(make_job(TRAIN), content)
    assert tree_of(unpack_archive(make_job(TRAIN), zip_bytes(*members))) == wanted
