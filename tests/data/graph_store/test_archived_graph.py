"""A shipped file gives back the stored one bit for bit, or one line that names it and no file."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from common.errors import PipelineError
from data.graph_store import archived_graph as shipped_graph
from data.graph_store.archived_graph import (
    BLOCK,
    BLOCK_FRAME,
    HEAD,
    NO_CHECKSUM,
    Head,
    read_head,
    ship,
    unpack,
)
from data.graph_store.compression import pack_block
from data.graph_store.files import store_graph, stored_file
from data.graph_store.tensor_file import LENGTH, open_tensors
from data.tree import GraphFile, collection_named, find_graphs


@pytest.fixture(scope="module")
def stored(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> GraphFile:
    """The smallest kernel of the tiny tree, in a store; read it, never write to it."""
    files = find_graphs(tiny_tree, collections=(collection_named("tile:xla"),))
    source = min(files, key=lambda file: file.path.stat().st_size)
    file = stored_file(tmp_path_factory.mktemp("one") / "store", source)
    store_graph(source, file)
    return file


@pytest.fixture(scope="module")
def content(stored: GraphFile, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Its shipped form."""
    path = tmp_path_factory.mktemp("shipped") / "graph.zst"
    ship(stored.path, path)
    return path.read_bytes()


def unpacked(content: bytes, stored: GraphFile, folder: Path) -> bytes:
    """Unpack a shipped file's bytes."""
    path = folder / "graph.zst"
    path.write_bytes(content)
    target = replace(stored, path=folder / "store" / "graph.safetensors")
    unpack(path, target)
    return target.path.read_bytes()


def check_refused(content: bytes, stored: GraphFile, folder: Path, match: str = ".") -> None:
    """Check for one line that names the file, and that nothing is left in the store."""
    with pytest.raises(PipelineError, match=match) as caught:
        unpacked(content, stored, folder)
    line = str(caught.value)
    assert line.startswith(f"{folder / 'graph.zst'}: ")
    assert "\n" not in line
    assert list((folder / "store").glob("*")) == [], "nothing half-written may stay"


def signed(head: Head, blocks: bytes) -> bytes:
    """Return a file with a right checksum, whatever else is wrong with it."""
    head = replace(head, file_bytes=HEAD.size + len(blocks), checksum=NO_CHECKSUM)
    checksum = hashlib.blake2b(blocks, digest_size=16)
    checksum.update(head.packed())
    return replace(head, checksum=checksum.digest()).packed() + blocks


def block(content: bytes, n_bytes: int | None = None, width: int = 1) -> bytes:
    """Return a block of bytes, or one that claims other sizes."""
    _, packed = pack_block(content, 1)
    n_bytes = len(content) if n_bytes is None else n_bytes
    return BLOCK.pack(*BLOCK_FRAME, n_bytes, width, len(packed)) + packed


def parsed(content: bytes, folder: Path) -> tuple[Head, bytes]:
    """Split a shipped file into head and blocks."""
    path = folder / "head.zst"
    path.write_bytes(content)
    return read_head(path), content[HEAD.size :]


def test_it_comes_back_bit_for_bit(stored: GraphFile, content: bytes, tmp_path: Path) -> None:
    assert unpacked(content, stored, tmp_path) == stored.path.read_bytes()


def test_equal_files_give_equal_bytes(stored: GraphFile, content: bytes, tmp_path: Path) -> None:
    ship(stored.path, tmp_path / "again.zst")
    assert (tmp_path / "again.zst").read_bytes() == content


def test_any_zstandard_program_can_check_it(content: bytes, stored: GraphFile) -> None:
    reader = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)
    assert len(reader.read()) == stored.path.stat().st_size


