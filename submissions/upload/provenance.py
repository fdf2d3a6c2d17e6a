"""Which recipe and which revision of the code a submission was made with."""

import json
from pathlib import Path
from typing import NamedTuple

from common.errors import PipelineError
from common.kaggle.errors import one_line

REPORT = "report.json"
_SHOWN = 60  # characters of each: the tag behind them must not be cut off
KERNEL_RUN = "run"  # a kernel leaves its submission beside its run folder


class Provenance(NamedTuple):
    """What the report of a run says of its origin; None where it says nothing."""

    recipe: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        """Return what stands in a submission's description: "[recipe cpu, revision 0a1b]" or ""."""
        facts = self._asdict().items()
        known = [f"{name} {one_line(value, longest=_SHOWN)}" for name, value in facts if value]
        return f"[{', '.join(known)}]" if known else ""


def provenance(folder: Path, *, required: bool = False) -> Provenance:
    """Read the recipe and the revision from a run folder's report.

    Args:
        folder: the run folder, or a kernel's output, whose run folder lies below it.
        required: whether a missing or damaged report is an error, or as good as a silent one.

    Raises:
        PipelineError: there is no such report, or it cannot be read, and it is required.
    """
    path = folder / REPORT
    if not path.exists() and (folder / KERNEL_RUN / REPORT).exists():
        path = folder / KERNEL_RUN / REPORT
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(report, dict):
            raise ValueError("no table")
    except (OSError, ValueError, RecursionError) as error:
        if required:
            reason = getattr(error, "strerror", None) or "not a report"
            raise PipelineError(f"{path}: {reason}; expected the folder of a run") from error
        return Provenance()
    recipe, revision = report.get("recipe"), report.get("revision")
    return Provenance(_text(recipe), _text(revision))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
