"""The wheel's hooks, with stubs in place of hatchling, which only a build installs."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from common.settings import ROOT


class Interface:
    def __class_getitem__(cls, _: object) -> type:
        return cls


@pytest.fixture
def packaging(monkeypatch: pytest.MonkeyPatch) -> Any:
    for place, name in (
        ("hatchling.builders.hooks.plugin.interface", "BuildHookInterface"),
        ("hatchling.metadata.plugin.interface", "MetadataHookInterface"),
    ):
        parts = place.split(".")
        for n in range(1, 1 + len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(place))
        monkeypatch.setattr(sys.modules[place], name, Interface, raising=False)
    monkeypatch.delitem(sys.modules, "pipeline.installed.packaging", raising=False)
    return import_module("pipeline.installed.packaging")


def files_of(packaging: Any, root: Path, target: str) -> dict[str, str]:
    """Return the texts of the files that the hook adds, by their place in the archive."""
    hook, build_data = packaging.Revision(), {"force_include": dict[str, str]()}
    hook.root, hook.target_name = str(root), target
    hook.initialize("standard", build_data)
    return {place: Path(file).read_text() for file, place in build_data["force_include"].items()}


def test_wheel_of_a_source_distribution_has_its_revision(packaging: Any, tmp_path: Path) -> None:
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *names, *command], check=True)
    source = files_of(packaging, tmp_path, "sdist")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    (unpacked / "REVISION").write_text(source["REVISION"])
    assert len(source["REVISION"].strip()) == 12
    wheel = files_of(packaging, unpacked, "wheel")
    assert wheel == files_of(packaging, tmp_path, "wheel")
    assert wheel == {"fast_or_slow/REVISION": source["REVISION"]}


def test_extra_jax_has_what_jax_export_imports(packaging: Any) -> None:
    names = packaging.requirements(ROOT / "requirements-collect.txt")
    assert any(name.startswith("flatbuffers==") for name in names)
