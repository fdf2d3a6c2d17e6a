"""The competition's files, as one archive through Kaggle's own client."""

import shutil
import sys
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.kaggle.sender import ask
from common.kaggle.session import kaggle_session
from common.retry import RetryableError
from data.fetch.job import Fetched, FetchJob, finished, require_space
from data.fetch.unpack import opened_zip, unpack

COMPETITION = "predict-ai-model-runtime"
_ACTION = f"fetch {COMPETITION}"
_ARCHIVE_ABOUT = 6 * 10**9  # bytes, as the competition's page says: for a first check
_CLIENT_MARK = ".kaggle-partial"
_WRONG_SIZE = "does not match expected size"  # in the client's words


def fetch_kaggle(job: FetchJob) -> list[Fetched]:
    """Download the whole competition, which the client resumes, and unpack the parts.

    Raises:
        PipelineError: no or refused credentials, rules not accepted, the network fails for good,
            files that are not what was published, or the disk is too small.
    """
    done = {part: finished(job, part) for part in job.parts}
    missing = [part for part in job.parts if done[part] is None]
    if missing:
        folder = job.downloads / COMPETITION
        require_space(job, _ARCHIVE_ABOUT - sum(path.stat().st_size for path in folder.glob("*")))
        with kaggle_session(_ACTION, job.policy) as session:
            ask(session, lambda: _attempt(session.api, folder))
        with opened_zip(_only_file(folder)) as contents:
            done |= {got.part: got for got in unpack(job, contents, missing)}
        if not job.keep_archives:
            shutil.rmtree(folder)
    return [fetched for fetched in done.values() if fetched is not None]


def _attempt(api: Any, folder: Path) -> None:
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
    """Return the file that the client has written, by whatever name."""
    found = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(_CLIENT_MARK)]
    if len(found) != 1:
        raise PipelineError(
            f"{folder}: expected the archive as one file, found {len(found)}; delete this folder "
            "and run the command again"
        )
    return found[0]
