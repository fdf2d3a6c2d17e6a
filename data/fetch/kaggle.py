"""The competition's files, through Kaggle's own client: file by file, or the whole archive."""

import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.kaggle.errors import passing_fault
from common.kaggle.session import kaggle_session
from common.network import retry_after_s
from common.retry import RetryableError, retry
from data.fetch.job import Fetched, FetchJob, finish, finished, graphs_in, require_space
from data.fetch.parts import Part, place_of
from data.fetch.unpack import Member, damage_named, opened_zip, place, unpack

COMPETITION = "predict-ai-model-runtime"
_ACTION = f"fetch {COMPETITION}"
_PAGE = 200  # files per request; Kaggle's limit
# Each file is a request of its own, and Kaggle limits requests: beyond this the archive is faster.
_MOST_SINGLE_FILES = 1000
_ARCHIVE_ABOUT = 6 * 10**9  # bytes, as the competition's page says: for the bar and a first check
_WATCH_EVERY_S = 0.5
_CLIENT_MARK = ".kaggle-partial"
_WRONG_SIZE = "does not match expected size"  # in the client's words


@dataclass(frozen=True)
class Listed:
    """A file as Kaggle lists it."""

    name: str  # "npz_all/npz/tile/xla/train/a.npz"
    size: int


Listing = Mapping[Part, Mapping[str, Listed]]


def fetch_kaggle(job: FetchJob, *, most_single_files: int = _MOST_SINGLE_FILES) -> list[Fetched]:
    """Fetch the parts, file by file where they are few and all listed, else in one archive.

    Args:
        job: what to fetch and where to.
        most_single_files: beyond so many files the competition's whole archive is downloaded.

    Raises:
        PipelineError: no or refused credentials, rules not accepted, the network fails for good,
            files that are not what was published, or the disk is too small.
    """
    done = {part: finished(job, part) for part in job.parts}
    missing = [part for part in job.parts if done[part] is None]
    if missing:
        with kaggle_session(_ACTION) as session:
            done |= {got.part: got for got in _fetch(job, missing, session.api, most_single_files)}
    return [fetched for fetched in done.values() if fetched is not None]


def _fetch(job: FetchJob, parts: list[Part], api: Any, most_single_files: int) -> list[Fetched]:
    archive_folder = job.downloads / COMPETITION
    if not _size_of(archive_folder):  # else an earlier call has begun with the archive
        listing = _listing(job, api)
        reason = _why_archive(job, parts, listing, most_single_files)
        if not reason:
            _check_space(job, parts, listing)
            return [_fetch_part(job, part, listing[part], api) for part in parts]
        job.say(f"{reason}: downloading the competition's whole archive")
    return _fetch_archive(job, parts, archive_folder, api)


def _why_archive(job: FetchJob, parts: list[Part], listing: Listing, most: int) -> str:
    """Say why single files will not do; "" if they will. Kaggle's listings are often incomplete."""
    for part in parts:
        count = len(listing.get(part, {}))
        if count != job.expected[part]:
            return f"{part.label}: Kaggle lists {count} of {job.expected[part]} graphs"
    count = sum(job.expected[part] for part in parts)
    return f"{count} files are too many to ask for one by one" if count > most else ""


def _listing(job: FetchJob, api: Any) -> Listing:
    """Read the list of the competition's files, page by page."""
    found: dict[Part, dict[str, Listed]] = {}
    token, seen = None, set[str]()
    while token is None or (token and token not in seen):
        seen.add(token or "")
        page = _page(job, api, token)
        for file in page.files or []:
            graph = place_of(file.name, f"Kaggle's list of {COMPETITION}")
            if graph is not None:
                found.setdefault(graph[0], {})[graph[1]] = Listed(file.name, file.total_bytes)
        token = page.next_page_token or ""
    return found


def _page(job: FetchJob, api: Any, token: str | None) -> Any:
    return _retry(
        job,
        "list the files",
        lambda: api.competition_list_files(COMPETITION, page_token=token, page_size=_PAGE),
    )


def _check_space(job: FetchJob, parts: list[Part], listing: Listing) -> None:
    needed = 0
    for part in parts:
        there = graphs_in(job.out / part.folder)
        needed += sum(f.size for name, f in listing[part].items() if there.get(name) != f.size)
    require_space(job, needed)


