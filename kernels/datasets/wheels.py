"""A dataset folder with the wheels that Kaggle's image lacks, at the project's pinned versions."""

import re
import sys
import tempfile
from pathlib import Path
from subprocess import run

from common import settings
from common.atomic import write_bytes
from common.errors import PipelineError
from common.kaggle.secrets import redact
from kernels.datasets.folder import dataset_metadata, require_free, seal

# Modules that Kaggle's image may lack, and the distribution that brings each: pure Python all.
REQUIRED_MODULES = {"torch_geometric": "torch-geometric", "tomli_w": "tomli-w"}
WHEELS_TITLE = "Fast or slow wheels"  # its slug ends in -wheels, by which kernels find it

_SIGNED_ADDRESS = re.compile(r"://[^/\s@]+@")  # an index may be given with a password in it


def write_wheels(
    out: Path, *, requirements: Path = settings.ROOT / "requirements.txt"
) -> list[Path]:
    """Download wheels into a new dataset folder, with its metadata.

    The same pinned versions give the same bytes.

    Raises:
        UsageError: `out` is in the way.
        PipelineError: a version is not pinned, pip cannot get it, or it is no pure-Python wheel.
    """
    require_free(out)
    wanted = _pinned(requirements)
    with tempfile.TemporaryDirectory(prefix="wheels-") as folder:
        _download(wanted, Path(folder))
        wheels = sorted(Path(folder).glob("*.whl"))
        _require_pure(wheels)
        contents = {wheel.name: wheel.read_bytes() for wheel in wheels}
    for name, content in contents.items():
        write_bytes(out / name, content)
    subtitle = "Pure-Python packages that a kernel without internet installs"
    # Each wheel holds its own licence.
    seal(out, dataset_metadata(WHEELS_TITLE, subtitle=subtitle, licence="other"))
    return [out / name for name in contents]


def _pinned(requirements: Path) -> list[str]:
    text, wanted = requirements.read_text(encoding="utf-8"), []
    for name in REQUIRED_MODULES.values():
        either_spelling = name.replace("-", "[-_.]")
        pin = re.search(rf"^{either_spelling}==([^\s;#]+)", text, re.MULTILINE | re.IGNORECASE)
        if pin is None:
            raise PipelineError(f"{requirements}: {name} is not pinned; expected {name}==VERSION")
        wanted.append(f"{name}=={pin[1]}")
    return wanted


def _download(wanted: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), *wanted]
    ended = run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
        said = _SIGNED_ADDRESS.sub("://***@", redact((errors or ["it said nothing"])[-1]))
        raise PipelineError(f"pip download {' '.join(wanted)}: {said}; check the package index")


def _require_pure(wheels: list[Path]) -> None:
    for wheel in wheels:
        if not wheel.name.endswith("-none-any.whl"):
            raise PipelineError(f"{wheel.name}: expected a pure-Python wheel, …-none-any.whl")
