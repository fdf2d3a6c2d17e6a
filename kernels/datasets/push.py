"""Send a folder to Kaggle as a dataset, new or the next version, and wait until it can be used.

A digest of all that is sent stands in the dataset's description, so that Kaggle itself tells
whether it has a folder's content already.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import PipelineError, UsageError
from common.kaggle.errors import one_line, status_of
from common.kaggle.sender import ask, send_once, upload_file, wait_for
from common.kaggle.session import POLICY, KaggleSession, kaggle_session
from common.progress import log
from common.retry import RetryPolicy
from kernels.datasets.folder import DATASET_METADATA_FILE, read_dataset
from kernels.push import UNKNOWN

_READY = "ready"
_SETTLED = (_READY, "failed", "deleted")  # all other states are of a version that is being made
_IN_DOUBT = (
    "the version may have been made: look at the dataset's page before pushing the folder again"
)


@dataclass(frozen=True)
class DatasetVersion:
    """A version of a dataset that Kaggle has made and that kernels can attach."""

    dataset_id: str  # "owner/slug"
    version: int
    is_new: bool  # the dataset did not exist before
    files: int
    url: str
    was_sent: bool = True  # False: Kaggle has this very content, made by an earlier push


class _State(NamedTuple):
    status: str
    version: int
    description: str


def push_dataset(folder: Path, message: str, *, policy: RetryPolicy = POLICY) -> DatasetVersion:
    """Send a dataset folder: creates the dataset, or makes its next version, and waits for it.

    Folders within it are packed, and unpacked by Kaggle. What Kaggle has already is not sent again,
    and where an answer is lost it is asked for the version.

    Raises:
        UsageError: an empty message.
        PipelineError: an incomplete folder, missing or refused credentials, a title that is taken,
            or a dataset that does not become ready in time.
    """
    if not message.strip():
        raise UsageError("-m: expected a text that says what is new")
    table, files = read_dataset(folder)
    with kaggle_session(f"push dataset {folder}", policy) as session:
        dataset_id = session.own(table["id"])
        url = f"https://www.kaggle.com/datasets/{dataset_id}"
        content = {"metadata": {**table, "id": dataset_id}, "files": files}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        before = ask(session, lambda: _look(session, dataset_id))
        if before and before.status not in _SETTLED:
            log.info(f"dataset {dataset_id}: a version is being made; waiting for it")
            before = _settled(session, dataset_id, before.version)
        if before and before.status == _READY and digest in before.description:
            sent = (before.version, False, len(files), url)
            return DatasetVersion(dataset_id, *sent, was_sent=False)
        about = f"{table.get('description') or ''}\n\nContent: sha256:{digest}".strip()
        tokens = _upload(session, folder, files)
        owner, slug = dataset_id.split("/")
        asked = {
            **{key: table.get(key) for key in ("title", "subtitle")},
            **{"description": about, "versionNotes": message},
            **{"ownerSlug": owner, "slug": slug, "datasetSlug": slug},
            "isPrivate": table.get("isPrivate") is not False,
            "licenseName": table["licenses"][0]["name"],
            "categoryIds": list(table.get("keywords") or []),
            "files": [{"token": token} for token in tokens],
        }
        _make(session, dataset_id, asked, before)
        state = _settled(session, dataset_id, before.version + 1 if before else 1)
    if state.status != _READY:
        raise PipelineError(
            f"dataset {dataset_id}: version {state.version} is {state.status}; look at {url}"
        )
    return DatasetVersion(dataset_id, state.version, before is None, len(files), url)


def _look(session: KaggleSession, dataset_id: str) -> _State | None:
    owner, slug = dataset_id.split("/")
    named = {"ownerSlug": owner, "datasetSlug": slug}
    try:
        status = session.call("datasets", "get_dataset_status", named).status.name.lower()
    except Exception as error:
        own = owner.lower() == session.username.lower()
        if status_of(error) in (UNKNOWN if own else UNKNOWN[1:]):
            return None
        raise
    found = session.call("datasets", "get_dataset", named)
    return _State(status, int(found.current_version_number or 0), found.description or "")


def _settled(session: KaggleSession, dataset_id: str, at_least: int) -> _State:
    def settled() -> _State | None:
        state = _look(session, dataset_id)
        is_settled = state and state.version >= at_least and state.status in _SETTLED
        return state if is_settled else None

    found = wait_for(session, settled, "the dataset")
    if found is None:
        raise PipelineError(
            f"dataset {dataset_id}: version {at_least} is not ready in time; it was sent: pushing "
            "the same again waits for it"
        )
    return found


def _upload(session: KaggleSession, folder: Path, names: Iterable[str]) -> list[str]:
    tokens = []
    with tempfile.TemporaryDirectory(prefix="dataset-push-") as scratch:
        for entry in sorted({name.partition("/")[0] for name in names}):
            path = folder / entry
            if path.is_dir():
                path = Path(shutil.make_archive(f"{scratch}/{entry}", "zip", path))
            named = {"type": "DATASET", "name": path.name}
            tokens.append(upload_file(session, path, "blobs", "start_blob_upload", named))
    return tokens


def _make(
    session: KaggleSession, dataset_id: str, asked: Mapping[str, Any], before: _State | None
) -> None:
    method = "create_dataset_version" if before else "create_dataset"

    def send() -> bool:
        # Each request takes the keys that it knows.
        answer = session.call("datasets", method, {**asked, "body": asked})
        if answer.error or (answer.status or "ok").lower() != "ok":
            told = f"Kaggle refused it: {one_line(answer.error or answer.status)}"
            advice = f"correct {DATASET_METADATA_FILE} and push again"
            raise PipelineError(f"dataset {dataset_id}: {told}; {advice}")
        return True

    def arrived() -> bool | None:
        state, last = _look(session, dataset_id), before.version if before else 0
        # No version was being made before, and its number may come only when it is ready.
        return (state and (state.version > last or state.status not in _SETTLED)) or None

    send_once(session, send, arrived, _IN_DOUBT)