def _fetch_part(job: FetchJob, part: Part, files: Mapping[str, Listed], api: Any) -> Fetched:
    there = graphs_in(job.out / part.folder)
    done, total = 0, sum(file.size for file in files.values())
    for name, file in sorted(files.items()):
        if there.get(name) != file.size:
            _fetch_file(job, part, name, file, api)
        done += file.size
        job.progress(f"download {part.label}", done, total)
    shutil.rmtree(_temporary(job, part), ignore_errors=True)
    return finish(job, part, set(files))


def _fetch_file(job: FetchJob, part: Part, name: str, file: Listed, api: Any) -> None:
    """Download one graph's file into a folder of its own, then put it into its place."""
    # The client names the file by the address it is sent to; graphs of many parts share names.
    folder = _temporary(job, part) / name
    _retry(
        job,
        file.name,
        lambda: api.competition_download_file(COMPETITION, file.name, path=str(folder), quiet=True),
        folder=folder,
    )
    got = _only_file(folder, file.name)
    target = job.out / part.folder / name
    if not _unwrap(got, part, target):
        if got.stat().st_size != file.size:
            raise PipelineError(
                f"{got}: expected {file.size} bytes as Kaggle lists, found {got.stat().st_size}; "
                "delete it and run the command again"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        got.replace(target)
    shutil.rmtree(folder)


def _unwrap(got: Path, part: Part, target: Path) -> bool:
    """Take the graph out of a zip that Kaggle put it into; False if `got` is no such zip.

    A graph's npz is a zip archive too, but of npy files.
    """
    if not zipfile.is_zipfile(got):
        return False
    with damage_named(got), zipfile.ZipFile(got) as archive:
        members = archive.infolist()
        if len(members) != 1 or not members[0].filename.endswith(".npz"):
            return False
        (only,) = members
        place(Member(part, target.name, only.file_size, lambda: archive.open(only)), target)
    return True


def _fetch_archive(job: FetchJob, parts: list[Part], folder: Path, api: Any) -> list[Fetched]:
    """Download the whole competition, resumed by the client itself, and unpack the parts."""
    require_space(job, _ARCHIVE_ABOUT - _size_of(folder))
    with _watched(job, folder):
        _retry(
            job,
            "the whole archive",
            lambda: api.competition_download_files(COMPETITION, path=str(folder), quiet=True),
            folder=folder,
        )
    archive = _only_file(folder, "the whole archive")
    with opened_zip(archive) as contents:
        wanted = [member for part in parts for member in contents.graphs.get(part, {}).values()]
        there = sum(sum(graphs_in(job.out / part.folder).values()) for part in parts)
        require_space(job, max(0, sum(member.size for member in wanted) - there))
        fetched = unpack(job, contents, parts, archive)
    if not job.keep_archives:
        shutil.rmtree(folder)
    return fetched


@contextmanager
def _watched(job: FetchJob, folder: Path) -> Iterator[None]:
    """Report how far the client's download is: it has no callback of its own."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_WATCH_EVERY_S):
            done = _size_of(folder)
            job.progress("download archive", done, max(_ARCHIVE_ABOUT, done + 1))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        job.progress("download archive", 1, 1)


def _retry(job: FetchJob, what: str, call: Callable[[], Any], *, folder: Path | None = None) -> Any:
    """Call the client until it succeeds, fails for good, or the tries are used up.

    `folder` is where it downloads to.
    """

    def attempt() -> Any:
        try:
            return call()
        except Exception as error:
            # Where a resumed download is refused, the client stores the refusal itself as the
            # file's beginning, and would go on from there the next time.
            if folder is not None and _WRONG_SIZE in str(error):
                shutil.rmtree(folder)
                raise RetryableError("what came is not the file that was announced") from None
            passing = passing_fault(error)
            if passing is None:
                raise
            reason, retry_after = passing
            raise RetryableError(reason, retry_after_s=retry_after_s(retry_after)) from None

    return retry(attempt, what=f"{_ACTION}: {what}", policy=job.policy, say=job.say)


def _temporary(job: FetchJob, part: Part) -> Path:
    return job.downloads / f"{part.stem}.files"


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*") if path.is_file())


def _only_file(folder: Path, what: str) -> Path:
    """Return the file that the client has written, by whatever name."""
    found = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(_CLIENT_MARK)]
    if len(found) != 1:
        raise PipelineError(
            f"{folder}: expected {what} as one file, found {len(found)}; delete this folder and "
            "run the command again"
        )
    return found[0]
