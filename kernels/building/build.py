"""Turn the project and one recipe into a folder that Kaggle accepts as a kernel.

The kernel has no internet. Kaggle's image lacks torch-geometric: attach a dataset whose name ends
in `-wheels` and holds its wheel (see `kernels.datasets.folder`), through `dataset_sources`.
"""

import base64
import json
import lzma
import pprint
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from common import settings
from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.kaggle.errors import refuse_secrets
from common.progress import log
from kernels.building.archive import collect_files, own_packages, pack
from kernels.building.kinds import KINDS, Kind
from kernels.building.metadata import METADATA_FILE, as_json, kernel_metadata, slug_of

# Modules that Kaggle's image may lack, and the distribution that brings each: pure Python all.
REQUIRED_MODULES = {"torch_geometric": "torch-geometric", "tomli_w": "tomli-w"}
SOURCE_LIMIT_BYTES = 1024 * 1024  # Kaggle's limit of a kernel's source
_SCRIPT = Path(__file__).with_name("script.py")
_SETTINGS = "SETTINGS = {}  # type: ignore[var-annotated]"
_ARCHIVE = 'ARCHIVE = ""'
_INPUT_ROOT = Path("/kaggle/input")
_SHORTEST_TITLE, _LONGEST_TITLE = 5, 50  # characters, Kaggle's limits
_BETWEEN, _QUOTES = "# %%\n", '"\n'
_SHOW = """\
from IPython.display import Image, display

out = WORKING / SETTINGS["out"]
if (out / "report.json").exists():
    report = json.loads((out / "report.json").read_text())
    for name, part in report["collections"].items():
        print(f"{name:<20} {part['metric']:<12} {part['value']}  95 %: {part['ci95']}")
        for member, value in report["models"][name]["member_values"].items():
            print(f"  {member:<40} {value}")
    display(Image(out / "report.png"))
for path in sorted(WORKING.rglob("*.csv")):
    print(path, *(line[:80] for line in path.read_text().splitlines()[:3]), sep="\\n")
"""


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
    notebook: bool = False,
) -> Path:
    """Write a kernel that works by `recipe_table` on Kaggle to `out`; return its source's path.

    Args:
        recipe_table: the recipe, overrides applied, without None values.
        title: in place of "Fast or slow <recipe>"; the kind's words follow it either way.
        beside: where packages of the recipe's own models ("my_pkg.gat:Gat") lie that are not on
            Python's path; they are embedded as well.
        notebook: write a notebook, which shows what came out, in place of a script.

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
    script = _as_notebook(title, script) if notebook else script
    script_bytes = len(script.encode())
    if script_bytes > SOURCE_LIMIT_BYTES:
        largest = sorted(files, key=lambda name: len(files[name]), reverse=True)[:3]
        named = ", ".join(f"{name} ({len(files[name])} bytes)" for name in largest)
        raise PipelineError(
            f"kernel of recipe '{recipe_name}': the script has {script_bytes} bytes; Kaggle takes "
            f"{SOURCE_LIMIT_BYTES}; its largest files before compression: {named}"
        )
    metadata = kernel_metadata(
        title,
        notebook=notebook,
        gpu=gpu,
        dataset_sources=dataset_sources,
        kernel_sources=kernel_sources,
    )
    refuse_secrets([*files.items(), (METADATA_FILE, as_json(metadata).encode())])
    if any(out.glob("[!.]*")) and not (out / METADATA_FILE).exists():
        raise UsageError(f"{out}: is in the way and no kernel's folder; choose another --out")
    source: Path = out / metadata["code_file"]
    write_text(out / METADATA_FILE, as_json(metadata))
    write_text(source, script)
    return source


def _rendered(kind: Kind, files: Mapping[str, bytes], recipe_file: str) -> str:
    values = {
        **asdict(kind),
        "recipe": recipe_file,
        "mounts": [mount.relative_to(_INPUT_ROOT).as_posix() for mount in settings.KAGGLE_MOUNTS],
        "required": REQUIRED_MODULES,
    }
    filled = pprint.pformat(values, sort_dicts=False, width=100)
    archive = base64.encodebytes(lzma.compress(pack(files))).decode()
    script = _SCRIPT.read_text(encoding="utf-8")
    script = script.replace(_SETTINGS, f"SETTINGS = {filled}", 1)
    return script.replace(_ARCHIVE, f'ARCHIVE = """\n{archive}"""', 1)


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
            if source.startswith("OWNER/"):  # as the README has it
                raise UsageError(f"{option} {source}: write the Kaggle user's name for OWNER")
            if not re.fullmatch(r"[\w-]+/[\w-]+", source):
                raise UsageError(f"{option} {source!r}: expected owner/slug, as in its address")
    wheels = [source for source in dataset_sources if source.endswith("-wheels")]
    if kind.kind == "infer" and not kernel_sources and len(dataset_sources) == len(wheels):
        raise UsageError(
            "--kind infer: nothing attached holds trained models; pass --kernel or --dataset"
        )
    if not wheels:
        lacking = ", ".join(REQUIRED_MODULES.values())
        log.info(f"Kaggle's image lacks {lacking}: attach a dataset named …-wheels with it")


def _as_notebook(title: str, script: str) -> str:
    """Return a kernel's script as the text of an .ipynb file, whose last cell shows what came out.

    Its source is one text per cell, as Kaggle's server takes it, and it has no cell ids: the same
    script gives the same bytes.
    """
    says, *parts = script.split(_BETWEEN)
    *folded, main = (_code(part) for part in parts)
    for cell in folded:  # on Kaggle's page
        cell["metadata"] = {"_kg_hide-input": True}
    about = {
        "cell_type": "markdown",
        "metadata": {},
        "source": f"# {title}\n\n{says.strip(_QUOTES)}",
    }
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    cells = [about, *folded, main, _code(_SHOW)]
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _code(source: str) -> dict[str, Any]:
    ran = {"execution_count": None, "outputs": list[str]()}
    return {"cell_type": "code", "metadata": {}, **ran, "source": source.strip()}
