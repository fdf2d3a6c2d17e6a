"""Under which revisions of the code a run was worked on: a run may be gone on with by another."""

from pathlib import Path

from common.atomic import write_bytes
from common.checksums import UNSEALED, check_seal, sealed
from common.errors import PipelineError
from submissions.upload.provenance import provenance

REVISIONS = "revisions.txt"
SEAL_LINE = "# "  # begins the line that holds the list's checksum


def note_revision(out: Path, current: str | None) -> list[str]:
    """Add the revision that works on a run now; return all that have, the first one first.

    Args:
        out: the run's folder; of an older run without a list, its report names one.
        current: of the code; None if it is not known, which adds nothing.

    Raises:
        PipelineError: the list cannot be read or written.
    """
    path = out / REVISIONS
    try:
        known = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
        check_seal(path, "remove it")
        known = [line for line in known if not line.startswith(SEAL_LINE)]
    except FileNotFoundError:
        earlier = provenance(out).revision
        known = [earlier] if earlier else []
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}; remove it") from error
    if current is None or current in known:
        return known
    known.append(current)
    text = "".join(f"{line}\n" for line in (*known, f"{SEAL_LINE}{UNSEALED}"))
    write_bytes(path, sealed(text.encode()))
    return known
