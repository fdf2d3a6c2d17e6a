"""Hostile, damaged and incomplete archives write nothing; a killed unpacking goes on."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from data.fetch.job import FetchJob, finished
from data.fetch.parts import PUBLISHED_GRAPHS, Part, parts_named, place_of
from data.fetch.unpack import opened_tar, opened_zip, unpack
from data.tree import COLLECTIONS, SPLITS
from tests.data.fetch.conftest import TRAIN, VALID, XLA, Notes, part_files, tar_bytes, tree_of

MakeJob = Callable[..., FetchJob]


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


def unpack_tar(job: FetchJob, content: bytes) -> Path:
    job.out.mkdir(exist_ok=True)
    archive = job.out / "a.tar"
    archive.write_bytes(content)
    with opened_tar(archive) as contents:
        unpack(job, contents, job.parts, archive)
    return job.out


@pytest.mark.parametrize("lead", ["", "./", "npz_all/", "./npz_all/"])
def test_every_graph_lands_in_its_place(make_job: MakeJob, lead: str) -> None:
    folders = special(f"{lead}npz/layout/xla/default/train", tarfile.DIRTYPE)
    out = unpack_tar(make_job(TRAIN), tar_bytes(part_files(TRAIN), folders, lead=lead))
    assert tree_of(out) == part_files(TRAIN)


PLACE = "npz/layout/xla/default/train"


@pytest.mark.parametrize(
    "extra",
    [
        tarfile.TarInfo("../x.npz"),
        tarfile.TarInfo(f"{PLACE}/../../../../../../x.npz"),
        tarfile.TarInfo("/tmp/x.npz"),
        tarfile.TarInfo(f"/{PLACE}/x.npz"),
        tarfile.TarInfo(f"{PLACE}/x\\..\\y.npz"),
        tarfile.TarInfo(f"{PLACE}/x\n.npz"),
        special("../x", tarfile.DIRTYPE),
        special(f"{PLACE}/x.npz", tarfile.SYMTYPE),
        special(f"{PLACE}/x.npz", tarfile.LNKTYPE),
        special(f"{PLACE}/x.npz", tarfile.CHRTYPE),
        special(f"{PLACE}/x.npz", tarfile.BLKTYPE),
        special(f"{PLACE}/x.npz", tarfile.FIFOTYPE),
        special(PLACE, tarfile.SYMTYPE),
    ],
    ids=lambda info: f"{info.name!r} {info.type!r}",
)
def test_a_hostile_member_stops_everything(
    make_job: MakeJob, tmp_path: Path, extra: tarfile.TarInfo
) -> None:
    job = make_job(TRAIN)
    with pytest.raises(PipelineError, match="nothing of it was unpacked") as caught:
        unpack_tar(job, tar_bytes(part_files(TRAIN), extra))
    assert "\n" not in str(caught.value)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == [
        "out",
        "out/a.tar",
    ]


def test_names_that_are_no_graphs_are_left_out_and_said(make_job: MakeJob, notes: Notes) -> None:
    names = (
        "README",
        f"{PLACE}/._g.npz",
        f"{PLACE}/g.csv",
        f"{PLACE}/deeper/g.npz",
        "npz/layout/tpu/default/train/g.npz",
        "npz/layout/xla/default/trains/g.npz",
        "a/b/npz/layout/xla/default/train/g.npz",
        "npz/tile/xla/g.npz",
    )
    strange = dict.fromkeys(names, b"x")
    out = unpack_tar(make_job(TRAIN), tar_bytes(part_files(TRAIN) | strange))
    assert tree_of(out) == part_files(TRAIN)
    assert f"{len(strange)} files are no graphs" in notes.said[0]


@pytest.mark.parametrize("found", [0, 1, 3])
def test_a_wrong_number_of_graphs_names_the_part_and_writes_nothing(
    make_job: MakeJob, found: int
) -> None:
    job = make_job(TRAIN)
    with pytest.raises(PipelineError, match=rf"default/train: expected 2 graphs, found {found}"):
        unpack_tar(job, tar_bytes(part_files(TRAIN, found)))
    assert not (job.out / "npz").exists()
    assert finished(job, TRAIN) is None


@pytest.mark.parametrize("cut", [100, 50_000, 150_000, -11_000])
def test_a_cut_archive_is_named(make_job: MakeJob, cut: int) -> None:
    with pytest.raises(PipelineError, match=r"a\.tar: (not a whole archive|.*found [01];)"):
        unpack_tar(make_job(TRAIN), tar_bytes(part_files(TRAIN))[:cut])


def test_what_is_no_archive_is_named(make_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="not a whole archive"):
        unpack_tar(make_job(TRAIN), b"<html>maintenance</html>" * 1000)
    with (
        pytest.raises(PipelineError, match="not a whole archive"),
        opened_zip(tmp_path / "out/a.tar"),
    ):
        pass


def test_a_killed_unpacking_goes_on_and_ends_the_same(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, wanted = make_job(TRAIN, VALID), part_files(TRAIN) | part_files(VALID)
    folder = job.out / TRAIN.folder
    folder.mkdir(parents=True)
    first, second, *_ = wanted
    (job.out / first).write_bytes(wanted[first])
    (job.out / second).write_bytes(wanted[second][:100])  # as another version would have left it
    (folder / ".g.1.npz.abc.tmp").write_bytes(b"half")
    inode = (job.out / first).stat().st_ino
    unpack_tar(job, tar_bytes(wanted))
    assert tree_of(job.out) == wanted
    assert (job.out / first).stat().st_ino == inode  # kept, not written again


def test_a_stop_in_the_middle_of_a_file_leaves_whole_files_alone(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, wanted, calls = make_job(TRAIN), part_files(TRAIN), []
    copy = __import__("shutil").copyfileobj

    def interrupted(source: object, target: object, *rest: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            target.write(b"half")  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        copy(source, target, *rest)

    monkeypatch.setattr("shutil.copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unpack_tar(job, tar_bytes(wanted))
    assert len(tree_of(job.out)) == 1
    assert finished(job, TRAIN) is None
    unpack_tar(job, tar_bytes(wanted))
    assert tree_of(job.out) == wanted
    assert finished(job, TRAIN) is not None


def test_a_part_is_done_only_while_its_files_are_there(make_job: MakeJob) -> None:
    job = make_job(TRAIN)
    unpack_tar(job, tar_bytes(part_files(TRAIN)))
    done = finished(job, TRAIN)
    assert done is not None
    assert (done.graphs, done.bytes) == (2, sum(map(len, part_files(TRAIN).values())))
    next((job.out / TRAIN.folder).iterdir()).unlink()
    assert finished(job, TRAIN) is None


def test_a_file_that_is_not_of_the_dataset_is_named(make_job: MakeJob) -> None:
    job = make_job(TRAIN)
    (job.out / TRAIN.folder).mkdir(parents=True)
    (job.out / TRAIN.folder / "mine.npz").write_bytes(b"x")
    with pytest.raises(PipelineError, match=r"mine\.npz: not of the dataset"):
        unpack_tar(job, tar_bytes(part_files(TRAIN)))


def test_zip_members_are_checked_alike(make_job: MakeJob, tmp_path: Path) -> None:
    job, wanted = make_job(TRAIN), part_files(TRAIN)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in wanted.items():
            archive.writestr(f"npz_all/{name}", content)
    with opened_zip(path) as contents:
        unpack(job, contents, [TRAIN], path)
    assert tree_of(job.out) == wanted
    link = zipfile.ZipInfo(f"{PLACE}/x.npz")
    link.external_attr = 0o120777 << 16
    for hostile in (link, "../x.npz", "/x.npz"):
        again = tmp_path / "b.zip"
        again.write_bytes(path.read_bytes())
        with zipfile.ZipFile(again, "a") as archive:
            archive.writestr(hostile, b"x")
        with pytest.raises(PipelineError, match="nothing of it was unpacked"), opened_zip(again):
            pass


def test_a_damaged_zip_member_is_named_and_not_kept(make_job: MakeJob, tmp_path: Path) -> None:
    job, path, packed = make_job(TRAIN), tmp_path / "a.zip", io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in part_files(TRAIN).items():
            archive.writestr(name, content)
    damaged = bytearray(packed.getvalue())
    damaged[50_000] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(PipelineError, match="not a whole archive"), opened_zip(path) as contents:
        unpack(job, contents, [TRAIN], path)
    assert tree_of(job.out) == {}


@pytest.mark.parametrize("part", PUBLISHED_GRAPHS, ids=lambda part: part.label)
def test_every_part_knows_its_place_and_its_published_name(part: Part) -> None:
    name = f"{part.folder.as_posix()}/a.b-1.npz"
    assert place_of(f"npz_all/{name}", "x") == place_of(name, "x") == (part, "a.b-1.npz")
    words = [*part.collection.folder.split("/"), part.split]
    assert part.stem == "_".join(["npz", *words])


def test_parts_are_chosen_by_name() -> None:
    assert parts_named(None, None) == list(PUBLISHED_GRAPHS)
    assert len(PUBLISHED_GRAPHS) == len(COLLECTIONS) * len(SPLITS)
    assert parts_named("layout:xla:default,layout-xla-default", "valid, valid") == [VALID]
    assert parts_named("layout:xla:default", None) == [Part(XLA, split) for split in SPLITS]
    for wrong in (("tile", None), ("", None), (None, "tests"), (None, "")):
        with pytest.raises(PipelineError):
            parts_named(*wrong)
