"""A store that cannot be written is one line, and nothing half written is left in it."""

import errno
import io
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.errors import PipelineError
from data.graph_store import files as store_module
from data.graph_store import prepare as preparing
from data.graph_store.files import stored_file
from data.graph_store.prepare import prepare, write_columns
from data.packing import config_encoder as spool_module
from data.tree import collection_named, find_graphs
from tests.data.packing.stores import contents


@contextmanager
def full_after(n_bytes: int) -> Iterator[None]:
    """Let the disk be full once so many bytes have been written to temporary files."""
    left = n_bytes
    real_open = Path.open

    class Full(io.FileIO):
        def write(self, content: Any, /) -> int:
            nonlocal left
            left -= len(content)
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content)

    def open_file(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode == "wb" and self.suffix == ".tmp":
            return io.BufferedWriter(Full(self, "w"))
        return real_open(self, mode, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", open_file)
        yield


@contextmanager
def file_limit(n_bytes: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("n_bytes", [0, 1, 1000, 9_000, 100_000, 400_000])
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(
    n_bytes: int, tiny_tree: Path, tmp_path: Path
) -> None:
    files = find_graphs(tiny_tree)
    prepare(files, tmp_path / "want")
    want = contents(tmp_path / "want")
    store = tmp_path / "store"
    with full_after(n_bytes), pytest.raises(PipelineError) as error:
        prepare(files, store)
    packed = contents(store)
    first = stored_file(store, files[len(packed)]).path
    assert str(error.value) == f"{first}: cannot be written: No space left on device"
    assert packed.items() <= want.items()
    assert sum(map(len, packed.values())) <= n_bytes
    assert [entry.is_new for entry in prepare(files, store)].count(False) == len(packed)
    assert contents(store) == want


def test_a_full_disk_in_a_process_of_its_own_is_one_line(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SMALL_TREE_BYTES", 0)
    files = find_graphs(tiny_tree, collections=(collection_named("layout:nlp:random"),))
    with file_limit(20_000), pytest.raises(PipelineError) as error:  # processes inherit it
        prepare(files, tmp_path / "store", workers=2)
    assert str(error.value).endswith(".safetensors: cannot be written: File too large")
    assert contents(tmp_path / "store") == {}


def test_a_full_disk_while_configs_are_spooled_is_one_line(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = find_graphs(tiny_tree, collections=(collection_named("layout:xla:random"),))[0]
    monkeypatch.setattr(spool_module, "IN_MEMORY_BYTES", 1)
    monkeypatch.delattr(store_module, "write_tensors")  # it is not come to that
    with file_limit(10), pytest.raises(PipelineError) as error:
        prepare([file], tmp_path / "store")
    path = stored_file(tmp_path / "store", file).path
    assert str(error.value) == f"{path}: cannot be written: File too large"
    assert contents(tmp_path / "store") == {}


def test_a_full_disk_leaves_the_older_columns(tiny_tree: Path, tmp_path: Path) -> None:
    prepared = prepare(find_graphs(tiny_tree), tmp_path)
    path = write_columns(tmp_path, prepared)
    before = contents(tmp_path)
    with full_after(10), pytest.raises(PipelineError) as error:
        write_columns(tmp_path, prepared[:3])
    assert str(error.value) == f"{path}: cannot be written: No space left on device"
    assert contents(tmp_path) == before


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


def test_a_folder_in_the_place_of_a_graph_is_one_line(tiny_tree: Path, tmp_path: Path) -> None:
    files = find_graphs(tiny_tree)
    path = stored_file(tmp_path, files[2]).path
    (path / "below").mkdir(parents=True)
    with pytest.raises(PipelineError) as error:
        prepare(files, tmp_path)
    assert str(error.value) == f"{path}: cannot be written: Is a directory"
    assert len(contents(tmp_path)) == 2


def test_a_store_that_may_not_be_written_is_one_line(tiny_tree: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o500)
    files = find_graphs(tiny_tree)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(65_534)  # root may write everywhere; nobody may not
        with pytest.raises(PipelineError) as error:
            prepare(files, store)
    finally:
        if is_root:
            os.seteuid(0)
    assert str(error.value) == f"{store}: cannot be written: Permission denied"
    assert not list(store.iterdir())
