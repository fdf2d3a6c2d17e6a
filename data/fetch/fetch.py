"""The dataset from its authors' server, one archive per part, or from Kaggle, in one archive.

Every member of an archive is checked before any of them is read.
"""

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Self

from requests import Session

from common.atomic import atomic_path, sweep, write_text
from common.errors import PipelineError
from common.http import limited_session
from common.progress import progress
from common.retry import RetryPolicy
from data.fetch.download import bytes_here, check_address, download, remote_size
from data.official.published import PUBLISHED_GRAPHS, Part

BASE = "https://download.tensorflow.org/data/tpu_graphs/v0/"
COMPETITION = "predict-ai-model-runtime"
GIB = 2**30
_KAGGLE_ABOUT = 6 * 10**9  # bytes, as the competition's page says: for a first check
_CHUNK = 2**20
_LARGEST = 2**31  # bytes; the largest that was published has far less
_LARGEST_TREE = 2**36  # bytes, several times the whole dataset
_LONGEST_NAME = 200  # bytes of a file's name: a temporary one beside it is some longer
_LARGEST_HEADER = 2**16  # bytes of a long name or of attributes, which Python reads at once
_LINK = "is a link or a device, expected plain files alone"
_PARTS = {part.folder.as_posix(): part for part in PUBLISHED_GRAPHS}


@dataclass(frozen=True)
class ArchiveMember:
    """One file inside an archive; `problem` says why it must not be unpacked, if so."""

    archive: Path
    name: str
    size: int
    open: Callable[[], IO[bytes] | None]
    problem: str

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's content, which may end early; PipelineError: the archive is damaged."""
        with _reading(self.archive):
            source = self.open()
            assert source is not None, "a plain file was checked before"
            with source:
                yield from iter(partial(source.read, _CHUNK), b"")


Graphs = dict[Part, dict[str, ArchiveMember]]  # by part and by the file's name


@dataclass(frozen=True)
class FetchJob:
    """Which parts, where to, and how to behave meanwhile."""

    parts: Sequence[Part]
    out: Path
    expected: Mapping[Part, int] = field(default_factory=lambda: PUBLISHED_GRAPHS)
    policy: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def downloads(self) -> Path:
        """Return the folder of archives, unfinished ones, and marks."""
        return self.out / "downloads"


@dataclass(frozen=True)
class Fetched:
    """A part that is whole."""

    part: Part
    graphs: int
    bytes: int
    was_there: bool  # a former call has fetched it


def fetch_google(job: FetchJob, *, base: str = BASE) -> list[Fetched]:
    """Fetch the parts one after the other; each archive goes once its part is whole.

    Raises:
        PipelineError: a file is refused, the network fails for good, an archive is not what was
            published, or the disk is too small.
    """
    base = f"{base.rstrip('/')}/"
    check_address(base)
    done = {part: finished(job, part) for part in job.parts}
    missing = [part for part in job.parts if done[part] is None]
    with limited_session() as session:
        _check_space(job, missing, base, session)
        for part in missing:
            archive = job.downloads / f"{part.stem}.tar"
            download(session, base + archive.name, archive, policy=job.policy)
            with opened(archive) as graphs:
                (done[part],) = unpack(job, graphs, [part], archive)
            archive.unlink()
    return [fetched for fetched in done.values() if fetched]


def fetch_kaggle(job: FetchJob) -> list[Fetched]:
    """Download the whole competition, resumed where it broke off, and unpack the parts.

    Raises:
        PipelineError: no or refused credentials, rules not accepted, the network fails for good,
            files that are not what was published, or the disk is too small.
    """
    from common.kaggle import ask, kaggle_session

    done = {part: finished(job, part) for part in job.parts}
    missing = [part for part in job.parts if done[part] is None]
    if missing:
        archive = job.downloads / f"{COMPETITION}.zip"
        _require_space(job, _KAGGLE_ABOUT - bytes_here(archive))
        with kaggle_session(f"fetch {COMPETITION}", job.policy) as session:
            named = {"competitionName": COMPETITION}
            found = partial(session.call, "competitions", "download_data_files", named)
            with ask(session, found) as answer:
                address = answer.url  # signed, on another host
        with limited_session() as http:
            download(http, address, archive, policy=job.policy)
        with opened(archive) as graphs:
            done |= {got.part: got for got in unpack(job, graphs, missing, archive)}
        archive.unlink()
    return [fetched for fetched in done.values() if fetched]


