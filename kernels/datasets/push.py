"""Send a folder to Kaggle as a dataset, new or the next version, and wait until it can be used."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common.errors import PipelineError, UsageError
from common.kaggle.errors import acted, one_line
from common.kaggle.scratch import FIXED_TEMPORARY, private_place, scratch_folder
from common.kaggle.send_once import PUSH_POLICY, send_once
from common.kaggle.session import KaggleSession, kaggle_session
from common.locks import locked
from common.retry import RetryPolicy
from kernels.datasets.folder import DATASET_METADATA_FILE, content_digest, read_dataset
from kernels.datasets.note import accepted_version, is_noted, note, require_writable, write_note
from kernels.datasets.uploads import careful_uploads
from kernels.kaggle_calls import (
    DatasetState,
    Say,
    ask,
    dataset_files,
    dataset_state,
)

POLL_S = 10.0
WAIT_MINUTES = 30.0
_MOST_NAMED = 3
_BEING_MADE = (
    "not_yet_persisted",
    "blobs_received",
    "blobs_decompressed",
    "blobs_copied_to_sds",
    "individual_blobs_compressed",
    "reprocessing",
)
_MAKE = ("CreateDataset", "CreateDatasetVersion")  # Kaggle's methods
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


@dataclass(frozen=True)
class _Push:
    """What the steps of one push share."""

    session: KaggleSession
    dataset_id: str
    table: dict[str, Any]
    names: Sequence[str]
    begun: list[str]  # requests that make a version
    policy: RetryPolicy
    say: Say

    def state(self) -> DatasetState | None:
        """Ask for the dataset's state, again where the network fails."""
        state: DatasetState | None = ask(
            lambda: dataset_state(self.session, self.dataset_id),
            what=f"state of dataset {self.dataset_id}",
            policy=self.policy,
            say=self.say,
        )
        return state

    def listed(self) -> list[str]:
        """Ask for the names of the dataset's files, again where the network fails."""
        names: list[str] = ask(
            lambda: dataset_files(self.session, self.dataset_id),
            what=f"files of dataset {self.dataset_id}",
            policy=self.policy,
            say=self.say,
        )
        return names


def push_dataset(
    folder: Path,
    message: str,
    *,
    force: bool = False,
    wait_minutes: float = WAIT_MINUTES,
    policy: RetryPolicy = PUSH_POLICY,
    say: Callable[[str], None] = lambda line: None,
) -> DatasetVersion:
    """Send a dataset folder: creates the dataset, or makes its next version, and waits for it.

    Folders within it are packed by the client and unpacked by Kaggle; whether all files arrived is
    checked in Kaggle's own list. What the last push from here has made is not sent again as long
    as it is the dataset's latest version and Kaggle lists its files: see `kernels.datasets.note`.

    Args:
        folder: holds dataset-metadata.json.
        message: what is new, shown beside the version.
        force: send what was sent before.
        wait_minutes: how long to wait until Kaggle has processed the files.
        policy: how often a request is tried again, and with which waits.
        say: told about each failure that is tried again.

    Raises:
        UsageError: an empty message.
        PipelineError: an incomplete folder, missing or refused credentials, a title that is taken,
            files that did not arrive, or a dataset that does not become ready in time.
    """
    if not message.strip():
        raise UsageError("-m: expected a text that says what is new")
    table, names = read_dataset(folder)
    action = f"push dataset {folder}"
    begun: list[str] = []
    acts = acted(_MAKE, begun)
    with kaggle_session(action, in_doubt=_IN_DOUBT, acts=acts) as session:
        dataset_id = str(table["id"])
        if "/" not in dataset_id:
            dataset_id = f"{session.username}/{dataset_id}"
        push = _Push(session, dataset_id, table, names, begun, policy, say)
        digest = content_digest(folder, {**table, "id": dataset_id})
        name = f"dataset-{hashlib.sha256(dataset_id.encode()).hexdigest()}.lock"
        lock = private_place(FIXED_TEMPORARY) / name  # one for all of the user's settings of TMPDIR
        waiting = f"dataset {dataset_id}: another push is under way; waiting for its end"
        with locked(lock, on_wait=lambda: say(waiting)):
            return _pushed(push, folder, message, digest, force=force, wait_minutes=wait_minutes)


def _pushed(
    push: _Push, folder: Path, message: str, digest: str, *, force: bool, wait_minutes: float
) -> DatasetVersion:
    """Send the folder unless Kaggle has this content, while no other push of this user does."""
    dataset_id, n_files = push.dataset_id, len(push.names)
    url = f"https://www.kaggle.com/datasets/{dataset_id}"

    def noted(version: int, *, is_ready: bool) -> dict[str, Any]:
        return note(dataset_id, version, digest, is_ready=is_ready)

    accepted = None if force else accepted_version(folder, dataset_id, digest)
    before = push.state()
    if accepted and not (before and before.status == "failed"):
        push.say(f"dataset {dataset_id}: an earlier push has sent this; waiting for its version")
        before = _wait_until_ready(push, accepted, wait_minutes)
        if before.version == accepted:
            write_note(folder, noted(accepted, is_ready=True))
    elif before and before.status not in ("ready", "failed"):
        before = _wait_until_ready(push, before.version, wait_minutes)
    if before and before.status == "ready" and not force:
        is_made = is_noted(folder, noted(before.version, is_ready=True))
        if is_made and not missing_files(push.names, push.listed()):
            return DatasetVersion(dataset_id, before.version, False, n_files, url, was_sent=False)
    require_writable(folder)
    _send(push, folder, message, before)
    version = before.version + 1 if before else 1
    write_note(folder, noted(version, is_ready=False))
    ready = _wait_until_ready(push, version, wait_minutes)
    _require_all_there(push)
    write_note(folder, noted(ready.version, is_ready=True))
    return DatasetVersion(dataset_id, ready.version, before is None, n_files, url)


