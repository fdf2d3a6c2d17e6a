"""What of a project is embedded, and that the archive's bytes depend on nothing else."""

import io
import os
import zipfile
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.git import revision
from kernels.build.archive import collect_files, pack, refuse_secrets
from tests.fake_kaggle import KEY
from tests.kernels.conftest import git


def test_data_caches_and_hidden_files_are_left_out(project: Path) -> None:
    left_out = [
        "data/sample/npz/a.npz",
        "data/raw/settings.py",
        "data/store/b.bin",
        "features/__pycache__/marker.pyc",
        "features/old.pyc",
        "features/.hidden/x.py",
        "configs/kaggle.json",
        "tests/test_x.py",
        "benchmarks/speed.py",
        "runs/1/report.json",
        ".venv/lib/x.py",
        "README.md",
    ]
    kept = ["configs/cpu.toml", "configs/tune/tile.toml", "submissions/report.html", "data/raw.py"]
    for name in (*left_out, *kept):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")

    names = set(collect_files(project))

    assert names.isdisjoint(left_out)
    assert names >= {
        *kept,
        "pipeline/__main__.py",
        "common/settings.py",
        "features/marker.py",
        "data/__init__.py",
    }


@pytest.mark.parametrize("is_tracked", [True, False])
def test_links_are_not_followed(project: Path, tmp_path: Path, is_tracked: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "private.py").write_text("private = 1\n")
    (project / "models" / "link.py").symlink_to(outside / "private.py")
    (project / "models" / "folder").symlink_to(outside)
    if is_tracked:
        git(project, "init", "--quiet")
        git(project, "add", ".")
    said: list[str] = []
    files = collect_files(project, say=said.append)
    assert b"private = 1\n" not in files.values()
    assert "models/link.py" in "".join(said)
    (project / "common/settings.py").unlink()
    (project / "common/settings.py").symlink_to(outside / "private.py")
    with pytest.raises(PipelineError, match=r"settings\.py: is a link"):
        collect_files(project)


def test_outside_git_only_known_kinds_of_files_are_embedded(project: Path) -> None:
    for name in ("features/dump.bin", "features/key.pem", "features/kept.toml"):
        (project / name).write_text("x")
    names = set(collect_files(project))
    assert "features/kept.toml" in names
    assert names.isdisjoint({"features/dump.bin", "features/key.pem", "REVISION"})


def test_the_revision_is_embedded_and_found_where_it_was_unpacked(
    checkout: Path, tmp_path: Path
) -> None:
    committed = revision(checkout)
    assert committed
    (checkout / "common/settings.py").write_text("changed = 1\n")
    files = collect_files(checkout)
    assert files["REVISION"].decode() == f"{committed}+changed\n"
    unpacked = tmp_path / "unpacked"
    for name, content in files.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(content)
    assert revision(unpacked) == f"{committed}+changed"
    assert collect_files(unpacked)["REVISION"] == files["REVISION"]


def test_a_project_without_a_pipeline_is_refused(project: Path) -> None:
    (project / "pipeline/__main__.py").unlink()
    with pytest.raises(PipelineError, match=r"pipeline\.py: cannot be read"):
        collect_files(project)


def test_order_and_dates_of_the_files_do_not_change_the_bytes(project: Path) -> None:
    files = collect_files(project)
    first = pack(files)
    for name in files:
        os.utime(project / name, (1, 1))
    backwards = dict(reversed(collect_files(project).items()))

    assert pack(backwards) == first
    assert pack({**files, "common/settings.py": b"changed"}) != first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.namelist() == sorted(files)
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {name: archive.read(name) for name in files} == files


def test_a_credential_among_the_files_is_refused_without_showing_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "configs/cpu.toml": f"storage = 'x://{KEY}@host'".encode(),
        "common/settings.py": b"pass",
    }
    refuse_secrets(files)  # not known as a credential yet
    monkeypatch.setenv("KAGGLE_KEY", KEY)
    with pytest.raises(PipelineError, match=r"configs/cpu\.toml: holds a Kaggle cred") as caught:
        refuse_secrets(files)
    assert KEY not in str(caught.value)
