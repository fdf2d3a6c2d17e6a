"""Turn the project and one recipe into a folder that Kaggle accepts as a kernel.

A kernel is of a kind: it runs a whole recipe, trains one collection, or ranks with trained models.
`kernels.script`, which does that on Kaggle, carries the project's own code as a zip archive whose
bytes depend on nothing but the files: those of the suffixes that code has, tracked by git or not.
Links are refused.

The kernel has no internet. Kaggle's image lacks torch-geometric: attach a dataset whose name ends
in `-wheels` and holds its wheel (see `kernels.datasets`), through `dataset_sources`.
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
from data.tree import collection_named

# Modules that Kaggle's image may lack, and the distribution that brings each: pure Python all.
REQUIRED_MODULES = {"torch_geometric": "torch-geometric", "tomli_w": "tomli-w"}
# Modules that Kaggle's image has today. A kernel looks for them before it trains, not hours later.
_IMAGE_MODULES = (
    *("filelock", "google", "jinja2", "lightgbm", "matplotlib", "numpy", "polars", "pydantic"),
    *("requests", "rich", "safetensors", "scipy", "sklearn", "threadpoolctl", "torch", "typer"),
    "urllib3",
)
SOURCE_LIMIT_BYTES = 1024 * 1024  # Kaggle's limit of a kernel's source
_SETTINGS = "SETTINGS = {}  # type: ignore[var-annotated]"
_INPUT_ROOT = Path("/kaggle/input")
_SHORTEST_TITLE, _LONGEST_TITLE = 5, 50  # characters, Kaggle's limits
METADATA_FILE = "kernel-metadata.json"
Text = Annotated[str, Field(min_length=1)]

# Kaggle's name of its pair of T4 cards. Without a name a P100 is lent, which the current torch
# wheels no longer support.
T4 = "NvidiaTeslaT4"

ENTRY = "pipeline/__main__.py"
PACKAGES = (
    *("common", "data", "features", "models", "ensembles"),
    *("submissions", "kernels", "pipeline", "configs"),
)

# Data sets, caches and results lie beside the code but are no part of it.
_LEFT_OUT_FOLDERS = frozenset({"data/sample", "data/raw", "data/store"})
_LEFT_OUT_NAMES = frozenset({"__pycache__", "kaggle.json", "access_token"})
_SUFFIXES = frozenset({".py", ".toml", ".csv", ".tsv", ".gz", ".j2", ".proto", ".html"})
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can hold

DEFAULT_MAX_MINUTES = 690.0
MOST_MINUTES = 705.0  # Kaggle kills a session after 720 and keeps nothing of it


class Kind(NamedTuple):
    """What sets one kernel of a recipe apart from another; `kernels.script` works by it.

    `result` is the file of `out` that ends up in the working folder; a kernel with one also copies
    an unfinished `out` of an attached output.
    """

    kind: str  # "run", "train" or "infer"
    words: str  # what the title has after the recipe's name
    command: str  # of the pipeline; {recipe}, {data}, {input}, {out} are filled in on Kaggle
    out: str  # the folder in the working one that the command marks with DONE once it is through
    result: str = ""
    dropped: str = ""  # the folder of `out` that goes once all is done: attached models
    max_minutes: float = DEFAULT_MAX_MINUTES  # from the start until the command stops itself
    saving_minutes: float = 7.5  # a command that hangs is killed so long after that


_RUN = "run --recipe {recipe} --data {data} --out {out} --resume"
_TRAIN = "train --recipe {recipe} --data {data} --collection NAME --out {out} --resume-from {input}"
_INFER = f"{_RUN} --models {{input}}"
KINDS = {
    "run": Kind("run", "", _RUN, "run", result="submission.csv"),
    "train": Kind("train", "train", _TRAIN, "models"),  # of the collection NAME
    "infer": Kind("infer", "infer", _INFER, "run", result="submission.csv", dropped="models"),
}


class KernelMetadata(FrozenConfig):
    """The keys of kernel-metadata.json; the push adds the owner to `id`."""

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
    docker_image_pinning_type: str = "original"  # later versions of the kernel keep the image

    @property
    def text(self) -> str:
        """Return the content of the file."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"


