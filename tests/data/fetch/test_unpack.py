"""Hostile, damaged and incomplete archives write nothing; a killed unpacking goes on."""

import io
import random
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from data.fetch.fetch import FetchJob, finished, opened, unpack
from tests.data.fetch.conftest import TRAIN, part_files, tar_bytes, tree_of
from tests.fake_kaggle import failure_of

MakeJob = Callable[..., FetchJob]


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
    with opened(archive) as graphs:
        unpack(job, graphs, job.parts, archive)
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
        special("../x", tarfile.DIRTYPE),
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
