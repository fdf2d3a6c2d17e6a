"""What is attached to a kernel, and its title, are checked before anything is written."""

from pathlib import Path

import pytest

from data.errors import UsageError
from kernels.build import build
from kernels.kinds import train_kind
from tests.command_line import call
from tests.kernels.test_build import RECIPE


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
