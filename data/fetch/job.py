"""What is to be fetched, and what has been: marks per part, space on the disk."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.atomic import write_text
from common.errors import PipelineError
from common.retry import RetryPolicy
from data.fetch.parts import PUBLISHED_GRAPHS, Part

GIB = 2**30
DOWNLOADS = "downloads"  # below the data folder: archives, unfinished ones, marks


@dataclass(frozen=True)
class FetchJob:
    """An order: which parts, where to, and how to behave meanwhile."""

    parts: Sequence[Part]
    out: Path
    keep_archives: bool = False
    expected: Mapping[Part, int] = field(default_factory=lambda: PUBLISHED_GRAPHS)
    policy: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def downloads(self) -> Path:
        """Return the folder of archives and marks."""
        return self.out / DOWNLOADS


@dataclass(frozen=True)
class Fetched:
    """A part that is whole."""

    part: Part
    graphs: int
    bytes: int
    was_there: bool  # a former call has fetched it


def graphs_in(folder: Path) -> dict[str, int]:
    """Return name to size in bytes of the graph files in a folder, which may be missing."""
    return {
        path.name: path.stat().st_size
        for path in folder.glob("*.npz")
        if not path.name.startswith(".")
    }


def finished(job: FetchJob, part: Part) -> Fetched | None:
    """Return the part if its mark is there and says what its folder holds; else None."""
    held = _held(job, part)
    try:
        is_whole = json.loads(_mark(job, part).read_text(encoding="utf-8")) == held
    except (OSError, ValueError, RecursionError):
        return None
    return Fetched(part, **held, was_there=True) if is_whole else None


def finish(job: FetchJob, part: Part, names: set[str]) -> Fetched:
    """Mark the part as done once its folder holds the graphs `names` and no other.

    Raises:
        PipelineError: another file lies in the folder.
    """
    folder = job.out / part.folder
    strange = sorted(graphs_in(folder).keys() - names)
    if strange:
        raise PipelineError(
            f"{folder / strange[0]}: not of the dataset, with {len(strange) - 1} more; "
            "move them away or choose another --out"
        )
    held = _held(job, part)
    write_text(_mark(job, part), json.dumps(held))
    return Fetched(part, **held, was_there=False)


def require_space(job: FetchJob, needed: int) -> None:
    """Check that the disk has room for `needed` more bytes.

    Raises:
        PipelineError: names what is needed and what is free, in GiB.
    """
    existing = next(path for path in (job.out, *job.out.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise PipelineError(
            f"{job.out}: needs {needed / GIB:.2f} GiB, {free / GIB:.2f} GiB are free; make room, "
            "choose another --out, or fewer --collections"
        )


def _held(job: FetchJob, part: Part) -> dict[str, int]:
    sizes = graphs_in(job.out / part.folder)
    return {"graphs": len(sizes), "bytes": sum(sizes.values())}


def _mark(job: FetchJob, part: Part) -> Path:
    return job.downloads / f"{part.stem}.DONE"
