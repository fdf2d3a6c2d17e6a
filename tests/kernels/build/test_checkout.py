"""What git says of a project decides what is embedded; where git fails, nothing is."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.git import revision
from common.settings import ROOT
from kernels.build.archive import collect_files
from kernels.build.build import build
from kernels.build.checkout import checkout_of
from tests.kernels.conftest import git


def test_of_a_checkout_what_git_tracks_is_embedded_and_the_rest_is_told(
    checkout: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    before = collect_files(checkout, say=said.append)
    assert said == []
    assert {"pipeline/__main__.py", "features/marker.py", "features/tool.sh"} <= set(before)

    (checkout / "features" / "marker.py").write_text("MARKER = 'changed'\n")
    (checkout / "models" / "notes.py").write_text("private = 1\n")
    (checkout / "runs").mkdir()
    (checkout / "runs" / "mine.py").write_text("no part of the code\n")
    after = collect_files(checkout, say=said.append)
    assert after["features/marker.py"] == b"MARKER = 'changed'\n"
    assert set(after) == set(before)
    assert said == [
        "embedded as they are, changed since the last commit: features/marker.py",
        "left out, since git does not track them: models/notes.py",
    ]


Harm = Callable[[Path, pytest.MonkeyPatch], None]


def damage_index(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".git" / "index").write_bytes(b"no index")


def hide_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(checkout / "nothing"))


def own_by_another(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")


def empty_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(checkout / ".git")
    (checkout / ".git").write_text("gitdir: nowhere\n")


def lie_within_another(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(checkout / ".git")
    git(checkout.parent, "init", "--quiet")
    (checkout / ".git").mkdir()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damage_index, "index file"),
        (hide_git, "there is no git to ask"),
        (own_by_another, "dubious ownership"),
        (empty_it, "not a git repository"),
        (lie_within_another, "is no git repository"),
    ],
)
def test_a_checkout_in_which_git_fails_is_refused_with_its_reason(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm, reason: str
) -> None:
    (checkout / "models" / "notes.py").write_text("private = 1\n")
    harm(checkout, monkeypatch)
    with pytest.raises(PipelineError, match=reason) as caught:
        build("cpu", {}, tmp_path / "out", root=checkout)
    assert "\n" not in str(caught.value)
    assert str(checkout) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_project_that_git_does_not_track_is_refused(project: Path) -> None:
    git(project, "init", "--quiet")
    with pytest.raises(PipelineError, match=r"pipeline\.py: git does not track it"):
        collect_files(project)


def test_a_hook_does_not_lead_to_another_checkout_and_gits_configuration_stays(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, before = revision(checkout), checkout_of(checkout, "pipeline/__main__.py")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    git(other, "commit", "--quiet", "--allow-empty", "-m", "another")
    for name, path in (("DIR", ".git"), ("WORK_TREE", ""), ("INDEX_FILE", ".git/index")):
        monkeypatch.setenv(f"GIT_{name}", str(other / path))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other / ".git" / "objects"))
    assert revision(checkout) == here
    assert checkout_of(checkout, "pipeline/__main__.py") == before
    (checkout / "models" / "notes.py").write_text("private = 1\n")
    (tmp_path / "ignored").write_text("notes.py\n")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.excludesFile")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(tmp_path / "ignored"))
    assert checkout_of(checkout, "pipeline/__main__.py") == before


def test_a_project_within_somebody_elses_checkout_is_none(project: Path) -> None:
    git(project.parent, "init", "--quiet")
    assert checkout_of(project, "pipeline/__main__.py") is None


def test_names_that_are_not_utf_8_are_shown_escaped(checkout: Path) -> None:
    for name in (b"bad\xff.py", b"two\nlines\x1b[31m.py"):
        Path(os.fsdecode(os.fsencode(checkout / "models") + b"/" + name)).write_text("x")
    said: list[str] = []
    collect_files(checkout, say=said.append)
    (line,) = said
    assert line.startswith("left out, since git does not track them: models/")
    assert r"models/bad\xff.py" in line
    assert r"models/two\nlines\x1b[31m.py" in line
    assert line.isprintable()
    git(checkout, "add", ".")
    with pytest.raises(PipelineError, match=r"models/bad\\xff\.py is not UTF-8"):
        collect_files(checkout)


def test_each_file_is_told_of_once_and_deleted_ones_are_not_embedded(checkout: Path) -> None:
    (checkout / "features" / "tool.sh").unlink()
    (checkout / "features" / "marker.py").unlink()
    (checkout / "features" / "marker.py").symlink_to(checkout / "common/settings.py")
    (checkout / "configs" / "mine.toml").write_text("seed = 1\n")
    said: list[str] = []
    files = collect_files(checkout, replaced="configs/mine.toml", say=said.append)
    assert said == [
        "left out, since they are links: features/marker.py",
        "left out, since they are deleted: features/tool.sh",
    ]
    assert {"features/tool.sh", "features/marker.py"}.isdisjoint(files)


def test_an_embedded_recipe_is_not_called_left_out(checkout: Path, tmp_path: Path) -> None:
    (checkout / "configs" / "mine.toml").write_text("seed = 1\n")
    said: list[str] = []
    build("mine", {"seed": 1}, tmp_path / "out", root=checkout, say=said.append)
    assert said == []


def test_an_unknown_revision_is_told(project: Path) -> None:
    said: list[str] = []
    assert "REVISION" not in collect_files(project, say=said.append)
    assert said == ["the code's revision is not known: reports of the kernel will name none"]


def test_in_a_checkout_git_decides_and_not_a_file(checkout: Path) -> None:
    before = revision(checkout)
    (checkout / "REVISION").write_text("somebody-else's\n")
    assert revision(checkout) == before
    assert collect_files(checkout)["REVISION"].decode() == f"{before}\n"
    shutil.rmtree(checkout / ".git")
    assert revision(checkout) == "somebody-else's"


def test_outside_git_every_kind_of_file_that_the_code_reads_is_embedded(tmp_path: Path) -> None:
    tracked = collect_files(ROOT)
    for name, content in tracked.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert "data/official/sizes.csv" in tracked
    assert set(collect_files(tmp_path)) == set(tracked)
