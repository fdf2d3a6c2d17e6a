"""From archives to the official tree: every member checked before the first byte is written."""

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from common.atomic import atomic_path
from common.errors import PipelineError
from data.fetch.job import Fetched, FetchJob, check_count, finish
from data.fetch.parts import Part, place_of

_CHUNK = 2**20


@dataclass(frozen=True)
class Member:
    """One graph's file inside an archive."""

    part: Part
    name: str
    size: int
    open: Callable[[], IO[bytes]]


@dataclass(frozen=True)
class Contents:
    """What an archive holds: graphs by part and name, and the names of anything else."""

    graphs: Mapping[Part, Mapping[str, Member]]
    others: Sequence[str]


@contextmanager
def opened_tar(path: Path) -> Iterator[Contents]:
    """Yield the contents of an uncompressed tar archive.

    Raises:
        PipelineError: the archive is damaged, or holds links, devices or paths out of the folder.
    """
    with damage_named(path), tarfile.open(path, "r:") as tar:
        files = [info for info in tar if _is_tar_file(info, path)]
        yield _sorted_out(
            [(info.name, info.size, _opener(tar, info)) for info in files],
            path,
        )


@contextmanager
def opened_zip(path: Path) -> Iterator[Contents]:
    """Yield the contents of a zip archive.

    Raises:
        PipelineError: the archive is damaged, or holds links or paths out of the folder.
    """
    with damage_named(path), zipfile.ZipFile(path) as archive:
        files = [info for info in archive.infolist() if _is_zip_file(info, path)]
        yield _sorted_out(
            [(info.filename, info.file_size, _zip_opener(archive, info)) for info in files],
            path,
        )


def unpack(job: FetchJob, contents: Contents, parts: Sequence[Part], source: Path) -> list[Fetched]:
    """Write the graphs of `parts` below the data folder and mark each part done.

    A graph that is there with the right size is kept, so that a killed call can go on.

    Raises:
        PipelineError: a part has another number of graphs than was published; then nothing is
            written.
    """
    for part in parts:
        check_count(job, part, len(contents.graphs.get(part, {})), source)
    if contents.others:
        job.say(
            f"{source.name}: {len(contents.others)} files are no graphs of the dataset, such as "
            f"{contents.others[0]}; left out"
        )
    fetched = []
    for part in parts:
        members = contents.graphs.get(part, {})
        _write(job, part, members)
        fetched.append(finish(job, part, set(members)))
    return fetched


def place(member: Member, target: Path) -> None:
    """Write one graph's file, whole or not at all; one of the same size is kept.

    Raises:
        PipelineError: the archive ends early, or the disk is full.
    """
    if target.is_file() and target.stat().st_size == member.size:
        return
    with atomic_path(target) as temporary:
        with member.open() as source, temporary.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
        if temporary.stat().st_size != member.size:
            raise PipelineError(f"{target.name}: the archive holds less of it than it announces")


def _write(job: FetchJob, part: Part, members: Mapping[str, Member]) -> None:
    folder = job.out / part.folder
    for litter in folder.glob(".*.npz.*.tmp"):  # of a call that was killed
        litter.unlink()
    done, total = 0, sum(member.size for member in members.values())
    for name, member in members.items():
        place(member, folder / name)
        done += member.size
        job.progress(f"unpack {part.label}", done, total)


def _sorted_out(
    files: Sequence[tuple[str, int, Callable[[], IO[bytes]]]], source: Path
) -> Contents:
    graphs: dict[Part, dict[str, Member]] = {}
    others = []
    for path, size, open_member in files:
        found = place_of(path, source)
        if found is None:
            others.append(path)
        else:
            part, name = found
            graphs.setdefault(part, {})[name] = Member(part, name, size, open_member)
    return Contents(graphs, others)


def _is_tar_file(info: tarfile.TarInfo, source: Path) -> bool:
    place_of(info.name, source)  # folders too must stay inside
    if info.isdir():
        return False
    if not info.isreg() or info.issparse():
        raise PipelineError(_not_a_file(source, info.name))
    return True


def _is_zip_file(info: zipfile.ZipInfo, source: Path) -> bool:
    place_of(info.filename, source)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise PipelineError(_not_a_file(source, info.filename))
    return not info.is_dir()


def _not_a_file(source: Path, name: str) -> str:
    return (
        f"{source}: member {name!r} is a link or a device, expected plain files alone; nothing of "
        "it was unpacked: do not use this file"
    )


def _opener(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
    def open_member() -> IO[bytes]:
        source = tar.extractfile(info)
        assert source is not None, "a plain file was checked before"
        return source

    return open_member


def _zip_opener(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    return lambda: archive.open(info)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn what readers of damaged archives raise into one line."""
    try:
        yield
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,  # an encrypted member
    ) as error:
        raise PipelineError(
            f"{path}: not a whole archive ({error}); delete it and run the command again"
        ) from error
