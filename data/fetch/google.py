"""The dataset's own public files: one tar archive per part, no account needed."""

from pathlib import Path
from typing import TYPE_CHECKING

from data.fetch.download import check_address, download, http_session, remote_size, unfinished_bytes
from data.fetch.job import Fetched, FetchJob, finished, graphs_in, require_space
from data.fetch.parts import Part
from data.fetch.unpack import opened_tar, unpack

if TYPE_CHECKING:
    from requests import Session

BASE = "https://download.tensorflow.org/data/tpu_graphs/v0/"


def fetch_google(job: FetchJob, *, base: str = BASE) -> list[Fetched]:
    """Fetch the parts one after the other; each archive goes once its part is whole.

    Args:
        job: what to fetch and where to.
        base: the folder of the archives; another one for a mirror.

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
            archive = _archive(job, part)
            download(session, base + archive.name, archive, policy=job.policy)
            with opened_tar(archive) as contents:
                (done[part],) = unpack(job, contents, [part])
            if not job.keep_archives:
                archive.unlink()
    return [fetched for fetched in done.values() if fetched is not None]


def _check_space(job: FetchJob, parts: list[Part], base: str, session: "Session") -> None:
    """Check that the disk holds, at every moment, the archive at hand and all that is unpacked.

    An uncompressed archive is about as large as what it holds.
    """
    most = unpacked = kept = 0
    for part in parts:
        archive = _archive(job, part)
        if archive.exists():
            size = there = archive.stat().st_size
        else:
            size = remote_size(session, base + archive.name)
            there = unfinished_bytes(archive)
        to_download = max(0, size - there)
        unpacked += max(0, size - sum(graphs_in(job.out / part.folder).values()))
        most = max(most, kept + to_download + unpacked)
        kept += to_download if job.keep_archives else 0
    require_space(job, most)


def _archive(job: FetchJob, part: Part) -> Path:
    return job.downloads / f"{part.stem}.tar"
