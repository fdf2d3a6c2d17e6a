"""A store that cannot be written is one line, and nothing half written is left in it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.errors import PipelineError
from data.graph_store.prepare import prepare
from data.graph_store.stored_graph import stored_file
from data.tree import collection_named, find_graphs
from pipeline.jobs import files as blocks
from pipeline.jobs.files import packing
from pipeline.jobs.workers import Workers
from tests.data.packing.stores import contents


@contextmanager
def file_limit(n_bytes: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(
    tiny_tree: Path, tmp_path: Path
) -> None:
    files = find_graphs(tiny_tree)
    prepare(files, tmp_path / "want")
    want = contents(tmp_path / "want")
    largest = max(map(len, want.values()))
    store = tmp_path / "store"
    with file_limit(largest - 1), pytest.raises(PipelineError) as error:
        prepare(files, store)
    packed = contents(store)
    first = stored_file(store, files[len(packed)]).path
    assert str(error.value) == f"{first}: cannot be written: File too large"
    assert packed.items() <= want.items()
    assert [entry.is_new for entry in prepare(files, store)].count(False) == len(packed)
    assert contents(store) == want


def test_a_full_disk_in_a_process_of_its_own_is_one_line(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 0)
    files = find_graphs(tiny_tree, collections=(collection_named("layout:nlp:random"),))
    with file_limit(20_000), pytest.raises(PipelineError) as error:  # processes inherit it
        prepare(files, tmp_path / "store", pack=packing(Workers(2)))
    assert str(error.value).endswith(".safetensors: cannot be written: File too large")
    assert contents(tmp_path / "store") == {}


@pytest.mark.parametrize("place", ["", ".lock", "layout", "tile/xla/train"])
def test_something_else_in_the_place_of_a_folder_is_one_line(
    place: str, tiny_tree: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    way = store / place
    way.parent.mkdir(parents=True, exist_ok=True)
    way.mkdir() if place == ".lock" else way.write_text("in the way")
    with pytest.raises(PipelineError) as error:
        prepare(find_graphs(tiny_tree), store)
    line = str(error.value)
    assert line.startswith(str(store)) and ": cannot be written: " in line and line.isprintable()
