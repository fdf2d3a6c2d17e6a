"""Turn the project and one recipe into a folder that Kaggle accepts as a script kernel.

The kernel has no internet. Kaggle's image lacks torch-geometric: attach a dataset whose name ends
in `-wheels` and holds its wheel (see `kernels.datasets.wheels`), through `dataset_sources`.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from common import settings
from common.atomic import write_text
from common.errors import PipelineError, UsageError
from kernels.build.archive import collect_files, pack, refuse_secrets
from kernels.build.kinds import RUN, Kind
from kernels.build.metadata import (
    METADATA_FILE,
    T4,
    KernelMetadata,
    check_source,
    check_title,
    is_plain,
    slug_of,
)
from kernels.build.script import render_script
from kernels.datasets.wheels import REQUIRED_MODULES

SOURCE_LIMIT_BYTES = 1024 * 1024  # Kaggle's limit of a kernel's source

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelFolder:
    """What a build has written."""

    folder: Path
    script: Path
    metadata: Path
    kernel_id: str
    script_bytes: int


def build(
    recipe_name: str,
    recipe_table: Mapping[str, Any],
    out: Path,
    *,
    kind: Kind = RUN,
    root: Path = settings.ROOT,
    gpu: bool = True,
    dataset_sources: Sequence[str] = (),
    kernel_sources: Sequence[str] = (),
    title: str = "",
    required_modules: Mapping[str, str] = REQUIRED_MODULES,
    say: Callable[[str], None] = lambda line: None,
) -> KernelFolder:
    """Write a kernel that works by `recipe_table` on Kaggle to `out`: a script and its metadata.

    The same tree and arguments give the same bytes.

    Args:
        recipe_name: names the kernel and its recipe, such as "cpu".
        recipe_table: the recipe, overrides applied; None values are not TOML and are refused.
        out: the folder; files of an earlier build are replaced.
        kind: run the whole recipe, train one collection, or rank with trained models.
        root: the project to embed.
        gpu: run on a T4, else without an accelerator.
        dataset_sources, kernel_sources: "owner/slug" of each dataset and kernel to attach.
        title: in place of "Fast or slow <recipe>"; the kind's words follow it either way.
        required_modules: module to distribution, installed from attached wheels where missing.
        say: told which files are embedded although they were changed, and which are left out.

    Raises:
        UsageError: a recipe name that cannot name a kernel, or nothing attached that could hold
            the models to rank with.
        PipelineError: an incomplete project, a credential among the files, a script above
            Kaggle's limit, or `out` cannot be written.
    """
    title = _title_of(recipe_name, kind, title)
    for option, sources in (("--dataset", dataset_sources), ("--kernel", kernel_sources)):
        for source in sources:
            check_source(option, source)
    _check_sources(kind, dataset_sources, kernel_sources, required_modules)
    recipe_file = f"configs/{recipe_name}.toml"
    files = {**collect_files(root, replaced=recipe_file, say=say)}
    files[recipe_file] = _recipe_text(recipe_name, recipe_table)
    script = render_script(kind, pack(files), recipe_file, required_modules)
    script_bytes = len(script.encode())
    _refuse_oversize(recipe_name, script_bytes, files)

    slug = slug_of(title)
    metadata = KernelMetadata(
        id=slug,
        title=title,
        code_file=f"{slug}.py",
        enable_gpu=gpu,
        machine_shape=T4 if gpu else "",
        dataset_sources=list(dataset_sources),
        kernel_sources=list(kernel_sources),
    )
    refuse_secrets({**files, METADATA_FILE: metadata.to_json().encode()})
    earlier = _script_of_earlier_build(out)
    write_text(out / metadata.code_file, script)
    write_text(out / METADATA_FILE, metadata.to_json())
    if earlier and earlier != metadata.code_file:
        (out / earlier).unlink(missing_ok=True)
    written = (out, out / metadata.code_file, out / METADATA_FILE)
    return KernelFolder(*written, metadata.id, script_bytes)


def _script_of_earlier_build(out: Path) -> str:
    """Return the name of the script that `out` holds by its own metadata; "" if none."""
    try:
        table = json.loads((out / METADATA_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    name = table.get("code_file") if isinstance(table, dict) else None
    is_ours = isinstance(name, str) and re.fullmatch(r"[a-z0-9-]+\.py", name) is not None
    return str(name) if is_ours else ""


def _title_of(recipe_name: str, kind: Kind, chosen: str) -> str:
    if chosen and not is_plain(chosen):
        check_title(chosen)
    spoken = _checked_name(recipe_name).replace("_", " ").replace(".", " ")
    ending = f" {kind.words}" if kind.words else ""
    title = (" ".join(chosen.split()) or f"Fast or slow {spoken}") + ending
    check_title(title, ending)
    return title


def _check_sources(
    kind: Kind,
    dataset_sources: Sequence[str],
    kernel_sources: Sequence[str],
    required_modules: Mapping[str, str],
) -> None:
    """Refuse an infer kernel without models; warn where nothing brings what the image lacks."""
    wheels = [source for source in dataset_sources if source.endswith("-wheels")]
    if kind.template == "infer" and not kernel_sources and len(dataset_sources) == len(wheels):
        raise UsageError(
            "--kind infer: nothing attached holds trained models; pass --kernel or --dataset"
        )
    if required_modules and not wheels:
        _logger.warning(
            "no attached dataset is named …-wheels; Kaggle's image lacks %s: attach one with it",
            ", ".join(required_modules.values()),
        )


def _checked_name(recipe_name: str) -> str:
    if re.fullmatch(r"[a-z0-9]+([._-][a-z0-9]+)*", recipe_name) is None:
        raise UsageError(
            f"recipe name '{recipe_name}': expected small letters and digits, joined by - _ or . : "
            "the kernel's file is named after it"
        )
    return recipe_name


def _recipe_text(recipe_name: str, recipe_table: Mapping[str, Any]) -> bytes:
    try:
        return tomli_w.dumps(recipe_table).encode()
    except TypeError as error:
        raise PipelineError(
            f"recipe '{recipe_name}': cannot be written as TOML: {error}; leave such keys out"
        ) from error


def _refuse_oversize(recipe_name: str, script_bytes: int, files: Mapping[str, bytes]) -> None:
    if script_bytes <= SOURCE_LIMIT_BYTES:
        return
    largest = sorted(files, key=lambda name: len(files[name]), reverse=True)[:3]
    named = ", ".join(f"{name} ({len(files[name])} bytes)" for name in largest)
    raise PipelineError(
        f"kernel of recipe '{recipe_name}': the script has {script_bytes} bytes; Kaggle takes "
        f"{SOURCE_LIMIT_BYTES}; its largest files before compression: {named}"
    )
