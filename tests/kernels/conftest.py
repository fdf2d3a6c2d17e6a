"""Fixtures for kernels: a small project, a fake pip, and a server of kernel outputs."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.settings import ROOT
from kernels.packages import PACKAGES
from tests.support.file_server import FileServer, running_file_server

# A fake command line with the same arguments, which writes the same file.
PIPELINE = """
import argparse, json, pathlib
from features.marker import MARKER

parser = argparse.ArgumentParser()
parser.add_argument("command")
for name in ("--recipe", "--data", "--out"):
    parser.add_argument(name, type=pathlib.Path)
parser.add_argument("--max-minutes", type=float)
parser.add_argument("--resume", action="store_true")
given = parser.parse_args()
given.out.mkdir(parents=True)
(given.out / "seen.json").write_text(json.dumps({
    "command": given.command,
    "marker": str(MARKER),
    "recipe": given.recipe.read_text(),
    "data": str(given.data),
    "code": str(pathlib.Path(__file__).parent),
}))
graphs = sorted((given.data / "npz").glob("*.npz"))
(given.out / "DONE").write_text("done")
rows = "".join(f"tile:xla:{graph.stem},0;1;2\\n" for graph in graphs)
(given.out / "submission.csv").write_text("ID,TopConfigs\\n" + rows)
"""


def run_script(
    script: Path, kaggle: Path, home: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a kernel as Kaggle does: a fresh process that finds its working folder empty."""
    shutil.rmtree(kaggle / "working", ignore_errors=True)
    process = started_script(script, kaggle, home, **environment)
    out, error = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def started_script(
    script: Path, kaggle: Path, home: Path, **environment: str
) -> subprocess.Popen[str]:
    """Start a kernel in a new process group."""
    for folder in (kaggle / "working", kaggle / "input", home):
        folder.mkdir(parents=True, exist_ok=True)
    # Users give relative folders at home.
    mounts = Path(os.path.relpath(kaggle, home))
    environment |= {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PIPELINE_KAGGLE_INPUT": str(mounts / "input"),
        "PIPELINE_KAGGLE_WORKING": str(mounts / "working"),
    }
    return subprocess.Popen(
        [sys.executable, str(script)],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of the real shape whose pipeline writes a submission at once."""
    root = tmp_path / "project"
    for package in PACKAGES:
        (root / package).mkdir(parents=True)
        if package != "configs":
            (root / package / "__init__.py").write_text("")
    (root / "pipeline/__main__.py").write_text(PIPELINE)
    (root / "common/settings.py").write_text("")
    (root / "features" / "marker.py").write_text("MARKER = 'embedded'\n")
    shutil.copyfile(ROOT / "kernels/packages.py", root / "kernels/packages.py")
    return root


def write_wheel(folder: Path, module: str, version: str, code: str) -> None:
    """Write a wheel with one module."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", code)
        facts = f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n"
        wheel.writestr(f"{info}/METADATA", facts)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", f"{module}.py,,\n")


class FakePip:
    """A fake `pip download`, which stores the command and writes wheels or fails."""

    def __init__(self, *names: str, error: str = "") -> None:
        self.names, self.error, self.command = names, error, [""]

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        self.command = command
        folder = Path(command[command.index("--dest") + 1])
        for name in self.names:
            (folder / name).write_bytes(name.encode())
        return subprocess.CompletedProcess(command, bool(self.error), b"", self.error.encode())


WHEELS = ("tomli_w-1.2.0-py3-none-any.whl", "torch_geometric-2.8.1-py3-none-any.whl")


@pytest.fixture
def storage() -> Iterator[FileServer]:
    with running_file_server() as server:
        yield server


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