def kind_named(name: str, collection: str | None = None, max_minutes: float | None = None) -> Kind:
    """Return the kind that the command line asks for.

    Raises:
        UsageError: no such kind or collection, an option that the kind needs or does not have, or
            more minutes than a session has.
    """
    if name not in KINDS:
        raise UsageError(f"--kind {name}: expected one of {', '.join(KINDS)}")
    minutes = DEFAULT_MAX_MINUTES if max_minutes is None else max_minutes
    if not 0 < minutes <= MOST_MINUTES:
        raise UsageError(
            f"--max-minutes {minutes:g}: expected more than 0 and at most {MOST_MINUTES:g}: Kaggle "
            "ends a session after 720 and keeps nothing then"
        )
    if (collection is None) is (name == "train"):
        raise UsageError("--collection: expected with --kind train, and only there")
    kind = KINDS[name]._replace(max_minutes=minutes)
    if collection is None:
        return kind
    wanted = collection_named(collection)
    command = kind.command.replace("NAME", wanted.name)
    return kind._replace(words=f"train {wanted.slug}", out=f"models/{wanted.slug}", command=command)


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
    """Write a kernel that works by `recipe_table` on Kaggle to `out`; return its source's path.

    Args:
        recipe_table: the recipe, overrides applied, without None values.
        title: in place of "Fast or slow <recipe>"; the kind's words follow it either way.
        beside: where packages of the recipe's own models ("my_pkg.gat:Gat") lie that are not on
            Python's path; they are embedded as well.

    Raises:
        UsageError: a title or a source that Kaggle would refuse, nothing attached that could hold
            the models to rank with, or `out` holds other files.
        PipelineError: an incomplete project, a credential among the files, a script above
            Kaggle's limit, or `out` cannot be written.
    """
    title = _title_of(recipe_name, kind, title)
    _check_sources(kind, dataset_sources, kernel_sources)
    parts = [recipe_table.get(name, {}) for name in ("layout", "tile")]
    own_models = [model for part in parts for model in part.get("models", ()) if ":" in model]
    recipe_file = f"configs/{recipe_name}.toml"
    files = {**own_packages(own_models, beside), **collect_files(root)}
    files[recipe_file] = tomli_w.dumps(recipe_table).encode()
    script = _rendered(kind, files, recipe_file)
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
        raise UsageError(f"{out}: is in the way and no kernel's folder; choose another --out")
    if (out / METADATA_FILE).exists():
        log.info(f"note: {out}: replaces the kernel that was built there before")
    write_text(out / METADATA_FILE, metadata.text)
    write_text(out / metadata.code_file, script)
    return out / metadata.code_file


def _rendered(kind: Kind, files: Mapping[str, bytes], recipe_file: str) -> str:
    values = {
        **kind._asdict(),
        "recipe": recipe_file,
        "mounts": [mount.relative_to(_INPUT_ROOT).as_posix() for mount in settings.KAGGLE_MOUNTS],
        "required": {**dict(zip(_IMAGE_MODULES, _IMAGE_MODULES, strict=True)), **REQUIRED_MODULES},
    }
    filled = pprint.pformat(values, sort_dicts=False, width=100)
    archive = base64.encodebytes(lzma.compress(pack(files))).decode()
    script = Path(__file__).with_name("script.py").read_text(encoding="utf-8")
    script = script.replace(_SETTINGS, f"SETTINGS = {filled}", 1)
    return script.replace('ARCHIVE = ""', f'ARCHIVE = """\n{archive}"""', 1)


def _title_of(recipe_name: str, kind: Kind, chosen: str) -> str:
    spoken = re.sub("[_.]", " ", recipe_name)
    ending = f" {kind.words}" if kind.words else ""
    title = (chosen.strip() or f"Fast or slow {spoken}") + ending
    fits = len(slug_of(title)) >= _SHORTEST_TITLE and len(title) <= _LONGEST_TITLE
    if not (fits and title.isascii() and title.isprintable()):
        raise UsageError(
            f"kernel title {title!a}: {len(title)} characters; expected {_SHORTEST_TITLE} to "
            f"{_LONGEST_TITLE} of plain ASCII; --title takes {_LONGEST_TITLE - len(ending)} at most"
        )
    return title


