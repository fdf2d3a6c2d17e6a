"""Write the project and one recipe into a folder that Kaggle accepts as a kernel.

A kernel has one of three kinds: it runs a whole recipe, trains one collection, or ranks with
trained models. The script `kernels.script` runs on Kaggle. It contains the project as a zip archive
of all files with a suffix of code, tracked by git or not. Links are rejected.

The kernel has no internet, and the image of Kaggle lacks torch-geometric. So attach a dataset with
its wheel, whose name ends in `-wheels` (`kernels.datasets`).
"""

import base64
import importlib.util
import io
import lzma
import pprint
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w
from pydantic import Field

from common import settings
from common.credentials import refuse_secrets
from common.errors import PipelineError, UsageError
from common.files import write_text
from common.progress import log
from common.reproducibility import REVISION_FILE, revision
from common.settings import FrozenConfig
from data.tree import COLLECTIONS, collection_named
from kernels.packages import PACKAGES, PINS_FILE
from models.config.custom import is_own, named_models

# Pure-Python packages that the image of Kaggle lacks.
LACKING = ("torch-geometric", "tomli-w")
# Limit of Kaggle for the source of a kernel.
SOURCE_LIMIT_BYTES = 1024 * 1024
_SETTINGS = "SETTINGS = {}  # type: ignore[var-annotated]"
_INPUT_ROOT = Path("/kaggle/input")
# Limits of Kaggle in characters.
_MIN_TITLE, _MAX_TITLE = 5, 50
METADATA_FILE = "kernel-metadata.json"
Text = Annotated[str, Field(min_length=1)]

# Name of two T4 cards on Kaggle. Without a name a session gets a P100, which current torch wheels
# do not support.
T4 = "NvidiaTeslaT4"

ENTRY = "pipeline/__main__.py"

# Datasets, caches and results are next to the code, but not part of it.
_LEFT_OUT_FOLDERS = frozenset({"data/sample", "data/raw", "data/store"})
_LEFT_OUT_NAMES = frozenset({"__pycache__", "kaggle.json", "access_token"})
_SUFFIXES = frozenset({".py", ".toml", ".csv", ".tsv", ".gz", ".j2", ".proto", ".html"})
# Equal files give equal archives, so the date is fixed. This is the earliest date of a zip file.
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)

DEFAULT_MAX_MINUTES = 690.0
# Kaggle kills a session after 720 minutes, and its output is lost.
MAX_MINUTES = 705.0


class Kind(NamedTuple):
    """Settings of a kind of kernel for `kernels.script`.

    Attributes:
        kind: "run", "train" or "infer".
        command: Command of the pipeline. The script replaces {recipe}, {data}, {input} and {out}.
        out: Folder of the command below the working folder. A finished command writes DONE there.
        result: File of `out` to copy into the working folder. A kernel with a result also resumes
            an unfinished `out` of an attached output.
        dropped: Folder of `out` to remove at the end, because it has copies of attached models.
        max_minutes: Minutes from the start until the command stops itself.
        saving_minutes: Further minutes until the script kills a command that hangs.
    """

    kind: str
    words: str
    command: str
    out: str
    result: str = ""
    dropped: str = ""
    max_minutes: float = DEFAULT_MAX_MINUTES
    saving_minutes: float = 7.5


_RUN = "run --recipe {recipe} --data {data} --out {out} --resume"
_TRAIN = "train --recipe {recipe} --data {data} --collection NAME --out {out} --resume-from {input}"
_INFER = f"{_RUN} --models {{input}}"
KINDS = {
    "run": Kind("run", "", _RUN, "run", result="submission.csv"),
    # `kind_named` replaces NAME by the collection.
    "train": Kind("train", "train", _TRAIN, "models"),
    "infer": Kind("infer", "infer", _INFER, "run", result="submission.csv", dropped="models"),
}