def test_a_flipped_bit_is_noticed(stored: GraphFile, content: bytes, tmp_path: Path) -> None:
    in_heads = range(8 * (HEAD.size + BLOCK.size))
    for bit in (*in_heads, *range(in_heads.stop, 8 * len(content), 31)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        check_refused(bytes(damaged), stored, tmp_path)


def test_a_file_cut_anywhere_is_refused(stored: GraphFile, content: bytes, tmp_path: Path) -> None:
    for length in (*range(0, HEAD.size + BLOCK.size + 2), *range(200, len(content), 37)):
        check_refused(content[:length], stored, tmp_path, "damaged: ")


def test_more_bytes_than_there_should_be_are_refused(
    stored: GraphFile, content: bytes, tmp_path: Path
) -> None:
    check_refused(content + b"\0", stored, tmp_path, "its head says")
    head, blocks = parsed(content, tmp_path)
    check_refused(signed(head, blocks + block(b"more")), stored, tmp_path, "checksum")


def test_a_claim_beyond_the_disk_is_refused_at_once(
    stored: GraphFile, content: bytes, tmp_path: Path
) -> None:
    head, blocks = parsed(content, tmp_path)
    huge = signed(replace(head, n_bytes=1 << 62), blocks)
    check_refused(huge, stored, tmp_path, f"would unpack to {1 << 62} bytes; .* free")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda n: block(bytes(n + 1)), "too large"),
        (lambda n: block(bytes(n), n_bytes=0), "too large"),
        (lambda n: block(bytes(256 << 20), n_bytes=n), "would unpack to 268435456"),
        (lambda n: block(bytes(n), width=0), "impossible sizes"),
        (lambda n: block(bytes(n), width=n + 1), "impossible sizes"),
        (lambda n: BLOCK.pack(*BLOCK_FRAME, n, 1, 1 << 30), "impossible sizes"),
        (lambda n: block(bytes(n - 1)), "ends too early"),
        (lambda n: block(bytes(n)), "no file of the store"),
    ],
)
def test_claims_that_do_not_hold_are_refused(
    stored: GraphFile,
    content: bytes,
    tmp_path: Path,
    make: Callable[[int], bytes],
    match: str,
) -> None:
    head, _ = parsed(content, tmp_path)
    check_refused(signed(head, make(head.n_bytes)), stored, tmp_path, match)


def test_a_head_of_another_graph_is_refused(
    stored: GraphFile, content: bytes, tmp_path: Path
) -> None:
    head, blocks = parsed(content, tmp_path)
    other = signed(replace(head, source=b"0" * 16), blocks)
    check_refused(other, stored, tmp_path, "its head is not that of the graph in it")


def test_a_file_of_another_version_is_refused(
    stored: GraphFile, content: bytes, tmp_path: Path
) -> None:
    head, blocks = parsed(content, tmp_path)
    other = signed(replace(head, version=b"99".ljust(8, b"\0")), blocks)
    check_refused(other, stored, tmp_path, "is of store version '99'; expected")


def test_a_file_in_another_graphs_place_is_refused(
    stored: GraphFile, content: bytes, tmp_path: Path
) -> None:
    other = replace(stored, name="../../elsewhere")
    check_refused(content, other, tmp_path, f"holds {stored.submission_id}; expected ")


def test_a_file_that_is_not_there_is_one_line(stored: GraphFile, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"missing\.zst: cannot be read: No such file"):
        unpack(tmp_path / "missing.zst", stored)


def test_a_damaged_stored_file_is_not_shipped(stored: GraphFile, tmp_path: Path) -> None:
    content = bytearray(stored.path.read_bytes())
    content[-1] ^= 1
    damaged = tmp_path / stored.path.name
    damaged.write_bytes(content)
    with pytest.raises(PipelineError, match=f"{damaged}: damaged: tensor"):
        ship(damaged, tmp_path / "out" / "graph.zst")
    assert not (tmp_path / "out").exists()


def test_a_stop_in_the_middle_keeps_what_was_there(
    stored: GraphFile, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    path, target = folder / "graph.zst", folder / "graph.safetensors"
    path.write_bytes(content)
    target.write_bytes(b"older")
    n_calls = 0

    def stopped(*given: object) -> bytes:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise KeyboardInterrupt
        return original(*given)

    original: Callable[..., bytes]
    for name, call in (
        ("pack_block", lambda: ship(stored.path, path)),
        ("unpack_block", lambda: unpack(path, replace(stored, path=target))),
    ):
        n_calls, original = 0, getattr(shipped_graph, name)
        monkeypatch.setattr(shipped_graph, name, stopped)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert n_calls == 3
    assert path.read_bytes() == content
    assert target.read_bytes() == b"older"
    assert sorted(folder.iterdir()) == [target, path]


def test_parts_are_cut_at_rows(stored: GraphFile) -> None:
    _, parts = shipped_graph._layout(stored.path)
    tensors = open_tensors(stored.path).tensors
    head = LENGTH.unpack(stored.path.read_bytes()[: LENGTH.size])[0] + LENGTH.size
    assert parts[0] == (head, 1)
    assert sum(n_bytes for n_bytes, _ in parts) == stored.path.stat().st_size
    assert (tensors["node_feat"].nbytes, 140 * 4) in parts
    assert all(n_bytes % width == 0 for n_bytes, width in shipped_graph._blocks(parts))
