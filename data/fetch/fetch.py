"""Download the dataset: one archive per part from its authors, or one archive from Kaggle.

Every member of an archive is checked before any of them is read.
"""

import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Self

from requests import Session

from common.errors import PipelineError
from common.files import atomic_path, sweep
from common.http import RetryPolicy
from common.progress import progress
from data.fetch.download import bytes_here, check_address, download, remote_size
from data.official.published import PUBLISHED_GRAPHS

BASE = "https://download.tensorflow.org/data/tpu_graphs/v0/"
COMPETITION = "predict-ai-model-runtime"
GIB = 2**30
# Size of the archive by the competition's page, for a first check of the disk.
_KAGGLE_BYTES = 6 * 10**9
_CHUNK_BYTES = 2**20
_MAX_GRAPH_BYTES = 2**31  # the largest published graph has far less
# Long names and attributes, which Python reads at once.
_MAX_HEADER_BYTES = 2**16


class ArchiveMember(NamedTuple):
    """One file inside an archive."""

    name: str
    size: int
    is_plain: bool  # no link or device, and packed as usual
    open: Callable[[], IO[bytes] | None]


Graphs = dict[str, dict[str, ArchiveMember]]  # by part and by the file's name


@dataclass(frozen=True)
class FetchJob:
    """The parts to fetch, such as "tile:xla/train", their folder, and the policy of retries."""

    parts: Sequence[str]
    out: Path
    expected: Mapping[str, int] = field(default_factory=lambda: PUBLISHED_GRAPHS)
    policy: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def downloads(self) -> Path:
        """Return the folder of archives, whole or not."""
        return self.out / "downloads"

    def archive_of(self, part: str) -> Path:
        """Return the archive of a part, with the published name: "npz_tile_xla_train.tar"."""
        return self.downloads / f"npz_{re.sub('[:/]', '_', part)}.tar"

    def folder_of(self, part: str) -> Path:
        return self.out / "npz" / part.replace(":", "/")


class FetchedPart(NamedTuple):
    """A part that is whole."""

    part: str
    graphs: int
    bytes: int
    was_there: bool  # a former call has fetched it


def fetch_google(job: FetchJob, *, base: str = BASE) -> list[FetchedPart]:
    """Fetch parts one after the other. Each archive is removed when its part is whole."""
    base = f"{base.rstrip('/')}/"
    check_address(base)
    results = {part: finished_part(job, part) for part in job.parts}
    missing = [part for part in job.parts if results[part] is None]
    with Session() as session:
        _check_space(job, missing, base, session)
        for part in missing:
            archive = job.archive_of(part)
            download(session, base + archive.name, archive, policy=job.policy)
            (results[part],) = unpack(job, [part], archive)
    return [result for result in results.values() if result]


def fetch_kaggle(job: FetchJob) -> list[FetchedPart]:
    """Download the archive of the competition, which may resume, and unpack the parts."""
    from common.kaggle import ask, kaggle_session

    results = {part: finished_part(job, part) for part in job.parts}
    missing = [part for part in job.parts if results[part] is None]
    if missing:
        archive = job.downloads / f"{COMPETITION}.zip"
        _require_space(job, _KAGGLE_BYTES - bytes_here(archive))
        with kaggle_session(f"fetch {COMPETITION}", job.policy) as session:
            fields = {"competitionName": COMPETITION}
            request = partial(session.call, "competitions", "download_data_files", fields)
            with ask(session, request) as answer:
                address = answer.url  # signed, on another host
        with Session() as http:
            download(http, address, archive, policy=job.policy)
        results |= {result.part: result for result in unpack(job, missing, archive)}
    return [result for result in results.values() if result]


def unpack(job: FetchJob, parts: Sequence[str], archive: Path) -> list[FetchedPart]:
    """Write the graphs of parts below the data folder, and remove the archive.

    A graph of the right size is not written again, so a killed call can resume.
    """
    with open_archive(archive) as graphs:
        for part in parts:
            n_graphs = len(graphs.get(part, {}))
            if n_graphs != job.expected[part]:
                raise PipelineError(
                    f"{archive}: {part}: expected {job.expected[part]} graphs, "
                    f"found {n_graphs}; delete this file and run the command again, or "
                    "try the other --source"
                )
        present = {part: _sizes(job.folder_of(part)) for part in parts}
        lacking = [
            m.size for p in parts for n, m in graphs[p].items() if present[p].get(n) != m.size
        ]
        _require_space(job, sum(lacking))
        results = [_unpack_part(job, part, graphs[part], archive) for part in parts]
    archive.unlink()
    return results


def finished_part(job: FetchJob, part: str) -> FetchedPart | None:
    """Return a part if its folder has all its graphs; else None. Each file is written whole."""
    sizes = _sizes(job.folder_of(part))
    is_whole = len(sizes) == job.expected[part]
    return FetchedPart(part, len(sizes), sum(sizes.values()), was_there=True) if is_whole else None


