"""The best settings of earlier calls: a file per program and machine in the user's cache folder.

The next `optimize` of the program starts there. The file may be of anybody, so only the numbers of
its setting are used, after checks, and they are measured again.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt

from autotune.measure.journal import header_of
from autotune.measure.worker import ConfigFailed
from autotune.optimize.candidate import OptimizeCandidate, Setting, Status
from autotune.optimize.session import SCREEN, OptimizeSession
from autotune.plan import JOURNALS
from common.errors import PipelineError
from common.files import open_regular, write_text
from common.machine import granted
from common.progress import log
from common.settings import FrozenConfig

# Facts of a description that a result depends on. "function" is the module before optimizations.
FACTS = ("function", "platform", "device", "cpu", "system", "jaxlib", "xla_flags")
MAX_BYTES = 1 << 22


class StoredBest(FrozenConfig):
    """The content of a file."""

    program: dict[str, str]
    setting: tuple[NonNegativeInt, ...]
    decisions: dict[str, Any]
    ratio: float = Field(gt=0, lt=1)


def fingerprint(session: OptimizeSession) -> dict[str, str]:
    """Return the facts of the program and of the machine that name a file."""
    facts = {key: session.description.facts.get(key, "") for key in FACTS}
    return facts | {"threads": str(granted()[0]), "spaces": ",".join(session.description.knobs)}


def stored_path(session: OptimizeSession, folder: Path) -> Path:
    """Return the file of a program in a folder."""
    text = json.dumps(fingerprint(session), sort_keys=True)
    return folder / f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.json"


def start_of(session: OptimizeSession, path: Path) -> Setting | None:
    """Return the setting to start from, and log its file. None if there is no sound file.

    A search that resumes has the start of its first call.
    """
    if header := header_of(session.out / JOURNALS / f"{SCREEN}.jsonl"):
        return tuple(header.get("start") or ()) or None
    if not (stored := _read(session, path)):
        return None
    ratio = f"{stored.ratio:.2f} of the default's time"
    log.info(f"note: {path}: has a result of an earlier call, {ratio}; --fresh ignores it")
    return stored.setting


def _read(session: OptimizeSession, path: Path) -> StoredBest | None:
    """Return the content of a sound file of this program, or log why it is ignored."""
    try:
        if not path.exists():
            return None
        with open_regular(path) as file:
            content = file.read(MAX_BYTES)
        stored = StoredBest.from_table(json.loads(content), source="content")
        n_options, setting = session.description.n_options, stored.setting
        is_legal = len(setting) == len(n_options) and any(setting) and (setting < n_options).all()
        # The menu of another version may have other decisions.
        if not is_legal or stored != _stored(session, setting, stored.ratio):
            raise PipelineError("another program, machine or setting")
    except (OSError, PipelineError, ValueError, RecursionError, ConfigFailed) as error:
        log.info(f"note: {path}: is ignored: {error}; expected a result of this program")
        return None
    return stored


def _stored(session: OptimizeSession, setting: Setting, ratio: float) -> StoredBest:
    facts = {"program": fingerprint(session), "decisions": session.describe(setting).decisions}
    return StoredBest.from_table({**facts, "setting": setting, "ratio": ratio}, source="result")


def store_best(
    session: OptimizeSession, path: Path, best: OptimizeCandidate | None, start: Status | None
) -> None:
    """Write the best candidate. Remove the file if its setting is surely not faster.

    Args:
        best: Candidate that is faster or probably so.
        start: Status of the setting from which the call started.
    """
    try:
        # A call that did not measure the stored setting keeps it if it was faster.
        earlier = None if start else _read(session, path)
        if best and earlier and earlier.ratio <= best.comparison.ratio.value:
            return
        if best and (best.status is Status.FASTER or not path.exists()):
            content = _stored(session, best.setting, best.comparison.ratio.value)
            write_text(path, content.model_dump_json(indent=1) + "\n")
        elif start in (Status.SLOWER, Status.NO_GAIN, Status.LOSS, Status.FAILED):
            path.unlink(missing_ok=True)
    except (PipelineError, OSError) as error:
        log.info(f"note: the result is not stored: {error}")