def _check_sources(
    kind: Kind, dataset_sources: Sequence[str], kernel_sources: Sequence[str]
) -> None:
    for option, sources in (("--dataset", dataset_sources), ("--kernel", kernel_sources)):
        for source in sources:
            if not re.fullmatch(r"(?!OWNER/)[\w-]+/[\w-]+", source):  # as the README has it
                expected = "expected owner/slug, as in its address, with a Kaggle user's name"
                raise UsageError(f"{option} {source!r}: {expected}")
    wheels = [source for source in dataset_sources if source.endswith("-wheels")]
    if kind.kind == "infer" and not kernel_sources and len(dataset_sources) == len(wheels):
        raise UsageError(
            "--kind infer: nothing attached holds trained models; pass --kernel or --dataset"
        )
    if not wheels:
        lacking = ", ".join(REQUIRED_MODULES.values())
        log.info(
            f"note: Kaggle's image lacks {lacking}: `kernel wheels` makes a dataset of it, "
            "which --dataset OWNER/…-wheels attaches"
        )


def collect_files(root: Path) -> dict[str, bytes]:
    """Read what a kernel needs of the project at `root`, and its revision: path below, to content.

    Raises:
        PipelineError: `root` holds no pipeline/__main__.py.
    """
    files = _read(root, PACKAGES)
    if ENTRY not in files:
        raise PipelineError(f"{root / ENTRY}: no such file; expected the project's own folder")
    made_of = revision(root)
    return {**files, REVISION_FILE: f"{made_of}\n".encode()} if made_of else files


def own_packages(places: Iterable[str], beside: Path) -> dict[str, bytes]:
    """Read the packages of one's own models, "my_pkg.gat:Gat", as `collect_files`.

    Args:
        beside: looked in where Python's own path has no such package.

    Raises:
        UsageError: there is no such package.
    """
    files: dict[str, bytes] = {}
    tops = {place.partition(":")[0].partition(".")[0] for place in places}
    for top in sorted(tops.difference(PACKAGES)):
        spec = importlib.util.find_spec(top)
        origins = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
        root = Path(origins[0] or "").parent if origins else beside
        own = _read(root, (f"{top}.py", top))
        if not own:
            raise UsageError(
                f"model package '{top}': found neither on Python's path nor in {beside}; start "
                "from the folder that holds it, or set PYTHONPATH"
            )
        files |= own
    return files


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return `files` as a zip archive, not compressed: as one that takes less."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted(files.items()):
            member = zipfile.ZipInfo(name, _FIXED_DATE)
            member.create_system = 3  # Unix, wherever it is built
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return packed.getvalue()


def _read(root: Path, tops: Sequence[str]) -> dict[str, bytes]:
    """Read the code in files and folders `tops` of `root`: path below `root`, to content.

    Raises:
        UsageError: A link is among the code; what it leads to may belong to something else.
    """
    paths = (path for top in tops for path in [root / top, *(root / top).rglob("*")])
    files = {}
    for path in paths:
        name = path.relative_to(root)
        places = {parent.as_posix() for parent in (name, *name.parents)}
        is_hidden = any(part.startswith(".") or part in _LEFT_OUT_NAMES for part in name.parts)
        if is_hidden or places & _LEFT_OUT_FOLDERS:
            continue
        if path.is_symlink() and (path.is_dir() or path.suffix in _SUFFIXES):
            raise UsageError(f"{path}: is a link; a kernel embeds no links; replace it by a copy")
        if path.suffix in _SUFFIXES and path.is_file():
            files[name.as_posix()] = path.read_bytes()
    return files


def slug_of(title: str) -> str:
    """Return the slug that Kaggle makes of a title; the kernel's id must end in it.

    >>> slug_of("Fast or slow: cpu_small")
    'fast-or-slow-cpu-small'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
