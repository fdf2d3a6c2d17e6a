"""Downloads from a local file server and a fake Kaggle: complete, killed, rejected, disk full.

Hostile, damaged and incomplete archives write no file. A killed extraction resumes.
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
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.settings import ROOT
from data.fetch.fetch import (
    COMPETITION,
    FetchJob,
    fetch_google,
    fetch_kaggle,
    finished_part,
    unpack,
)
from data.official.published import PUBLISHED_GRAPHS
from data.tree import find_graphs
from pipeline.cli.data import BASE_VARIABLE
from tests.data.fetch.conftest import TRAIN, VALID, make_job, part_files, tar_bytes, tree_of
from tests.support.command_line import call
from tests.support.fake_kaggle import SIGNATURE, FakeKaggle, failure_of
from tests.support.file_server import FileServer, Trouble

PLACE = "npz/layout/xla/default/train"
Usage = namedtuple("Usage", "total used free")


def archive_of(part: str) -> str:
    """Return the path of a part's archive on the server."""
    return f"/npz_{part.replace(':', '_').replace('/', '_')}.tar"


def serve(files: FileServer, *parts: str) -> dict[str, bytes]:
    """Put the parts' archives on the server; return the tree that they hold."""
    wanted = {}
    for part in parts:
        wanted |= part_files(part)
        files.files[archive_of(part)] = tar_bytes(part_files(part))
    return wanted


@pytest.fixture
def two_graphs(files: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BASE_VARIABLE, files.url)
    monkeypatch.setattr("data.fetch.fetch.PUBLISHED_GRAPHS", dict.fromkeys(PUBLISHED_GRAPHS, 2))


def small_disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(10 * free, 9 * free, free))


@pytest.mark.usefixtures("two_graphs")
def test_whole_dataset_is_fetched_once(files: FileServer, tmp_path: Path) -> None:
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
    assert told["parts"][0] == {"part": VALID, "graphs": 2, "bytes": size, "was_there": True}
    assert told["next"].endswith(f"audit --data {tmp_path}")
    assert len(files.asked) == n_asked


def test_small_disk_is_refused_before_the_download(
    files: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = serve(files, TRAIN, VALID)
    size = len(files.files[archive_of(TRAIN)])
    small_disk(monkeypatch, 3 * size - 1)  # the first part unpacked, the second one twice
    with pytest.raises(PipelineError, match=r"out: needs 0\.00 GiB, 0\.00 GiB are free"):
        fetch_google(make_job(tmp_path, TRAIN, VALID), base=files.url)
    assert not files.gets(archive_of(TRAIN))
    small_disk(monkeypatch, 3 * size)
    fetch_google(make_job(tmp_path, TRAIN, VALID), base=files.url)
    assert tree_of(make_job(tmp_path).out) == wanted


def test_wrong_source_makes_no_folder(tmp_path: Path) -> None:
    line = call("fetch", "--source", "ftp", "--out", tmp_path / "out", expect=2)
    assert "expected one of 'google', 'kaggle'" in line and not (tmp_path / "out").exists()


CHILD = """
import sys
from pathlib import Path
from data.fetch.fetch import FetchJob, fetch_google
part = "layout:xla:default/train"
fetch_google(FetchJob([part], Path(sys.argv[2]), expected={part: 40}), base=sys.argv[1])
"""


@pytest.mark.parametrize(
    ("stage", "signal_number"), [("download", signal.SIGKILL), ("unpack", signal.SIGTERM)]
)
def test_killed_fetch_resumes_to_the_same_bytes(
    files: FileServer, tmp_path: Path, stage: str, signal_number: signal.Signals
) -> None:
    name, wanted = archive_of(TRAIN), part_files(TRAIN, 40)
    files.files[name] = tar_bytes(wanted)
    if stage == "download":  # stall in the middle
        files.will(name, Trouble(cut_after=2_000_000, stalls=True))
        sign = f"downloads{name}.part-*"
    else:
        sign = f"{PLACE}/g.3.npz"
    out = tmp_path / "out"
    command = [sys.executable, "-c", CHILD, files.url, str(out)]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ})
    least = 10**6 if stage == "download" else 1
    while not any(path.stat().st_size >= least for path in out.glob(sign)):
        assert child.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    child.send_signal(signal_number)
    child.wait()
    (done,) = fetch_google(make_job(tmp_path, TRAIN, n_graphs=40), base=files.url)
    assert done.graphs == 40
    assert tree_of(out) == wanted
    assert not [path for path in (out / PLACE).iterdir() if path.suffix != ".npz"]
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


def test_chosen_parts_are_fetched_from_kaggle_once(
    kaggle: FakeKaggle, files: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path, TRAIN, VALID)
    fetch_kaggle(job)
    done = fetch_kaggle(job)
    assert tree_of(job.out) == part_files(TRAIN) | part_files(VALID)
    facts = [(got.part, got.graphs, got.was_there) for got in done]
    assert facts == [(TRAIN, 2, True), (VALID, 2, True)]
    assert [request.json for request in kaggle.received] == [{"competitionName": COMPETITION}]
    assert not (job.downloads / COMPETITION).exists()
    assert not any("Authorization" in asked.headers for asked in files.asked)
    assert capsys.readouterr() == ("", "")


