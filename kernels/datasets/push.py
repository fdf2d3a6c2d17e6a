"""Send a folder to Kaggle as a dataset, new or the next version, and wait until it can be used.

A digest of all that is sent stands in the dataset's description, so that Kaggle itself tells
whether it has a folder's content already.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError, UsageError
from common.kaggle.errors import one_line, status_of
from common.kaggle.sender import SEND_POLICY, ask, send_once, upload_file, wait_for
from common.kaggle.session import KaggleSession, kaggle_session
from common.progress import log
from common.retry import RetryPolicy
from kernels.datasets.folder import DATASET_METADATA_FILE, content_digest, read_dataset
from kernels.kaggle_calls import UNKNOWN, all_pages

_PAGE = 200
_MOST_NAMED = 3
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


@dataclass(frozen=True)
class _State:
    """What Kaggle says of a dataset."""

    status: str
    version: int
    description: str


@dataclass(frozen=True)
class _Dataset:
    """The dataset on Kaggle, as the steps of one push see it."""

    session: KaggleSession
    id: str  # "owner/slug"
    policy: RetryPolicy

    @property
    def slugs(self) -> tuple[str, str]:
        owner, _, slug = self.id.partition("/")
        return owner, slug

    @property
    def url(self) -> str:
        return f"https://www.kaggle.com/datasets/{self.id}"

    def look(self) -> _State | None:
        """Ask once for the dataset's state; None where there is no such dataset."""
        from kagglesdk.datasets.types import dataset_api_service as types

        asked, about = types.ApiGetDatasetStatusRequest(), types.ApiGetDatasetRequest()
        asked.owner_slug, asked.dataset_slug = self.slugs
        about.owner_slug, about.dataset_slug = self.slugs
        with self.session.api.build_kaggle_client() as client:
            datasets = client.datasets.dataset_api_client
            try:
                status = datasets.get_dataset_status(asked).status.name.lower()
            except Exception as error:
                own = self.slugs[0].lower() == self.session.username.lower()
                if status_of(error) in (UNKNOWN if own else UNKNOWN[1:]):
                    return None
                raise
            found = datasets.get_dataset(about)
        return _State(status, int(found.current_version_number or 0), found.description or "")

    def state(self) -> _State | None:
        """Ask for the dataset's state, again where the network fails."""
        return ask(self.look, what=f"state of dataset {self.id}", policy=self.policy)

    def settled(self, at_least: int) -> _State:
        """Wait until a version, or one after it, is no longer being made.

        Raises:
            PipelineError: `time_limit` is over.
        """

        def settled() -> _State | None:
            state = self.state()
            is_settled = state and state.version >= at_least and state.status in _SETTLED
            return state if is_settled else None

        found = wait_for(settled, what="wait for the dataset", policy=self.policy)
        if found is None:
            raise PipelineError(
                f"dataset {self.id}: version {at_least} is not ready in time; it was sent: pushing "
                "the same again waits for it, --force sends it once more"
            )
        return found

    def files(self) -> list[str]:
        """Return the names of the dataset's files as Kaggle knows them."""
        api = self.session.api

        def listed() -> list[Any]:
            return all_pages(
                lambda token: api.dataset_list_files(self.id, page_token=token, page_size=_PAGE)
            )

        pages = ask(listed, what=f"files of dataset {self.id}", policy=self.policy)
        return [file.name for page in pages for file in page.dataset_files or [] if file]


def push_dataset(
    folder: Path, message: str, *, force: bool = False, policy: RetryPolicy = SEND_POLICY
) -> DatasetVersion:
    """Send a dataset folder: creates the dataset, or makes its next version, and waits for it.

    Folders within it are packed, and unpacked by Kaggle; whether all files arrived is checked in
    Kaggle's own list. What Kaggle has already is not sent again, and where an answer is lost it is
    asked for the version. Waiting ends with `common.progress.time_limit`.

    Args:
        folder: holds dataset-metadata.json.
        message: what is new, shown beside the version.
        force: send what was sent before.
        policy: how often a request is made that does no harm, and with which waits.

    Raises:
        UsageError: an empty message.
        PipelineError: an incomplete folder, missing or refused credentials, a title that is taken,
            files that did not arrive, or a dataset that does not become ready in time.
    """
    if not message.strip():
        raise UsageError("-m: expected a text that says what is new")
    table, names = read_dataset(folder)
    with kaggle_session(f"push dataset {folder}") as session:
        dataset = _Dataset(session, session.own(str(table["id"])), policy)
        digest = content_digest(folder, {**table, "id": dataset.id})
        before = dataset.state()
        if before and before.status not in _SETTLED:
            log.info(f"dataset {dataset.id}: a version is being made; waiting for it")
            before = dataset.settled(before.version)
        is_made = before is not None and before.status == _READY and digest in before.description
        if before and is_made and not force and not missing_files(names, dataset.files()):
            return DatasetVersion(
                dataset.id, before.version, False, len(names), dataset.url, was_sent=False
            )
        description = f"{table.get('description') or ''}\n\nContent: sha256:{digest}".strip()
        told = {**table, "description": description, "message": message}
        _send(dataset, folder, names, told, before)
        state = dataset.settled(before.version + 1 if before else 1)
        if state.status != _READY:
            raise PipelineError(
                f"dataset {dataset.id}: version {state.version} is {state.status}; look at "
                f"{dataset.url}"
            )
        _require_all_there(dataset, names)
    return DatasetVersion(dataset.id, state.version, before is None, len(names), dataset.url)


