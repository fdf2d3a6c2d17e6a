"""A small project to build kernels from."""

import subprocess
from pathlib import Path

import pytest

from kernels.building.archive import PACKAGES

# Stands in for the real command line: takes the same arguments, writes the same file.
PIPELINE = """
import argparse, json, pathlib
from {module} import {name} as MARKER

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


def stand_in_pipeline(module: str, name: str) -> str:
    """Return a pipeline/__main__.py that imports one name of the project and reports it."""
    return PIPELINE.replace("{module}", module).replace("{name}", name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of the real shape whose pipeline writes a submission at once."""
    root = tmp_path / "project"
    for package in PACKAGES:
        (root / package).mkdir(parents=True)
        if package != "configs":
            (root / package / "__init__.py").write_text("")
    (root / "pipeline/cli").mkdir()
    (root / "pipeline/cli/__init__.py").write_text("")
    (root / "pipeline/__main__.py").write_text(stand_in_pipeline("features.marker", "MARKER"))
    (root / "common/settings.py").write_text("")
    (root / "pipeline/cli/console.py").write_text("")
    (root / "features" / "marker.py").write_text("MARKER = 'embedded'\n")
    return root


def git(project: Path, *arguments: str) -> None:
    """Run git in a project, as somebody."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", project, *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(project: Path) -> Path:
    """The project as a git checkout, all of it committed."""
    git(project, "init", "--quiet")
    (project / "features" / "tool.sh").write_text("true\n")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "first")
    return project
