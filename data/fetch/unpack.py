"""From archives to the official tree: every member checked before the first byte is written."""

import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from common.atomic import atomic_path, sweep
from common.errors import PipelineError
from common.kaggle.errors import one_line
from common.progress import log, progress
from data.fetch.job import Fetched, FetchJob, finish, graphs_in, require_space
from data.fetch.parts import Part, place_of

_CHUNK = 2**20
_LARGEST_GRAPH = 2**31  # bytes; the largest that was published has far less
_LARGEST_TREE = 2**36  # bytes, several times the whole dataset
# What stands before a member, a long name or attributes, Python reads at once, whatever its size.
_READ_AT_ONCE = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_LARGEST_HEADER = 2**16  # bytes


@dataclass(frozen=True)
class Member:
    """One graph's file inside an archive."""

    archive: Path
    name: str
    size: int
    open: Callable[[], IO[bytes] | None]

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's content.

        Raises:
            PipelineError: the archive is damaged.
        """
        with _reading(self.archive):
            source = self.open()
            assert source is not None, "a plain file was checked before"
            with source:
                while chunk := source.read(_CHUNK):
                    yield chunk


@dataclass(frozen=True)
class Contents:
    """What an archive holds: graphs by part and name, and the names of anything else."""

    path: Path
    graphs: Mapping[Part, Mapping[str, Member]]
    others: Sequence[str]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever readers of damaged archives raise into one line; nothing is written here."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise PipelineError(
            f"{path}: not a whole archive ({said}); delete it and run the command again"
        ) from error


@contextmanager
def opened_tar(path: Path) -> Iterator[Contents]:
    """Yield the contents of an uncompressed tar archive.

    Raises:
        PipelineError: the archive is damaged, or holds links, devices or paths out of the folder.
    """
    with _reading(path):
        tar = tarfile.open(path, "r:", tarinfo=_Header)  # noqa: SIM115 - closed below
    with tar:
        with _reading(path):
            files = [_tar_file(tar, info, path) for info in tar if not _is_tar_folder(info, path)]
            _require_size(path, sum(file.size for file in files), path.stat().st_size)
            contents = _sorted_out(files, path)
        yield contents


@contextmanager
def opened_zip(path: Path) -> Iterator[Contents]:
    """Yield the contents of a zip archive.

    Raises:
        PipelineError: the archive is damaged, or holds links or paths out of the folder.
    """
    with _reading(path):
        archive = zipfile.ZipFile(path)
    with archive:
        with _reading(path):
            infos = [info for info in archive.infolist() if not _is_zip_folder(info, path)]
            contents = _sorted_out([_zip_file(archive, info, path) for info in infos], path)
        yield contents


def unpack(job: FetchJob, contents: Contents, parts: Sequence[Part]) -> list[Fetched]:
    """Write the graphs of `parts` below the data folder and mark each part done.

    A graph that is there with the right size is kept, so that a killed call can go on.

    Raises:
        PipelineError: a part has another number of graphs than was published, or the disk is too
            small; then nothing is written.
    """
    needed = 0
    for part in parts:
        members, there = contents.graphs.get(part, {}), graphs_in(job.out / part.folder)
        if len(members) != job.expected[part]:
            raise PipelineError(
                f"{contents.path}: {part.label}: expected {job.expected[part]} graphs, found "
                f"{len(members)}; delete this file and run the command again, or try the other "
                "--source"
            )
        needed += sum(m.size for name, m in members.items() if there.get(name) != m.size)
    require_space(job, needed)
    if contents.others:
        log.info(
            f"{contents.path.name}: {len(contents.others)} files are no graphs of the dataset, "
            f"such as {one_line(contents.others[0])}; left out"
        )
    return [_unpack_part(job, part, contents.graphs.get(part, {})) for part in parts]


def _unpack_part(job: FetchJob, part: Part, members: Mapping[str, Member]) -> Fetched:
    folder = job.out / part.folder
    sweep(folder)  # what a killed call has left
    done, total = 0, sum(member.size for member in members.values())
    for name, member in members.items():
        _place(member, folder / name)
        done += member.size
        progress(f"unpack {part.label}", done, total)
    return finish(job, part, set(members))


def _place(member: Member, target: Path) -> None:
    """Write one graph's file, whole or not at all; one of the same size is kept."""
    if target.is_file() and target.stat().st_size == member.size:
        return
    with atomic_path(target) as temporary:
        with temporary.open("wb") as file:
            file.writelines(member.chunks())
        if temporary.stat().st_size != member.size:
            raise PipelineError(
                f"{member.archive}: holds less of {target.name} than it announces; delete it and "
                "run the command again"
            )


class _Header(tarfile.TarInfo):
    """A tar header whose size can be: a negative one would lead the reader back, for ever."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (info.type in _READ_AT_ONCE and info.size > _LARGEST_HEADER):
            raise tarfile.ReadError(f"a member's size is {info.size}")
        return info


def _tar_file(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> Member:
    _require_size(path, info.size, _LARGEST_GRAPH)
    return Member(path, info.name, info.size, lambda: tar.extractfile(info))


def _zip_file(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Member:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise _refused(path, info.filename, "is encrypted or of an unusual compression")
    _require_size(path, info.file_size, _LARGEST_GRAPH)
    return Member(path, info.filename, info.file_size, lambda: archive.open(info))


def _require_size(path: Path, announced: int, most: int) -> None:
    if not 0 <= announced <= most:
        raise PipelineError(
            f"{path}: announces {announced} bytes where at most {most} can be; delete it and run "
            "the command again"
        )


def _sorted_out(files: Iterable[Member], path: Path) -> Contents:
    graphs: dict[Part, dict[str, Member]] = {}
    others = []
    for file in files:
        found = place_of(file.name, path)
        if found is None:
            others.append(file.name)
            continue
        part, name = found
        if name in graphs.setdefault(part, {}):
            raise _refused(path, file.name, "is there twice")
        graphs[part][name] = file
    announced = sum(file.size for members in graphs.values() for file in members.values())
    _require_size(path, announced, _LARGEST_TREE)
    return Contents(path, graphs, others)


def _is_tar_folder(info: tarfile.TarInfo, path: Path) -> bool:
    place_of(info.name, path)  # folders too must stay inside
    if not info.isdir() and (not info.isreg() or info.issparse()):
        raise _refused(path, info.name, "is a link or a device, expected plain files alone")
    return info.isdir()


def _is_zip_folder(info: zipfile.ZipInfo, path: Path) -> bool:
    place_of(info.filename, path)
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(path, info.filename, "is a link or a device, expected plain files alone")
    return info.is_dir()


def _refused(path: Path, name: str, problem: str) -> PipelineError:
    return PipelineError(
        f"{path}: member {one_line(ascii(name))} {problem}; nothing of it was unpacked: do not use "
        "this file"
    )
