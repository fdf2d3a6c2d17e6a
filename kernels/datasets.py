"""Kaggle datasets of trained models and of wheels: write their folders, and push them.

The request that makes a version is sent once. If its answer is lost, Kaggle is asked.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from subprocess import run as run_pip
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from common import settings
from common.credentials import one_line, redact, refuse_secrets
from common.errors import PipelineError, UsageError
from common.files import write_bytes, write_text
from common.http import RetryPolicy
from common.json_files import read_json
from common.kaggle import (
    POLICY,
    KaggleSession,
    ask,
    is_refused,
    kaggle_session,
    send_once,
    upload_file,
)
from common.settings import FrozenConfig
from ensembles.trained_models import find_models
from kernels.build import REQUIRED_MODULES, Text, slug_of
from kernels.remote import UNKNOWN
from models.run_folder import CONFIG, DONE, is_done

DATASET_METADATA_FILE = "dataset-metadata.json"
_SHORTEST, _LONGEST = 6, 50  # characters of a title, Kaggle's limits

# What models of every kind leave that ranks with them; scores, pictures and reports do not.
_NEEDED_SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".jsonl"})
_NEEDED = frozenset({CONFIG, DONE, "importances.parquet"})
_LEFT_OUT = (".", "checkpoint.", "report.")

WHEELS_TITLE = "Fast or slow wheels"  # its slug ends in -wheels, by which kernels find it


_IN_DOUBT = (
    "the version may have been made: look at the dataset's page before pushing the folder again"
)


def write_weights(run: Path, out: Path, *, title: str) -> list[str]:
    """Write a new dataset folder with the models below `run`, and its metadata.

    Args:
        run: a run, a model's folder, or a kernel's output; searched at any depth.

    Returns:
        "COLLECTION/MEMBER" of each model.

    Raises:
        UsageError: `out` is in the way, or Kaggle would refuse the title.
        PipelineError: no model, two that differ under one name, an unfinished one, or a credential
            in a file.
    """
    _require_free(out)
    subtitle = "Trained models that rank XLA compiler configurations"
    metadata = dataset_metadata(title, subtitle=subtitle, licence="CC-BY-4.0")
    models = dict(sorted(find_models(run).items()))
    for folder in models.values():
        if not is_done(folder):
            raise PipelineError(f"{folder}: its training has not ended; --resume ends it")
    if not models:
        raise PipelineError(f"{run}: holds no run folder of a model")
    for (place, member), folder in models.items():
        for path in sorted(folder.iterdir()):
            is_named = path.name in _NEEDED or path.suffix in _NEEDED_SUFFIXES
            if is_named and not path.name.startswith(_LEFT_OUT) and path.is_file():
                write_bytes(out / "models" / place / member / path.name, path.read_bytes())
    seal(out, metadata)
    return list(map("/".join, models))


def write_wheels(out: Path) -> list[Path]:
    """Download wheels into a new dataset folder, with its metadata.

    The same pinned versions give the same bytes.

    Raises:
        UsageError: `out` is in the way.
        PipelineError: pip cannot get one.
    """
    _require_free(out)
    wanted, pins = REQUIRED_MODULES.values(), str(settings.ROOT / "requirements.txt")
    command = [*_pip(), "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "-c", pins]
    with tempfile.TemporaryDirectory(prefix="wheels-") as folder:
        ended = run_pip(  # noqa: S603
            [*command, "--dest", folder, *wanted], capture_output=True, check=False
        )
        if ended.returncode:
            lines = ended.stderr.decode(errors="backslashreplace").splitlines()
            said = [line for line in lines if line.startswith("ERROR")] or lines or ["no word"]
            told = redact(said[-1])
            raise PipelineError(f"pip download {' '.join(wanted)}: {told}; check the package index")
        wheels = sorted(Path(folder).glob("*.whl"))
        for wheel in wheels:
            write_bytes(out / wheel.name, wheel.read_bytes())
    subtitle = "Pure-Python packages that a kernel without internet installs"
    # Each wheel holds its own licence.
    seal(out, dataset_metadata(WHEELS_TITLE, subtitle=subtitle, licence="other"))
    return [out / wheel.name for wheel in wheels]


def _pip() -> list[str]:
    """Return the start of a command line that runs pip, also in an environment that uv made."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise PipelineError("kernel wheels: neither pip nor uv is installed; install one of them")


class DatasetMetadata(FrozenConfig):
    """The keys of dataset-metadata.json; the push adds the owner to `id`."""

    id: Text
    title: Text
    subtitle: str = ""
    description: str = ""
    licenses: Annotated[tuple[dict[str, str], ...], Field(min_length=1)]
    isPrivate: bool = True  # noqa: N815 - Kaggle's key
    keywords: tuple[str, ...] = ()