def _send(
    dataset: _Dataset,
    folder: Path,
    names: Sequence[str],
    told: Mapping[str, Any],
    before: _State | None,
) -> None:
    """Upload the files, all of them or none, and ask once for the new version.

    Raises:
        PipelineError: Kaggle refuses it, or a file does not arrive.
    """
    what = f"push dataset {dataset.id}"
    tokens = _upload(dataset, folder, names, what)
    last = before.version if before else 0

    def arrived() -> bool | None:
        state = dataset.look()
        # No version was being made before, and its number may come only when it is ready.
        is_there = state and (state.version > last or state.status not in _SETTLED)
        return True if is_there else None

    def send() -> bool:
        with dataset.session.api.build_kaggle_client() as client:
            datasets = client.datasets.dataset_api_client
            if before:
                answer = datasets.create_dataset_version(_next_version(dataset, told, tokens))
            else:
                answer = datasets.create_dataset(_new_dataset(dataset, told, tokens))
        if answer.error or (answer.status or "ok").lower() != "ok":
            raise PipelineError(
                f"dataset {dataset.id}: Kaggle refused it: "
                f"{one_line(answer.error or answer.status)}; correct {DATASET_METADATA_FILE} and "
                "push again"
            )
        return True

    send_once(send, arrived, what=what, in_doubt=_IN_DOUBT, policy=dataset.policy)


def _upload(dataset: _Dataset, folder: Path, names: Sequence[str], what: str) -> list[str]:
    """Upload the folder's entries, each folder packed, and return their tokens."""
    tokens = []
    with tempfile.TemporaryDirectory(prefix="dataset-push-") as scratch:
        for entry in sorted({name.partition("/")[0] for name in names}):
            path = folder / entry
            if path.is_dir():
                path = Path(shutil.make_archive(f"{scratch}/{entry}", "zip", path))
            tokens.append(_upload_one(dataset, path, what))
    return tokens


def _upload_one(dataset: _Dataset, path: Path, what: str) -> str:
    from kagglesdk.blobs.types.blob_api_service import ApiBlobType, ApiStartBlobUploadRequest

    request = ApiStartBlobUploadRequest()
    request.type, request.name = ApiBlobType.DATASET, path.name
    request.content_length = path.stat().st_size
    request.last_modified_epoch_seconds = int(path.stat().st_mtime)

    def start() -> Any:
        with dataset.session.api.build_kaggle_client() as client:
            return client.blobs.blob_api_client.start_blob_upload(request)

    return upload_file(path, start, what=f"{what}: {path.name}", policy=dataset.policy)


def _new_dataset(dataset: _Dataset, told: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    from kagglesdk.datasets.types.dataset_api_service import ApiCreateDatasetRequest

    request = ApiCreateDatasetRequest()
    request.owner_slug, request.slug = dataset.slugs
    request.title, request.license_name = told["title"], told["licenses"][0]["name"]
    request.is_private = told["isPrivate"]
    return _with_content(request, told, tokens)


def _next_version(dataset: _Dataset, told: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    from kagglesdk.datasets.types import dataset_api_service as types

    request = types.ApiCreateDatasetVersionRequest()
    request.owner_slug, request.dataset_slug = dataset.slugs
    body = types.ApiCreateDatasetVersionRequestBody()
    body.version_notes = told["message"]
    request.body = _with_content(body, told, tokens)
    return request


def _with_content(request: Any, told: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    """Fill in what a new dataset and a new version are told alike."""
    from kagglesdk.datasets.types.dataset_api_service import ApiDatasetNewFile

    request.subtitle, request.description = told.get("subtitle"), told["description"]
    request.category_ids = list(told.get("keywords") or [])
    files = [ApiDatasetNewFile() for _ in tokens]
    for file, token in zip(files, tokens, strict=True):
        file.token = token
    request.files = files
    return request


def _require_all_there(dataset: _Dataset, sent: Sequence[str]) -> None:
    """Compare Kaggle's list of the dataset's files with what was sent.

    Raises:
        PipelineError: names what is missing.
    """
    missing = missing_files(sent, dataset.files())
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise PipelineError(
            f"dataset {dataset.id}: Kaggle does not list {', '.join(missing[:_MOST_NAMED])}{more}; "
            "look at its page, then push again"
        )


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
