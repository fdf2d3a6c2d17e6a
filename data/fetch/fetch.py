"""The dataset from its authors' server, one archive per part, or from Kaggle, in one archive."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from requests import Session

from common.atomic import atomic_path, sweep, write_text
from common.errors import PipelineError
from common.progress import progress
from common.retry import RetryableError, RetryPolicy
from data.fetch.archives import ArchiveMember, Graphs, opened
from data.fetch.download import bytes_here, check_address, download, http_session, remote_size
from data.fetch.parts import PUBLISHED_GRAPHS, Part

BASE = "https://download.tensorflow.org/data/tpu_graphs/v0/"
COMPETITION = "predict-ai-model-runtime"
GIB = 2**30
_KAGGLE_ABOUT = 6 * 10**9  # bytes, as the competition's page says: for a first check
_CLIENT_MARK = ".kaggle-partial"
_WRONG_SIZE = "does not match expected size"  # in the client's words


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
    with http_session(job.policy) as session:
        _check_space(job, missing, base, session)
        for part in missing:
            archive = job.downloads / f"{part.stem}.tar"
            download(session, base + archive.name, archive, policy=job.policy)
            with opened(archive) as graphs:
                (done[part],) = unpack(job, graphs, [part], archive)
            archive.unlink()
    return [fetched for fetched in done.values() if fetched]


def fetch_kaggle(job: FetchJob) -> list[Fetched]:
    """Download the whole competition, which the client resumes, and unpack the parts.

    Raises:
        PipelineError: no or refused credentials, rules not accepted, the network fails for good,
            files that are not what was published, or the disk is too small.
    """
    from common.kaggle import ask, kaggle_session

    done = {part: finished(job, part) for part in job.parts}
    missing = [part for part in job.parts if done[part] is None]
    if missing:
        folder = job.downloads / COMPETITION
        there = sum(path.stat().st_size for path in folder.glob("*"))
        _require_space(job, _KAGGLE_ABOUT - there)
        with kaggle_session(f"fetch {COMPETITION}", job.policy) as session:
            ask(session, lambda: _ask_kaggle(session.api, folder))
        archive = _only_file(folder)
        with opened(archive) as graphs:
            done |= {got.part: got for got in unpack(job, graphs, missing, archive)}
        shutil.rmtree(folder)
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
        size = remote_size(session, base + archive.name)
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


def _ask_kaggle(api: Any, folder: Path) -> None:
    quiet = not sys.stderr.isatty()  # else the client draws its bar
    try:
        api.competition_download_files(COMPETITION, path=str(folder), quiet=quiet)
    except ValueError as error:
        # Where a resumed download is refused, the client stores the refusal itself as the file's
        # beginning, and would go on from there the next time.
        if _WRONG_SIZE not in str(error):
            raise
        shutil.rmtree(folder)
        raise RetryableError("what came is not the file that was announced") from None


def _only_file(folder: Path) -> Path:
    found = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(_CLIENT_MARK)]
    if len(found) != 1:
        raise PipelineError(f"{folder}: expected one file, found {len(found)}; delete this folder")
    return found[0]
