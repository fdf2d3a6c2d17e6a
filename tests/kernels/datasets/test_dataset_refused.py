"""Dataset folders that Kaggle would refuse, or not take whole, are refused before any request."""

from pathlib import Path

import pytest

from kernels.datasets.folder import DATASET_METADATA_FILE
from tests.fake_kaggle_datasets import FakeKaggleDatasets
from tests.kernels.dataset_folders import SLUG, Push, change_metadata, failure


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"title": "Tiny"}, "the title has 4 characters; expected 6 to 50"),
        ({"title": "A" * 51}, "the title has 51 characters"),
        ({"title": "Größere Modelle"}, "printable ASCII"),
        ({"title": None}, "key 'title' is missing"),
        ({"id": "someone/else-s-name"}, f"expected '{SLUG}'"),
        ({"id": f"a b/{SLUG}"}, "expected owner/slug"),
        ({"subtitle": "short"}, "the subtitle has 5 characters"),
        ({"licenses": []}, "key 'licenses': expected one of CC0-1.0"),
        ({"licenses": [{"name": "WTFPL"}]}, "key 'licenses'"),
        ({"isPrivate": "yes"}, "key 'isPrivate'"),
    ],
)
def test_wrong_metadata_is_refused_before_anything_is_sent(
    fake_kaggle: FakeKaggleDatasets,
    push: Push,
    folder: Path,
    fields: dict[str, object],
    expected: str,
) -> None:
    change_metadata(folder, **fields)
    assert expected in failure(push)
    assert not fake_kaggle.received


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_folder_without_readable_metadata_is_refused(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path, text: str | None
) -> None:
    (folder / DATASET_METADATA_FILE).unlink()
    if text is not None:
        (folder / DATASET_METADATA_FILE).write_text(text)
    assert DATASET_METADATA_FILE in failure(push)
    assert not fake_kaggle.received


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("top.txt", "is not as SHA256SUMS says"),
        ("new.txt", "is not as SHA256SUMS says"),
        ("models/empty", "is empty"),
        (".hidden", "would not be sent"),
        ("models/.git/x", "would not be sent"),
        ("model-metadata.json", "would not be sent"),
    ],
)
def test_files_that_would_not_arrive_are_refused(
    fake_kaggle: FakeKaggleDatasets,
    push: Push,
    folder: Path,
    name: str,
    expected: str,
) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"" if name.endswith("empty") else b"changed")
    assert expected in failure(push)
    assert not fake_kaggle.received


def test_a_link_and_an_empty_folder_are_refused(
    fake_kaggle: FakeKaggleDatasets, push: Push, folder: Path, tmp_path: Path
) -> None:
    (folder / "link").symlink_to(tmp_path)
    assert "a link" in failure(push)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.name != DATASET_METADATA_FILE:
            path.unlink() if path.is_symlink() or path.is_file() else path.rmdir()
    assert "holds no file to send" in failure(push)