def dataset_metadata(title: str, *, subtitle: str, licence: str) -> DatasetMetadata:
    """Return the metadata of a private dataset.

    Raises:
        UsageError: Kaggle would refuse the title.
    """
    if not _SHORTEST <= len(slug_of(title)) <= len(title) <= _LONGEST:
        raise UsageError(f"dataset title {title!a}: expected {_SHORTEST} to {_LONGEST} characters")
    slug, licences = slug_of(title), ({"name": licence},)
    return DatasetMetadata(id=slug, title=title, subtitle=subtitle, licenses=licences)


def _require_free(out: Path) -> None:  # old files would be sent with the new ones
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: is in the way; expected a new or empty folder")


def seal(folder: Path, metadata: DatasetMetadata) -> None:
    """Write a folder's metadata, once its files are there: without it nothing is sent.

    Raises:
        PipelineError: as `sent_files`.
    """
    sent_files(folder)
    write_text(folder / DATASET_METADATA_FILE, metadata.model_dump_json(indent=2) + "\n")


def sent_files(folder: Path) -> list[str]:
    """Return the names of the files of a dataset folder that are sent.

    Raises:
        PipelineError: a link or a hidden or empty file, which Kaggle may leave out, or one that
            contains a Kaggle credential of this machine.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or path.name.startswith("."):
            raise PipelineError(f"{path}: is hidden or a link; expected plain files")
        if path.is_file() and name != DATASET_METADATA_FILE:
            content = path.read_bytes()
            if not content:
                raise PipelineError(f"{path}: is empty; Kaggle may leave such files out; remove it")
            refuse_secrets([(path, content)])
            found.append(name)
    return found


class SentDataset(NamedTuple):
    """A dataset whose new version Kaggle has accepted."""

    dataset_id: str  # "owner/slug"
    made: str  # "created" or "updated"
    url: str


def push_dataset(folder: Path, message: str, *, policy: RetryPolicy = POLICY) -> SentDataset:
    """Send a dataset folder: creates the dataset, or makes its next version.

    Folders within it are packed, and unpacked by Kaggle. If an answer is lost, Kaggle is asked for
    the version.

    Args:
        folder: Folder that `kernel wheels` or `kernel weights` wrote.
        message: What is new in this version.
        policy: How often requests that do no harm are repeated.

    Raises:
        UsageError: an empty message.
        PipelineError: an incomplete folder, missing or refused credentials, or a title that is
            taken.
    """
    if not message.strip():
        raise UsageError("-m: expected a text that says what is new")
    path, expected = folder / DATASET_METADATA_FILE, "what `kernel wheels` or `weights` wrote"
    known = read_json(path, DatasetMetadata, expected=expected)
    files = sent_files(folder)
    with kaggle_session(f"push dataset {folder}", policy) as session:
        dataset_id = session.own(known.id)
        before = ask(session, lambda: _version(session, dataset_id))
        tokens = _upload(session, folder, files)
        owner, slug = dataset_id.split("/")
        asked = {
            **{"title": known.title, "subtitle": known.subtitle, "description": known.description},
            **{"ownerSlug": owner, "slug": slug, "datasetSlug": slug, "versionNotes": message},
            **{"isPrivate": known.isPrivate, "licenseName": known.licenses[0]["name"]},
            "categoryIds": list(known.keywords),
            "files": [{"token": token} for token in tokens],
        }
        _make(session, dataset_id, asked, before)
    url = f"https://www.kaggle.com/datasets/{dataset_id}"
    return SentDataset(dataset_id, "created" if before is None else "updated", url)


def _version(session: KaggleSession, dataset_id: str) -> int | None:
    """Return the number of a dataset's latest version; None if there is no such dataset."""
    owner, slug = dataset_id.split("/")
    try:
        named = {"ownerSlug": owner, "datasetSlug": slug}
        found = session.call("datasets", "get_dataset", named)
    except Exception as error:
        own = owner.lower() == session.username.lower()
        if is_refused(error, UNKNOWN if own else UNKNOWN[1:]):
            return None
        raise
    return int(found.current_version_number or 0)


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
    session: KaggleSession, dataset_id: str, asked: Mapping[str, Any], before: int | None
) -> None:
    method = "create_dataset" if before is None else "create_dataset_version"

    def send() -> bool:
        # Each request takes the keys that it knows.
        answer = session.call("datasets", method, {**asked, "body": asked})
        if answer.error or (answer.status or "ok").lower() != "ok":
            told = f"Kaggle refused it: {one_line(answer.error or answer.status)}"
            advice = f"correct {DATASET_METADATA_FILE} and push again"
            raise PipelineError(f"dataset {dataset_id}: {told}; {advice}")
        return True

    def arrived() -> bool | None:
        return _version(session, dataset_id) != before or None

    send_once(session, send, arrived, _IN_DOUBT)
