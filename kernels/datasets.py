"""Write and push Kaggle datasets of trained models and of wheels.

The request for a new version is sent once. If its answer is lost, the version on Kaggle decides.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from subprocess import run as run_pip
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from common import settings
from common.credentials import content_to_send, one_line, redact, refuse_link
from common.errors import PipelineError, UsageError
from common.files import read_json, write_bytes, write_text
from common.http import RetryPolicy
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
from kernels.build import LACKING, Text, slug_of
from kernels.remote import UNKNOWN, require_free
from models.run_folder import CONFIG, DONE, is_done

DATASET_METADATA_FILE = "dataset-metadata.json"
# Limits of Kaggle for a title in characters.
_MIN_TITLE, _MAX_TITLE = 6, 50

# Files that models of any kind need to rank, without scores, pictures and reports.
_NEEDED_SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".jsonl"})
_NEEDED = frozenset({CONFIG, DONE, "importances.parquet", "programs.packed"})
_LEFT_OUT = (".", "checkpoint.", "report.")

KAGGLE_PYTHON = "3.12"
# Kernels find the dataset because its slug ends in -wheels.
WHEELS_TITLE = "Fast or slow wheels"

_IN_DOUBT = (
    "the version may have been made: look at the dataset's page before pushing the folder again"
)


def write_weights(run: Path, out: Path, *, title: str) -> list[str]:
    """Write a dataset folder with trained models, and return "COLLECTION/MEMBER" of each model."""
    require_free(out)
    subtitle = "Trained models that rank XLA compiler configurations"
    metadata = dataset_metadata(title, subtitle=subtitle, licence="CC-BY-4.0")
    models = dict(sorted(find_models(run).items()))
    for folder in models.values():
        if not is_done(folder):
            raise PipelineError(
                f"{folder}: is not trained to the end; `train --resume` finishes it"
            )
    if not models:
        raise PipelineError(f"{run}: has no run folder of a model")
    for (place, member), folder in models.items():
        for path in sorted(folder.iterdir()):
            is_named = path.name in _NEEDED or path.suffix in _NEEDED_SUFFIXES
            if is_named and not path.name.startswith(_LEFT_OUT) and path.is_file():
                write_bytes(out / "models" / place / member / path.name, content_to_send(path))
    seal(out, metadata)
    return list(map("/".join, models))


def write_wheels(out: Path, newer: Sequence[str] = ()) -> list[Path]:
    """Download wheels for Kaggle's Python into a new dataset folder, and write its metadata."""
    require_free(out)
    packages = [*LACKING, *newer]
    command = [*_pip(), "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--python-version", KAGGLE_PYTHON]
    command += [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (28, 27, 17, 12, 5)]
    for name in ("requirements.txt", "constraints.txt"):
        command += ["-c", str(settings.ROOT / name)]
    with tempfile.TemporaryDirectory(prefix="wheels-") as folder:
        process = run_pip(  # noqa: S603
            [*command, "--dest", folder, *packages], capture_output=True, check=False
        )
        if process.returncode:
            lines = process.stderr.decode(errors="backslashreplace").splitlines()
            errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
            reason = redact(errors[-1])
            raise PipelineError(
                f"pip download {' '.join(packages)}: {reason}; check the package index"
            )
        wheels = sorted(Path(folder).glob("*.whl"))
        for wheel in wheels:
            write_bytes(out / wheel.name, wheel.read_bytes())
    subtitle = "Packages that a kernel without internet installs"
    # Each wheel contains its licence.
    seal(out, dataset_metadata(WHEELS_TITLE, subtitle=subtitle, licence="other"))
    return [out / wheel.name for wheel in wheels]


def _pip() -> list[str]:
    # An environment of uv has no pip.
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise PipelineError("kernel wheels: neither pip nor uv is installed; install one of them")


class DatasetMetadata(FrozenConfig):
    """Keys of dataset-metadata.json. The push adds the owner to `id`."""

    id: Text
    title: Text
    subtitle: str = ""
    description: str = ""
    licenses: Annotated[tuple[dict[str, str], ...], Field(min_length=1)]
    isPrivate: bool = True  # noqa: N815 - Kaggle's key
    keywords: tuple[str, ...] = ()


