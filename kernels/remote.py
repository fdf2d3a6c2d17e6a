"""Push and start a kernel on Kaggle, read its status, and fetch its output.

Paths of an output are checked. An interrupted download resumes.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from requests import Session

from common.credentials import content_to_send, one_line
from common.errors import PipelineError, UsageError
from common.files import read_json, write_text
from common.http import RetryPolicy
from common.kaggle import POLICY, KaggleSession, ask, is_refused, kaggle_session, send_once
from common.progress import progress
from data.fetch.download import download
from kernels.build import METADATA_FILE, KernelMetadata

# Kaggle answers with one of these if the user has no dataset or kernel of a name.
UNKNOWN = (403, 404)
_PAGE, _MAX_PAGES = 200, 500
_IN_DOUBT = (
    "the kernel may have started: look at `fast-or-slow kernel status` before pushing it again"
)
_SOURCES = ("dataset", "competition", "kernel", "model")

NOTE_FILE = "kernel.json"
# Limit of a file name on most disks.
MAX_NAME_BYTES = 255
OUTPUT_POLICY = RetryPolicy()
_ENDED_BADLY = ("error", "cancel_acknowledged")


class KernelVersion(NamedTuple):
    """Version of a kernel that Kaggle runs."""

    kernel_id: str
    version: int

    @property
    def url(self) -> str:
        return f"https://www.kaggle.com/code/{self.kernel_id}"


class KernelStatus(NamedTuple):
    """Status of the latest run of a kernel, for example "queued", "running" or "complete"."""

    kernel_id: str
    state: str
    failure_message: str


class QuotaError(PipelineError):
    """Kaggle starts no kernel now: too many sessions run, or the week's GPU hours are used up."""


class KernelNote(BaseModel):
    """Content of kernel.json in the output of our kernels that is read here."""

    finished: bool


class KernelOutput(NamedTuple):
    """Output of a version of a kernel."""

    kernel_id: str
    version: int
    folder: Path
    files: int
    unfinished: bool


def push(folder: Path, *, policy: RetryPolicy = POLICY) -> KernelVersion:
    """Send a kernel as a new version, which starts it.

    If the answer is lost, the version on Kaggle shows whether the kernel arrived.
    """
    if not folder.is_dir():
        raise PipelineError(f"{folder}: no such folder; `kernel build` writes it")
    metadata_file = folder / METADATA_FILE
    metadata = read_json(metadata_file, KernelMetadata, expected="a folder of `build`")
    source = folder / metadata.code_file
    if source.parent != folder or source.name != metadata.code_file:
        requirement = "expected the name of a file in the same folder"
        raise PipelineError(
            f"{metadata_file}: key 'code_file': {metadata.code_file!r}; {requirement}"
        )
    if not source.is_file():
        raise PipelineError(f"{source}: no such file; build the kernel again")
    content_to_send(metadata_file)
    try:
        code = content_to_send(source).decode()
    except UnicodeDecodeError as error:
        raise PipelineError(f"{source}: expected UTF-8 text; {error}") from None
    with kaggle_session(f"push kernel {folder}", policy) as session:
        kernel_id = session.with_owner(metadata.id)
        request = {**_settings(metadata), "slug": kernel_id, "text": code}
        last = ask(session, lambda: _version(session, kernel_id))

        def send() -> int:
            return _version_of_answer(kernel_id, session.call("kernels", "save_kernel", request))

        def arrived() -> int | None:
            version = _version(session, kernel_id)
            return version if version > last else None

        version = send_once(session, send, arrived, _IN_DOUBT)
    return KernelVersion(kernel_id, version)


def _settings(metadata: KernelMetadata) -> dict[str, Any]:
    """Return the metadata of a kernel by the JSON keys of a request."""
    names = {"title": "new_title", "keywords": "category_ids"}
    names |= {f"{kind}_sources": f"{kind}_data_sources" for kind in _SOURCES}
    facts = metadata.model_dump(mode="json", exclude={"id", "code_file"}, exclude_none=True)
    return {to_camel(names.get(key, key)): value for key, value in facts.items()}


def latest_version(kernel_id: str) -> KernelVersion:
    """Return the latest version of a kernel, 0 for an unknown kernel."""
    with kaggle_session(f"version of kernel {kernel_id}") as session:
        full_id = session.with_owner(kernel_id)
        return KernelVersion(full_id, ask(session, lambda: _version(session, full_id)))


def status(kernel_id: str) -> KernelStatus:
    """Return the status of the latest run of a kernel."""
    with kaggle_session(f"status of kernel {kernel_id}") as session:
        return ask(session, lambda: _status(session, session.with_owner(kernel_id)))


def _status(session: KaggleSession, kernel_id: str) -> KernelStatus:
    answer = session.call("kernels", "get_kernel_session_status", _names(kernel_id))
    state = answer.status.name.lower()
    return KernelStatus(kernel_id, state, one_line(answer.failure_message or ""))


def _version(session: KaggleSession, kernel_id: str) -> int:
    """Return the number of a kernel's latest version, 0 for an unknown kernel."""
    try:
        answer = session.call("kernels", "get_kernel", _names(kernel_id))
    except Exception as error:
        if is_refused(error, UNKNOWN):
            return 0
        raise
    return int(answer.metadata.current_version_number or 0) if answer.metadata else 0


