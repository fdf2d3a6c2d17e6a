"""Hooks of the wheel: its requirements, and the revision that it is built from."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

# The files of requirements by extra.
EXTRAS = {"jax": "collect", "ray": "ray", "trackers": "trackers"}


def requirements(path: Path) -> list[str]:
    """Return the lines of a requirements file without comments."""
    lines = (re.sub(r"\s*#.*", "", line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


class Requirements(MetadataHookInterface):
    """Requirements of the wheel and of its extras, from the files that `make setup` installs."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        metadata["dependencies"] = requirements(root / "requirements.txt")
        metadata["optional-dependencies"] = {
            extra: requirements(root / f"requirements-{name}.txt") for extra, name in EXTRAS.items()
        }


class Revision(BuildHookInterface[Any]):
    """The file REVISION, which `common.reproducibility.revision` reads without a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        inside = "fast_or_slow/REVISION" if self.target_name == "wheel" else "REVISION"
        if version == "editable":
            return
        if not (root / ".git").exists():
            # `uv build` makes the wheel from the source distribution, which has the file.
            if (root / "REVISION").is_file():
                build_data["force_include"][str(root / "REVISION")] = inside
            return
        command = [
            "git",
            "-C",
            str(root),
            "describe",
            "--always",
            "--abbrev=12",
            "--dirty=+changed",
        ]
        process = subprocess.run(command, capture_output=True, check=True, text=True)  # noqa: S603
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "REVISION"
        file.write_text(process.stdout, encoding="utf-8")
        build_data["force_include"][str(file)] = inside