def dataset_metadata(title: str, *, subtitle: str, licence: str) -> DatasetMetadata:
    """Return the metadata of a private dataset."""
    if not _MIN_TITLE <= len(slug_of(title)) <= len(title) <= _MAX_TITLE:
        raise UsageError(
            f"dataset title {title!a}: expected {_MIN_TITLE} to {_MAX_TITLE} characters"
        )
    slug, licences = slug_of(title), ({"name": licence},)
    return DatasetMetadata(id=slug, title=title, subtitle=subtitle, licenses=licences)


def seal(folder: Path, metadata: DatasetMetadata) -> None:
    """Check the files of a dataset folder, and write its metadata.

    The metadata is last, so an unfinished folder cannot be pushed.
    """
    sent_files(folder)
    write_text(folder / DATASET_METADATA_FILE, metadata.model_dump_json(indent=2) + "\n")


def sent_files(folder: Path) -> list[str]:
    """Return the names of the files to push, without the metadata."""
    names = []
    for path in sorted(folder.rglob("*")):
        refuse_link(path)
        if path.is_dir():
            continue
        if not content_to_send(path):
            raise PipelineError(f"{path}: is empty; Kaggle may leave such files out; remove it")
        names.append(path.relative_to(folder).as_posix())
    return [name for name in names if name != DATASET_METADATA_FILE]


class SentDataset(NamedTuple):
    """Dataset with a new version on Kaggle."""

    dataset_id: str
    # "created" or "updated"
    change: str

    @property
    def url(self) -> str:
        return f"https://www.kaggle.com/datasets/{self.dataset_id}"


def push_dataset(folder: Path, message: str, *, policy: RetryPolicy = POLICY) -> SentDataset:
    """Create a dataset from a folder, or its next version.

    Subfolders are sent as zip files, which Kaggle unpacks.
    """
    if not message.strip():
        raise UsageError("-m: expected a text about the changes")
    requirement = "a folder of `kernel wheels` or `weights`"
    metadata = read_json(folder / DATASET_METADATA_FILE, DatasetMetadata, expected=requirement)
    files = sent_files(folder)
    with kaggle_session(f"push dataset {folder}", policy) as session:
        dataset_id = session.with_owner(metadata.id)
        before = ask(session, lambda: _version(session, dataset_id))
        tokens = _upload(session, folder, files)
        request = {
            **metadata.model_dump(include={"title", "subtitle", "description", "isPrivate"}),
            **_names(dataset_id),
            "slug": dataset_id.partition("/")[2],
            "versionNotes": message,
            "licenseName": metadata.licenses[0]["name"],
            "categoryIds": list(metadata.keywords),
            "files": [{"token": token} for token in tokens],
        }
        _make(session, dataset_id, request, before)
    return SentDataset(dataset_id, "created" if before is None else "updated")


def _names(dataset_id: str) -> dict[str, str]:
    owner, _, slug = dataset_id.partition("/")
    return {"ownerSlug": owner, "datasetSlug": slug}


def _version(session: KaggleSession, dataset_id: str) -> int | None:
    names = _names(dataset_id)
    try:
        dataset = session.call("datasets", "get_dataset", names)
    except Exception as error:
        is_users = names["ownerSlug"].lower() == session.username.lower()
        if is_refused(error, UNKNOWN if is_users else UNKNOWN[1:]):
            return None
        raise
    return int(dataset.current_version_number or 0)


def _upload(session: KaggleSession, folder: Path, names: Iterable[str]) -> list[str]:
    tokens = []
    with tempfile.TemporaryDirectory(prefix="dataset-push-") as scratch:
        for entry in sorted({name.partition("/")[0] for name in names}):
            path = folder / entry
            if path.is_dir():
                path = Path(shutil.make_archive(f"{scratch}/{entry}", "zip", path))
            request = {"type": "DATASET", "name": path.name}
            tokens.append(upload_file(session, path, "blobs", "start_blob_upload", request))
    return tokens


def _make(
    session: KaggleSession, dataset_id: str, request: Mapping[str, Any], before: int | None
) -> None:
    method = "create_dataset" if before is None else "create_dataset_version"

    def send() -> bool:
        # The two methods have different keys, and each ignores the keys of the other.
        answer = session.call("datasets", method, {**request, "body": request})
        if answer.error or (answer.status or "ok").lower() != "ok":
            reason = f"Kaggle refused it: {one_line(answer.error or answer.status)}"
            advice = f"correct {DATASET_METADATA_FILE} and push again"
            raise PipelineError(f"dataset {dataset_id}: {reason}; {advice}")
        return True

    def arrived() -> bool | None:
        return _version(session, dataset_id) != before or None

    send_once(session, send, arrived, _IN_DOUBT)