def unpack(job: FetchJob, graphs: Graphs, parts: Sequence[Part], source: Path) -> list[Fetched]:
    """Write the graphs of `parts` below the data folder and mark each part done.

    A graph that is there with the right size is kept, so that a killed call can go on.

    Raises:
        PipelineError: a part has another number of graphs than was published, or the disk is too
            small, and nothing is written; or the archive ends early.
    """
    for part in parts:
        found = len(graphs.get(part, {}))
        if found != job.expected[part]:
            raise PipelineError(
                f"{source}: {part.label}: expected {job.expected[part]} graphs, found {found}; "
                "delete this file and run the command again, or try the other --source"
            )
    there = {part: _sizes(job.out / part.folder) for part in parts}
    missing = [m.size for p in parts for n, m in graphs[p].items() if there[p].get(n) != m.size]
    _require_space(job, sum(missing))
    return [_unpack_part(job, part, graphs[part]) for part in parts]


def finished(job: FetchJob, part: Part) -> Fetched | None:
    """Return the part if its mark is there and says what its folder holds; else None."""
    sizes, mark = _sizes(job.out / part.folder), _mark(job, part)
    is_whole = mark.is_file() and mark.read_bytes() == _held(sizes)
    return Fetched(part, len(sizes), sum(sizes.values()), was_there=True) if is_whole else None


def _unpack_part(job: FetchJob, part: Part, members: Mapping[str, ArchiveMember]) -> Fetched:
    folder = job.out / part.folder
    sweep(folder)  # what a killed call has left
    there = _sizes(folder)
    strange = sorted(there.keys() - members.keys())
    if strange:
        raise PipelineError(f"{folder / strange[0]}: not of the dataset; move it away")
    done, total = 0, sum(member.size for member in members.values())
    for name, member in members.items():
        if there.get(name) != member.size:
            _place(member, folder / name)
        done += member.size
        progress(f"unpack {part.label}", done, total)
    write_text(_mark(job, part), _held(_sizes(folder)).decode())
    return Fetched(part, len(members), total, was_there=False)


def _place(member: ArchiveMember, target: Path) -> None:
    with atomic_path(target) as temporary:
        with temporary.open("wb") as file:
            file.writelines(member.chunks())
        if temporary.stat().st_size != member.size:
            raise PipelineError(
                f"{member.archive}: holds less of {target.name} than it announces; delete it"
            )


def _mark(job: FetchJob, part: Part) -> Path:
    return job.downloads / f"{part.stem}.DONE"


def _held(sizes: Mapping[str, int]) -> bytes:
    return f"{len(sizes)} graphs, {sum(sizes.values())} bytes\n".encode()


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("[!.]*.npz")}


def _check_space(job: FetchJob, parts: list[Part], base: str, session: Session) -> None:
    """Check that the disk holds all that is unpacked, and the largest archive beside it.

    An uncompressed archive is about as large as what it holds.
    """
    archives, unpacked = [0], 0
    for part in parts:
        archive = job.downloads / f"{part.stem}.tar"
        size = remote_size(session, base + archive.name, job.policy)
        archives.append(max(0, size - bytes_here(archive)))
        unpacked += max(0, size - sum(_sizes(job.out / part.folder).values()))
    _require_space(job, unpacked + max(archives))


def _require_space(job: FetchJob, needed: int) -> None:
    existing = next(path for path in (job.out, *job.out.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise PipelineError(
            f"{job.out}: needs {needed / GIB:.2f} GiB, {free / GIB:.2f} GiB are free; make room, "
            "choose another --out, or fewer --collections"
        )


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
        if info.size < 0 or (not info.isreg() and info.size > _LARGEST_HEADER):
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
    for info in tar:
        if not info.isdir():
            problem = "" if info.isreg() and not info.issparse() else _LINK
            yield ArchiveMember(path, info.name, info.size, partial(tar.extractfile, info), problem)


def _zip_members(archive: zipfile.ZipFile, path: Path) -> Iterator[ArchiveMember]:
    for info in archive.infolist():
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
        part, name = _place_of(member.name, path) or (None, "")
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


def _place_of(name: str, source: object) -> tuple[Part, str] | None:
    """Tell where an archive's member belongs: its part and its file name; None if nowhere.

    Expected is npz/<kind>/<source>[/<search>]/<split>/<graph>.npz, with at most one leading folder
    ("npz_all", as Kaggle has it).

    Raises:
        PipelineError: the path is absolute, climbs up, or holds what no file name can.
    """
    parts = PurePosixPath(name).parts
    too_long = any(len(part.encode(errors="replace")) > _LONGEST_NAME for part in parts)
    climbs = name.startswith("/") or ".." in parts or "\\" in name
    if climbs or too_long or not name.isprintable():
        raise PipelineError(
            f"{source}: member {ascii(name)[:200]} would leave the folder, or can name no file; "
            "nothing of it was unpacked: do not use this file"
        )
    path = PurePosixPath(*(parts if parts[:1] == ("npz",) else parts[1:]))
    part = _PARTS.get(str(path.parent))
    is_graph = path.suffix == ".npz" and not path.name.startswith(".")
    return (part, path.name) if part and is_graph else None
