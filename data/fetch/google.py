"""The dataset's own public files: one tar archive per part, no account needed."""

from pathlib import Path
from typing import TYPE_CHECKING

from data.fetch.download import check_address, download, remote_size
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
    from requests import Session

    base = f"{base.rstrip('/')}/"
    check_address(base)
    done = {part: finished(job, part) for part in job.parts}
    missing = [part for part in job.parts if done[part] is None]
    with Session() as session:
        _check_space(job, missing, base, session)
        for part in missing:
            done[part] = _fetch_part(job, part, base, session)
    return [fetched for fetched in done.values() if fetched is not None]


def _fetch_part(job: FetchJob, part: Part, base: str, session: "Session") -> Fetched:
    archive = _archive(job, part)
    download(
        session,
        base + archive.name,
        archive,
        policy=job.policy,
        progress=job.progress,
        say=job.say,
    )
    with opened_tar(archive) as contents:
        (fetched,) = unpack(job, contents, [part], archive)
    if not job.keep_archives:
        archive.unlink()
    return fetched


def _check_space(job: FetchJob, parts: list[Part], base: str, session: "Session") -> None:
    """Check that the disk holds, at every moment, the archive at hand and all that is unpacked.

    An uncompressed archive is about as large as what it holds.
    """
    most = unpacked = kept = 0
    for part in parts:
        archive = _archive(job, part)
        if archive.exists():
            size, held = archive.stat().st_size, archive.stat().st_size
        else:
            url = base + archive.name
            size = remote_size(session, url, policy=job.policy, say=job.say)
            unfinished = archive.with_name(f"{archive.name}.part")
            held = unfinished.stat().st_size if unfinished.exists() else 0
        to_download = max(0, size - held)
        unpacked += max(0, size - sum(graphs_in(job.out / part.folder).values()))
        most = max(most, kept + to_download + unpacked)
        kept += to_download if job.keep_archives else 0
    require_space(job, most)


def _archive(job: FetchJob, part: Part) -> Path:
    return job.downloads / f"{part.stem}.tar"
