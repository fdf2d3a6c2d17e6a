"""The graphs in an archive from outside: every member is checked before any of them is read."""

import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Self

from common.errors import PipelineError
from data.fetch.parts import Part, place_of

_CHUNK = 2**20
_LARGEST = 2**31  # bytes; the largest that was published has far less
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
_LINK = "is a link or a device, expected plain files alone"


@dataclass(frozen=True)
class ArchiveMember:
    """One file inside an archive; `problem` says why it must not be unpacked, if so."""

    archive: Path
    name: str
    size: int
    open: Callable[[], IO[bytes] | None]
    problem: str

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's content, of which an archive may hold less than it announces.

        Raises:
            PipelineError: the archive is damaged.
        """
        with _reading(self.archive):
            source = self.open()
            assert source is not None, "a plain file was checked before"
            with source:
                yield from iter(partial(source.read, _CHUNK), b"")


Graphs = dict[Part, dict[str, ArchiveMember]]  # by part and by the file's name


@contextmanager
def opened(path: Path) -> Iterator[Graphs]:
    """Yield the graphs of an uncompressed tar archive, or, by any other suffix, of a zip archive.

    Raises:
        PipelineError: the archive is damaged, announces more than can be, or holds links, devices,
            one graph twice, or paths that lead out of the folder.
    """
    with _reading(path):
        is_tar = path.suffix == ".tar"
        archive = tarfile.open(path, tarinfo=_Header) if is_tar else zipfile.ZipFile(path)  # noqa: SIM115
    with archive:
        with _reading(path):
            if isinstance(archive, tarfile.TarFile):
                members = _tar_members(archive, path)
            else:
                members = _zip_members(archive, path)
            graphs = _checked(members, path)
        yield graphs


class _Header(tarfile.TarInfo):
    """A tar header whose size can be: a negative one would lead the reader back, for ever."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (info.type in _READ_AT_ONCE and info.size > _LARGEST_HEADER):
            raise tarfile.ReadError(f"a member's size is {info.size}")
        return info


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:200]
        raise PipelineError(
            f"{path}: not a whole archive ({said}); delete it and run the command again"
        ) from error


def _tar_members(tar: tarfile.TarFile, path: Path) -> Iterator[ArchiveMember]:
    size, announced = path.stat().st_size, 0
    for info in tar:
        place_of(info.name, path)  # folders too must stay inside
        if not info.isdir():
            announced += info.size
            problem = "" if info.isreg() and not info.issparse() else _LINK
            if not 0 <= info.size <= announced <= size:
                raise tarfile.ReadError(f"a member announces {info.size} bytes")
            yield ArchiveMember(path, info.name, info.size, partial(tar.extractfile, info), problem)


def _zip_members(archive: zipfile.ZipFile, path: Path) -> Iterator[ArchiveMember]:
    for info in archive.infolist():
        place_of(info.filename, path)
        usual = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        problem = "" if usual and not info.flag_bits & 1 else "is of an unusual compression"
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            problem = _LINK
        if not info.is_dir():
            opening = partial(archive.open, info)
            yield ArchiveMember(path, info.filename, info.file_size, opening, problem)


def _checked(members: Iterable[ArchiveMember], path: Path) -> Graphs:
    graphs: Graphs = {}
    announced = 0
    for member in members:
        part, name = place_of(member.name, path) or (None, "")
        announced += member.size
        is_twice = part and name in graphs.get(part, {})
        fault = member.problem or ("is there twice" if is_twice else "")
        if member.size > _LARGEST or announced > _LARGEST_TREE:
            fault = f"announces {member.size} bytes, more than can be"
        if fault:
            raise PipelineError(
                f"{path}: member {ascii(member.name)[:200]} {fault}; nothing of it was unpacked: "
                "do not use this file"
            )
        if part:
            graphs.setdefault(part, {})[name] = member
    return graphs