def _send(push: _Push, folder: Path, message: str, before: DatasetState | None) -> None:
    """Upload the files and ask once for the new version.

    Raises:
        PipelineError: Kaggle refuses it, or not all files arrived.
    """
    api, last = push.session.api, before.version if before else 0
    entries = sorted({name.partition("/")[0] for name in push.names})

    def arrived() -> SimpleNamespace | None:
        state = push.state()
        # No version was being made before, and its number may come only when it is ready.
        is_there = state and (state.version > last or state.status in _BEING_MADE)
        # What stands in for the lost answer is read by the client, too.
        return SimpleNamespace(error=None, status="ok") if is_there else None

    what = f"push dataset {push.dataset_id}"

    def send(request: Callable[[], Any]) -> Any:
        push.begun.append(push.dataset_id)
        return send_once(request, arrived, what=what, policy=push.policy, say=push.say)

    with scratch_folder("dataset-push") as content:
        _link_with_owner(folder, entries, {**push.table, "id": push.dataset_id}, content)
        copy = str(content)
        uploads = careful_uploads(
            push.session, len(entries), send, what=what, policy=push.policy, say=push.say
        )
        with uploads:
            if before:
                answer = api.dataset_create_version(copy, message, quiet=True, dir_mode="zip")
            else:
                is_public = not push.table["isPrivate"]
                answer = api.dataset_create_new(
                    copy, public=is_public, quiet=True, convert_to_csv=False, dir_mode="zip"
                )
    _refuse_error(push.dataset_id, answer)


def _link_with_owner(
    folder: Path, entries: Sequence[str], table: dict[str, Any], target: Path
) -> None:
    """Link the folder's entries to where its id can be completed: the folder stays as it is."""
    for entry in entries:
        (target / entry).symlink_to((folder / entry).resolve())
    (target / DATASET_METADATA_FILE).write_text(json.dumps(table), encoding="utf-8")


def _refuse_error(dataset_id: str, answer: Any) -> None:
    """Turn a refusal that came as a value into an error."""
    if answer.error or (answer.status or "ok").lower() != "ok":
        said = one_line(answer.error or answer.status)
        raise PipelineError(
            f"dataset {dataset_id}: Kaggle refused it: {said}; correct {DATASET_METADATA_FILE} and "
            "push again"
        )


def _wait_until_ready(push: _Push, version: int, wait_minutes: float) -> DatasetState:
    """Ask until Kaggle has processed a version.

    Raises:
        PipelineError: it failed, or is not ready in time.
    """
    asks = max(1, round(60 * wait_minutes / POLL_S))
    state = None
    for number in range(asks):
        if number:
            push.policy.sleep(POLL_S)
        state = push.state()
        if state is None or state.version < version:
            continue
        if state.status == "ready":
            return state
        if state.status in ("failed", "deleted"):
            raise PipelineError(
                f"dataset {push.dataset_id}: version {state.version} is {state.status}; look at "
                f"https://www.kaggle.com/datasets/{push.dataset_id}"
            )
    seen = f"version {state.version} is {state.status}" if state else "Kaggle does not know it yet"
    raise PipelineError(
        f"dataset {push.dataset_id}: version {version} is not ready after {wait_minutes:g} minutes "
        f"({seen}); it was sent: pushing the same again waits for it, --force sends it once more"
    )


def _require_all_there(push: _Push) -> None:
    """Compare Kaggle's list of the dataset's files with what was sent.

    Raises:
        PipelineError: names what is missing.
    """
    listed = push.listed()
    missing = missing_files(push.names, listed)
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise PipelineError(
            f"dataset {push.dataset_id}: Kaggle does not list {', '.join(missing[:_MOST_NAMED])}"
            f"{more}; look at its page, then push again"
        )
    packed = {name for name in listed if name.endswith(".zip")} - set(push.names)
    if packed:
        push.say(f"Kaggle lists {', '.join(sorted(packed))} packed: what is within was not checked")


def missing_files(sent: Sequence[str], listed: Sequence[str]) -> list[str]:
    """Name what was sent and is not listed; a folder may be listed as its zip archive.

    >>> missing_files(["a.whl", "models/x/DONE"], ["models/x/DONE"])
    ['a.whl']
    """
    known = set(listed)
    return [
        name
        for name in sent
        if name not in known
        and ("/" not in name or not known & {top := name.partition("/")[0], f"{top}.zip"})
    ]
