"""What is attached to a kernel, and its title, are checked before anything is written."""

from pathlib import Path

import pytest

from common.errors import PipelineError, UsageError
from kernels.build.build import build
from kernels.build.kinds import train_kind
from kernels.datasets.folder import DatasetMetadata
from tests.command_line import call
from tests.fake_kaggle import KEY
from tests.kernels.build.test_build import RECIPE


@pytest.mark.parametrize("option", ["--dataset", "--kernel"])
@pytest.mark.parametrize(
    "source",
    [
        "OWNER/some-wheels",
        "some-wheels",
        "https://www.kaggle.com/a/b",
        "a b/c",
        "a/",
        "a/B c",
        "a/b/c",
        "",
    ],
)
def test_a_source_that_kaggle_cannot_know_is_wrong_usage(
    tmp_path: Path, option: str, source: str
) -> None:
    text = call("kernel", "build", "--out", tmp_path / "out", option, source, expect=2)
    assert text.startswith(f"error: {option}")
    assert len(text.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_title_can_be_chosen_and_a_long_one_is_told_what_is_left(
    project: Path, tmp_path: Path
) -> None:
    kind = train_kind("layout:nlp:default")
    with pytest.raises(UsageError) as caught:
        build("x" * 30, RECIPE, tmp_path / "out", kind=kind, root=project)
    assert "pass --title with a text of at most 25 characters" in str(caught.value)
    assert "' train layout-nlp-default' is put behind it" in str(caught.value)
    built = build("x" * 30, RECIPE, tmp_path / "out", kind=kind, root=project, title="y" * 24)
    assert built.kernel_id == f"{'y' * 24}-train-layout-nlp-default"
    build("cpu", RECIPE, tmp_path / "longest", kind=kind, root=project, title="y" * 25)
    with pytest.raises(UsageError):
        build("cpu", RECIPE, tmp_path / "none", kind=kind, root=project, title="y" * 26)


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("Größe und mehr", "Größe und mehr"),
        ("two\nlines", r"two\nlines"),
        ("\x1b[31m red title", r"\x1b[31m red title"),
        ("\udcff bad title", r"\xff bad title"),
        ("a - - - b", "name of 5 or more"),
        ("!!!!!!", "name of 5 or more"),
    ],
)
@pytest.mark.parametrize("kernel", [True, False])
def test_a_title_of_which_kaggle_makes_no_such_name_is_wrong_usage(
    project: Path, tmp_path: Path, title: str, shown: str, *, kernel: bool
) -> None:
    with pytest.raises(UsageError) as caught:
        if kernel:
            build("cpu", RECIPE, tmp_path / "out", root=project, title=title)
        else:
            DatasetMetadata.of(title, subtitle="", licence="other")
    line = str(caught.value)
    assert shown in line or (not kernel and "expected" in line)
    assert line.isprintable()
    assert not (tmp_path / "out").exists()


def test_another_title_replaces_the_script(project: Path, tmp_path: Path) -> None:
    build("cpu", RECIPE, tmp_path / "out", root=project, title="First title")
    (tmp_path / "out" / "notes.py").write_text("mine")
    build("cpu", RECIPE, tmp_path / "out", root=project, title="Second title")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"kernel-metadata.json", "notes.py", "second-title.py"}


def test_a_credential_in_the_metadata_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGGLE_KEY", KEY)
    with pytest.raises(PipelineError, match=r"kernel-metadata\.json: holds a Kaggle credential"):
        build("cpu", RECIPE, tmp_path / "out", root=project, title=KEY)
    assert not (tmp_path / "out").exists()
