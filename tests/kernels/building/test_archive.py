"""What of a project is embedded, and that the bytes depend on nothing else."""

import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from common.errors import PipelineError, UsageError
from common.reproducibility import revision
from common.settings import ROOT
from kernels.build import collect_files, own_packages, pack


def test_data_caches_links_and_hidden_files_are_left_out(project: Path, tmp_path: Path) -> None:
    left_out = [
        "data/sample/npz/a.npz",
        "data/raw/settings.py",
        "features/__pycache__/marker.pyc",
        "features/.hidden/x.py",
        "features/dump.bin",
        "configs/kaggle.json",
        "tests/test_x.py",
        "benchmarks/speed.py",
        "runs/1/report.json",
    ]
    kept = ["configs/cpu.toml", "configs/tune/tile.toml", "submissions/report.html", "data/raw.py"]
    for name in (*left_out, *kept):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    (project / "models" / "link.py").symlink_to(project / "configs/cpu.toml")
    (project / "models" / "folder").symlink_to(project / "configs")
    names = set(collect_files(project))
    assert names.isdisjoint([*left_out, "models/link.py", "models/folder/cpu.toml"])
    assert names >= {*kept, "pipeline/__main__.py", "common/settings.py", "features/marker.py"}
    with pytest.raises(PipelineError, match=r"pipeline/__main__\.py: no such file"):
        collect_files(tmp_path)


def git(project: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", project, *who, *arguments], check=True, capture_output=True)


def test_the_revision_is_embedded_and_found_where_it_was_unpacked(
    project: Path, tmp_path: Path
) -> None:
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "first")
    committed = revision(project)
    assert committed
    (project / "REVISION").write_text("somebody-else's\n")  # in a checkout it says nothing
    (project / "common/settings.py").write_text("changed = 1\n")
    files = collect_files(project)
    assert files["REVISION"].decode() == f"{committed}+changed\n"
    with zipfile.ZipFile(io.BytesIO(pack(files))) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert revision(tmp_path / "unpacked") == f"{committed}+changed"
    assert collect_files(tmp_path / "unpacked")["REVISION"] == files["REVISION"]


@pytest.mark.parametrize("is_on_path", [True, False])
def test_packages_of_ones_own_models_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on_path: bool
) -> None:
    package = tmp_path / "planted_models"
    (package / "deep" / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "deep/gat.py", "deep/__pycache__/gat.pyc", "weights.bin", ".x.py"):
        (package / name).write_text(name)
    (package / "link.py").symlink_to(ROOT / "common" / "errors.py")
    (tmp_path / "planted_single.py").write_text("single")
    if is_on_path:
        monkeypatch.syspath_prepend(tmp_path)
    beside = Path("elsewhere") if is_on_path else tmp_path
    places = ["planted_models.deep.gat:Gat", "planted_single:One", "models.layout.network:Mine"]
    assert own_packages(places, beside) == {
        "planted_models/__init__.py": b"__init__.py",
        "planted_models/deep/gat.py": b"deep/gat.py",
        "planted_single.py": b"single",
    }
    with pytest.raises(UsageError, match="model package 'planted_nothing': found neither on"):
        own_packages(["planted_nothing.gat:Gat"], tmp_path)


def test_order_and_dates_of_the_files_do_not_change_the_bytes(project: Path) -> None:
    files = collect_files(project)
    first = pack(files)
    for name in files:
        os.utime(project / name, (1, 1))
    assert pack(dict(reversed(collect_files(project).items()))) == first
    assert pack({**files, "common/settings.py": b"changed"}) != first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.namelist() == sorted(files)
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {name: archive.read(name) for name in files} == files