def _unpack_part(
    job: FetchJob, part: str, members: Mapping[str, ArchiveMember], archive: Path
) -> FetchedPart:
    folder = job.folder_of(part)
    sweep(folder)
    present = _sizes(folder)
    strange = sorted(present.keys() - members.keys())
    if strange:
        raise PipelineError(f"{folder / strange[0]}: not of the dataset; move it away")
    n_bytes, total = 0, sum(member.size for member in members.values())
    for name, member in members.items():
        if present.get(name) != member.size:
            with atomic_path(folder / name) as temporary, temporary.open("wb") as file:
                file.writelines(_chunks(member, archive))
        n_bytes += member.size
        progress(f"unpack {part}", n_bytes, total)
    return FetchedPart(part, len(members), total, was_there=False)


def _chunks(member: ArchiveMember, archive: Path) -> Iterator[bytes]:
    with _reading(archive):
        source, n_left = member.open(), member.size
        while source and n_left and (chunk := source.read(_CHUNK_BYTES)):
            n_left -= len(chunk)
            yield chunk
        if n_left:
            raise EOFError(f"holds less of {member.name} than it announces")


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("[!.]*.npz")}


def _check_space(job: FetchJob, parts: list[str], base: str, session: Session) -> None:
    """Check that the disk has room for all unpacked files, and for the largest archive.

    An uncompressed archive is about as large as its content.
    """
    archives, content_bytes = [0], 0
    for part in parts:
        archive = job.archive_of(part)
        size = remote_size(session, base + archive.name, job.policy)
        archives.append(max(0, size - bytes_here(archive)))
        content_bytes += max(0, size - sum(_sizes(job.folder_of(part)).values()))
    _require_space(job, content_bytes + max(archives))


def _require_space(job: FetchJob, n_bytes: int) -> None:
    existing = next(path for path in (job.out, *job.out.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if n_bytes > free:
        raise PipelineError(
            f"{job.out}: needs {n_bytes / GIB:.2f} GiB, {free / GIB:.2f} GiB are free; make room, "
            "choose another --out, or fewer --collections"
        )


@contextmanager
def open_archive(path: Path) -> Iterator[Graphs]:
    """Yield the graphs of a tar archive, or, by any other suffix than .tar, of a zip archive."""
    with _reading(path):
        is_tar = path.suffix == ".tar"
        archive = tarfile.open(path, tarinfo=_Header) if is_tar else zipfile.ZipFile(path)  # noqa: SIM115
    with archive:
        with _reading(path):
            graphs = _graph_members(archive, path)
        yield graphs


class _Header(tarfile.TarInfo):
    """A tar header with a possible size: a negative one would lead the reader back, for ever."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (not info.isreg() and info.size > _MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a member's size is {info.size}")
        return info


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise PipelineError(
            f"{path}: not a whole archive ({reason}); delete it and run the command again"
        ) from error


def _members(archive: tarfile.TarFile | zipfile.ZipFile) -> Iterator[ArchiveMember]:
    if isinstance(archive, tarfile.TarFile):
        for info in archive:
            if not info.isdir():
                is_plain, opening = info.isreg(), partial(archive.extractfile, info)
                yield ArchiveMember(info.name, info.size, is_plain and not info.issparse(), opening)
        return
    for entry in archive.infolist():
        if not entry.is_dir():
            kind = stat.S_IFMT(entry.external_attr >> 16)
            is_usual = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            is_plain = is_usual and kind in (0, stat.S_IFREG) and not entry.flag_bits & 1
            yield ArchiveMember(
                entry.filename, entry.file_size, is_plain, partial(archive.open, entry)
            )


def _graph_members(archive: tarfile.TarFile | zipfile.ZipFile, path: Path) -> Graphs:
    """Return the graphs of the dataset in an archive. All other members are ignored.

    The path of a graph is npz/<kind>/<source>[/<search>]/<split>/<graph>.npz, with at most one
    leading folder ("npz_all", as in Kaggle's archive). So no member can escape from the folder.
    """
    graphs: Graphs = {}
    part_of = {f"npz/{part.replace(':', '/')}": part for part in PUBLISHED_GRAPHS}
    for member in _members(archive):
        parts = PurePosixPath(member.name).parts
        place = PurePosixPath(*(parts if parts[:1] == ("npz",) else parts[1:]))
        part = part_of.get(str(place.parent))
        if part is None or place.suffix != ".npz" or place.name.startswith("."):
            continue
        fault = ""
        if not member.is_plain or not member.name.isprintable():
            fault = "is no plain file"
        elif member.size > _MAX_GRAPH_BYTES:
            fault = f"announces {member.size} bytes, more than can be"
        elif place.name in graphs.get(part, {}):
            fault = "is there twice"
        if fault:
            raise PipelineError(
                f"{path}: member {ascii(member.name)[:200]} {fault}; nothing of it was unpacked: "
                "do not use this file"
            )
        graphs.setdefault(part, {})[place.name] = member
    return graphs