def _output(session: KaggleSession, kernel_id: str) -> tuple[list[tuple[str, str]], str]:
    # Names and signed addresses of the files of the latest session, and its log.
    files, log, token = [], "", ""
    for _ in range(_MAX_PAGES):
        request = {**_names(kernel_id), "pageSize": _PAGE, "pageToken": token}
        page = session.call("kernels", "list_kernel_session_output", request)
        files += [(item.file_name, item.url) for item in page.files or []]
        log, token = log or page.log or "", page.next_page_token
        if not token:
            return files, log
    raise PipelineError(
        f"kernel {kernel_id}: has over {_MAX_PAGES * _PAGE} files; nothing was fetched; let the "
        "kernel pack them"
    )


def _names(kernel_id: str) -> dict[str, str]:
    owner, _, slug = kernel_id.partition("/")
    return {"userName": owner, "kernelSlug": slug}


def _version_of_answer(kernel_id: str, answer: Any) -> int:
    if answer.error and re.search("quota|session count", answer.error, re.IGNORECASE):
        raise QuotaError(
            f"kernel {kernel_id}: Kaggle does not start it now: {one_line(answer.error)}; run the "
            "same command again later"
        )
    if answer.error:
        raise PipelineError(
            f"kernel {kernel_id}: Kaggle refused it: {one_line(answer.error)}; correct the recipe "
            "or the sources, build it again, then push"
        )
    version = int(answer.version_number)
    invalid = {kind: getattr(answer, f"invalid_{kind}_sources") for kind in _SOURCES}
    unknown = [f"{kind} sources {', '.join(names)}" for kind, names in invalid.items() if names]
    if unknown:
        raise PipelineError(
            f"kernel {kernel_id}: version {version} runs without {one_line('; '.join(unknown))}"
            ": Kaggle does not know them or the account may not read them; correct and push again"
        )
    return version


def fetch_output(
    kernel_id: str, out: Path, *, only: str = "", policy: RetryPolicy = OUTPUT_POLICY
) -> KernelOutput:
    """Download the output and the log of the latest version of a kernel.

    `out` appears when it is complete. Until then the files are in a hidden folder next to it, and
    the same command resumes. If a kernel failed, only its log is fetched, into a file next to
    `out`.

    Args:
        kernel_id: "owner/slug", or "slug" for a kernel of the user.
        only: Name of the only file to fetch besides the log; "" for all files.
    """
    require_free(out)
    with kaggle_session(f"output of kernel {kernel_id}", policy) as session:
        full_id = session.with_owner(kernel_id)
        status = ask(session, lambda: _status(session, full_id))
        if status.state not in ("complete", *_ENDED_BADLY):
            raise PipelineError(
                f"kernel {full_id}: is {status.state}; fetch its output when it is complete"
            )
        files, log = ask(session, lambda: _output(session, full_id))
        if status.state != "complete":
            _keep_log(status, log, out.with_name(f"{out.name}.log"))
        version = ask(session, lambda: _version(session, full_id))
    files = [(name, address) for name, address in files if only in ("", name)]
    _check_names([name for name, _ in files])
    mark = f"{full_id.replace('/', '-')}-{version}"
    partial = out.absolute().with_name(f".{out.name}.{mark}.part")
    partial.mkdir(parents=True, exist_ok=True)
    with Session() as http:
        for number, (name, address) in enumerate(files):
            download(http, address, partial / name, policy=policy)
            progress("download", number + 1, len(files))
    log_file = partial / f"{full_id.partition('/')[2]}.log"
    if log and not log_file.exists():
        write_text(log_file, log)
    if out.exists():
        out.rmdir()
    partial.rename(out)
    n_files = sum(path.is_file() for path in out.rglob("*"))
    return KernelOutput(full_id, version, out, n_files, _is_unfinished(out / NOTE_FILE))


def require_free(out: Path) -> None:
    """Refuse an output folder that has files."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: is in the way; expected a new or empty folder")


def _is_unfinished(path: Path) -> bool:
    try:
        return not read_json(path, KernelNote, expected="a note").finished
    except PipelineError:
        return False


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        path = PurePosixPath(name)
        is_plain = name == path.as_posix() and name.isprintable() and "\\" not in name
        is_plain &= all(len(part.encode(errors="replace")) <= MAX_NAME_BYTES for part in path.parts)
        is_below = name != "." and not path.is_absolute() and ".." not in path.parts
        if not (is_plain and is_below):
            raise PipelineError(
                f"file {name[:80]!a}: expected a path within the output, no name of over "
                f"{MAX_NAME_BYTES} bytes; nothing kept"
            )
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    for name in folders.intersection(names):
        raise PipelineError(
            f"file {name[:80]!a}: is also a folder of the output, and a disk cannot have both; "
            "nothing kept; name one of them differently in the kernel"
        )


def _keep_log(run: KernelStatus, log: str, log_file: Path) -> NoReturn:
    if log:
        write_text(log_file, log)
    message = f": {run.failure_message}" if run.failure_message else ""
    place = f"; its log is in {log_file}" if log else ""
    raise PipelineError(f"kernel {run.kernel_id}: ended as {run.state}{message}{place}")