class KernelMetadata(FrozenConfig):
    """Keys of kernel-metadata.json. The push adds the owner to `id`."""

    id: Text
    title: Text
    code_file: Text
    language: str = "python"
    kernel_type: Literal["script"] = "script"
    is_private: bool = True
    enable_gpu: bool = True
    enable_tpu: bool = False
    enable_internet: bool = False
    machine_shape: str = T4
    keywords: tuple[str, ...] = ()
    dataset_sources: tuple[str, ...] = ()
    competition_sources: tuple[str, ...] = ("predict-ai-model-runtime",)
    kernel_sources: tuple[str, ...] = ()
    model_sources: tuple[str, ...] = ()
    docker_image: str | None = None
    # Later versions of the kernel use the same image.
    docker_image_pinning_type: str = "original"

    @property
    def text(self) -> str:
        """Return the content of the file."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"


def kind_named(name: str, collection: str | None = None, max_minutes: float | None = None) -> Kind:
    """Return a kind of kernel. Only the kind "train" has a collection."""
    if name not in KINDS:
        raise UsageError(f"--kind {name}: expected one of {', '.join(KINDS)}")
    minutes = DEFAULT_MAX_MINUTES if max_minutes is None else max_minutes
    if not 0 < minutes <= MAX_MINUTES:
        raise UsageError(
            f"--max-minutes {minutes:g}: expected more than 0 and at most {MAX_MINUTES:g}: Kaggle "
            "kills a session after 720, and its output is lost"
        )
    if (collection is None) is (name == "train"):
        names = ", ".join(place.name for place in COLLECTIONS)
        raise UsageError(f"--collection: expected with --kind train, and only there: {names}")
    kind = KINDS[name]._replace(max_minutes=minutes)
    if collection is None:
        return kind
    place = collection_named(collection)
    command = kind.command.replace("NAME", place.name)
    return kind._replace(words=f"train {place.slug}", out=f"models/{place.slug}", command=command)


def build(
    recipe_name: str,
    recipe_table: Mapping[str, Any],
    out: Path,
    *,
    kind: Kind = KINDS["run"],
    root: Path = settings.ROOT,
    gpu: bool = True,
    dataset_sources: Sequence[str] = (),
    kernel_sources: Sequence[str] = (),
    title: str = "",
    beside: Path = Path(),
) -> Path:
    """Write a kernel folder for a recipe, and return the path of the script.

    Args:
        recipe_table: Recipe with all overrides, without None values.
        dataset_sources: Datasets to attach, "owner/slug".
        kernel_sources: Kernels whose output is attached, "owner/slug".
        title: Title instead of "Fast or slow <recipe>". The words of the kind follow.
        beside: Folder of custom model packages that are not on Python's path.
    """
    title = title_of(recipe_name, kind, title)
    _check_sources(kind, dataset_sources, kernel_sources)
    custom_models = [model for model, _ in named_models(recipe_table).values() if is_own(model)]
    recipe_file = f"configs/{recipe_name}.toml"
    files = {**custom_packages(custom_models, beside), **collect_files(root)}
    files[recipe_file] = tomli_w.dumps(recipe_table).encode()
    script = _script_text(kind, files, recipe_file)
    if (script_bytes := len(script.encode())) > SOURCE_LIMIT_BYTES:
        largest = max(files, key=lambda name: len(files[name]))
        raise PipelineError(
            f"kernel of recipe '{recipe_name}': the script has {script_bytes} bytes; Kaggle takes "
            f"{SOURCE_LIMIT_BYTES}; its largest file is {largest} ({len(files[largest])} bytes)"
        )
    slug = slug_of(title)
    metadata = KernelMetadata(
        id=slug,
        title=title,
        code_file=f"{slug}.py",
        enable_gpu=gpu,
        machine_shape=T4 if gpu else "",
        dataset_sources=tuple(dataset_sources),
        kernel_sources=tuple(kernel_sources),
    )
    refuse_secrets([*files.items(), (METADATA_FILE, metadata.text.encode())])
    if any(out.glob("[!.]*")) and not (out / METADATA_FILE).exists():
        raise UsageError(f"{out}: is not empty and no kernel folder; choose another --out")
    if (out / METADATA_FILE).exists():
        log.info(f"note: {out}: replaces an earlier kernel")
    write_text(out / METADATA_FILE, metadata.text)
    write_text(out / metadata.code_file, script)
    return out / metadata.code_file


def _script_text(kind: Kind, files: Mapping[str, bytes], recipe_file: str) -> str:
    values = {
        **kind._asdict(),
        "recipe": recipe_file,
        "mounts": [mount.relative_to(_INPUT_ROOT).as_posix() for mount in settings.KAGGLE_MOUNTS],
    }
    text = pprint.pformat(values, sort_dicts=False, width=100)
    archive = base64.encodebytes(lzma.compress(pack(files))).decode()
    script = Path(__file__).with_name("script.py").read_text(encoding="utf-8")
    script = script.replace(_SETTINGS, f"SETTINGS = {text}", 1)
    return script.replace('ARCHIVE = ""', f'ARCHIVE = """\n{archive}"""', 1)


def title_of(recipe_name: str, kind: Kind, title: str = "") -> str:
    """Return the title of a kernel: a title or that of a recipe, and the words of the kind."""
    ending = f" {kind.words}" if kind.words else ""
    recipe_words = re.sub("[_.]", " ", recipe_name)
    title = (title.strip() or f"Fast or slow {recipe_words}") + ending
    fits = len(slug_of(title)) >= _MIN_TITLE and len(title) <= _MAX_TITLE
    if not (fits and title.isascii() and title.isprintable()):
        raise UsageError(
            f"kernel title {title!a}: {len(title)} characters; expected {_MIN_TITLE} to "
            f"{_MAX_TITLE} of plain ASCII; --title takes {_MAX_TITLE - len(ending)} at most"
        )
    return title


def _check_sources(
    kind: Kind, dataset_sources: Sequence[str], kernel_sources: Sequence[str]
) -> None:
    for option, sources in (("--dataset", dataset_sources), ("--kernel", kernel_sources)):
        for source in sources:
            # OWNER is the placeholder of the documentation.
            if not re.fullmatch(r"(?!OWNER/)[\w-]+/[\w-]+", source):
                requirement = "expected owner/slug, as in its address, with a Kaggle user's name"
                raise UsageError(f"{option} {source!r}: {requirement}")
    wheels = [source for source in dataset_sources if source.endswith("-wheels")]
    if kind.kind == "infer" and not kernel_sources and len(dataset_sources) == len(wheels):
        raise UsageError(
            "--kind infer: no attached source has trained models; pass --kernel or --dataset"
        )
    if not wheels:
        log.info(
            f"note: Kaggle's image lacks {', '.join(LACKING)}; make a dataset with `kernel "
            "wheels`, and attach it with --dataset OWNER/…-wheels"
        )


def collect_files(root: Path) -> dict[str, bytes]:
    """Read the files of the project that a kernel needs, and the revision."""
    files = _read(root, PACKAGES)
    if (pins := root / PINS_FILE).is_file():
        files[PINS_FILE] = pins.read_bytes()
    if ENTRY not in files:
        raise PipelineError(f"{root / ENTRY}: no such file; expected the project's own folder")
    if git_revision := revision(root):
        files[REVISION_FILE] = f"{git_revision}\n".encode()
    return files


def custom_packages(places: Iterable[str], beside: Path) -> dict[str, bytes]:
    """Read the packages of custom models, for example of "my_pkg.gat:Gat"."""
    files: dict[str, bytes] = {}
    tops = {place.partition(":")[0].partition(".")[0] for place in places}
    for top in sorted(tops.difference(PACKAGES)):
        spec = importlib.util.find_spec(top)
        origins = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
        root = Path(origins[0] or "").parent if origins else beside
        package = _read(root, (f"{top}.py", top))
        if not package:
            raise UsageError(
                f"model package '{top}': is neither on Python's path nor in {beside}; start "
                "from its parent folder, or set PYTHONPATH"
            )
        files |= package
    return files


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive without compression, because its whole is compressed later."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(files.items()):
            member = zipfile.ZipInfo(name, _FIXED_DATE)
            # Unix on every system, so that equal files give equal archives.
            member.create_system = 3
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return buffer.getvalue()


def _read(root: Path, tops: Sequence[str]) -> dict[str, bytes]:
    paths = (path for top in tops for path in [root / top, *(root / top).rglob("*")])
    files = {}
    for path in paths:
        name = path.relative_to(root)
        places = {parent.as_posix() for parent in (name, *name.parents)}
        is_hidden = any(part.startswith(".") or part in _LEFT_OUT_NAMES for part in name.parts)
        if is_hidden or places & _LEFT_OUT_FOLDERS:
            continue
        if path.is_symlink() and (path.is_dir() or path.suffix in _SUFFIXES):
            # The target of a link may be a file that the user does not want to publish.
            raise UsageError(f"{path}: is a link; a kernel embeds no links; replace it by a copy")
        if path.suffix in _SUFFIXES and path.is_file():
            files[name.as_posix()] = path.read_bytes()
    return files


def slug_of(title: str) -> str:
    """Return the slug that Kaggle derives from a title. The kernel's id must end in it.

    >>> slug_of("Fast or slow: cpu_small")
    'fast-or-slow-cpu-small'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