SPECIAL = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)


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


GRAPHS = part_files(TRAIN)
GOOD = tar_bytes(GRAPHS)
IN_KAGGLES_FOLDER = {f"npz_all/{name}": content for name, content in GRAPHS.items()}


def forged(kind: bytes, size: int) -> bytes:
    """Return a tar archive whose last member has only a header, with an impossible size."""
    info = tarfile.TarInfo(f"{PLACE}/x.npz")
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    return GOOD[: GOOD.rindex(b"PK") // 512 * 512 + 512] + bytes(header) + bytes(1024)


def bomb() -> bytes:
    """Return a zip archive that announces four gigabytes in one member."""
    content = bytearray(zip_bytes(*GRAPHS.items()))
    central = content.rindex(b"PK\x01\x02")
    content[central + 24 : central + 28] = (2**32 - 2).to_bytes(4, "little")
    return bytes(content)


def with_link() -> bytes:
    link = zipfile.ZipInfo(f"{PLACE}/x.npz")
    link.external_attr = 0o120777 << 16
    return zip_bytes(*GRAPHS.items(), (link, b"x"))


HOSTILE = ("../x.npz", f"{PLACE}/../../../../../../x.npz", "/tmp/x.npz", f"a/b/{PLACE}/x.npz")
FORGED = (
    *((kind, -512) for kind in (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.XHDTYPE)),
    *((kind, 10**9) for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE)),
    (tarfile.REGTYPE, 2**40),
)
UNUSABLE = [
    (tar_bytes(GRAPHS, tarfile.TarInfo(f"{PLACE}/x\n.npz")), "is no plain file"),
    *((tar_bytes(GRAPHS, special(f"{PLACE}/x.npz", kind)), "no plain file") for kind in SPECIAL),
    *((forged(kind, size), "a.tar: ") for kind, size in FORGED),
    (with_link(), "is no plain file"),
    (bomb(), "announces 4294967294 bytes, more than can be"),
    (tar_bytes(GRAPHS | IN_KAGGLES_FOLDER), "is there twice"),
    (tar_bytes({}), "default/train: expected 2 graphs, found 0"),
    (tar_bytes(part_files(TRAIN, 3)), "default/train: expected 2 graphs, found 3"),
    *((GOOD[:cut], r"(not a whole archive|found [01];)") for cut in (100, 150_000, -11_000)),
]


@pytest.mark.parametrize(("content", "message"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_unusable_archive_is_refused_and_nothing_is_unpacked(
    tmp_path: Path, content: bytes, message: str
) -> None:
    job = make_job(tmp_path, TRAIN)
    line = failure_of(lambda: unpack_archive(job, content))
    assert re.search(message, line) and len(line) < 500
    assert tree_of(job.out) == {} and finished_part(job, TRAIN) is None
    assert len([*tmp_path.rglob("*")]) == 2


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        tar_bytes(GRAPHS, special(f"npz_all/{PLACE}", tarfile.DIRTYPE), lead="./npz_all/"),
        zip_bytes(*IN_KAGGLES_FOLDER.items(), compression=zipfile.ZIP_DEFLATED),
        tar_bytes(GRAPHS, *map(tarfile.TarInfo, HOSTILE), special("npz", tarfile.SYMTYPE)),
        zip_bytes(*GRAPHS.items(), *((name, b"x") for name in HOSTILE)),
    ],
    ids=["tar", "tar in a folder", "zip", "tar with others", "zip with others"],
)
def test_every_graph_is_unpacked_into_its_place_and_nothing_else(
    content: bytes, tmp_path: Path
) -> None:
    out = unpack_archive(make_job(tmp_path, TRAIN), content)
    assert tree_of(out) == GRAPHS
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert not Path("/tmp/x.npz").exists()


def test_foreign_file_among_the_graphs_is_named(tmp_path: Path) -> None:
    job = make_job(tmp_path, TRAIN)
    (job.out / PLACE).mkdir(parents=True)
    (job.out / PLACE / "mine.npz").write_bytes(b"x")
    with pytest.raises(PipelineError, match=r"mine\.npz: not of the dataset"):
        unpack_archive(job, GOOD)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_archive_is_one_line_or_whole(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    small = {name: content[:3000] for name, content in GRAPHS.items()}
    is_tar = bool(seed % 2)
    damaged = bytearray(tar_bytes(small) if is_tar else zip_bytes(*small.items(), compression=8))
    first, last = (100, 500) if is_tar else (len(damaged) - 250, len(damaged))  # of its directory
    for _ in range(2):
        damaged[draw.randrange(first, last)] = draw.randrange(256)
    if is_tar:
        damaged[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(damaged[:512]))[0]
    try:
        unpack_archive(make_job(tmp_path, TRAIN), bytes(damaged))
    except PipelineError as error:
        assert re.search(r"a\.(tar|zip)", str(error)) and len(str(error).splitlines()) == 1
