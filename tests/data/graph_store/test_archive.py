"""A store in one archive: unpacked bit for bit; what is damaged or made in bad faith is refused."""

import io
import os
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from common.errors import PipelineError
from data.graph_store import archive as archive_module
from data.graph_store.archive import LISTING, unpack_archive, write_archive
from data.graph_store.prepare import prepare
from data.graph_store.stored_graph import stored_file
from data.graph_store.tensor_file import open_tensors, write_tensors
from data.tree import GraphFile, find_graphs
from tests.command_line import call
from tests.data.packing.stores import contents


@pytest.fixture(scope="module")
def files(tiny_tree: Path) -> list[GraphFile]:
    """A few graphs of every kind."""
    return find_graphs(tiny_tree)[::4]


@pytest.fixture(scope="module")
def store(files: list[GraphFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of them."""
    folder = tmp_path_factory.mktemp("store")
    prepare(files, folder)
    return folder


@pytest.fixture(scope="module")
def archive(files: list[GraphFile], store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store's archive."""
    path = tmp_path_factory.mktemp("archive") / "store.tar.zst"
    write_archive(prepare(files, store), path)
    return path


Members = list[tuple[str, bytes]]


def members_of(path: Path) -> Members:
    plain = zstandard.ZstdDecompressor().stream_reader(path.open("rb")).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]


def written(path: Path, members: Members, *, listed: bool = True) -> Path:
    """Write an archive of other members, with a list that fits them."""
    if listed:
        names = "".join(f"{name}\n" for name, _ in members[1:])
        members = [(LISTING, names.encode()), *members[1:]]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    path.write_bytes(zstandard.compress(stream.getvalue()))
    return path


def refusal(path: Path, store: Path) -> str:
    with pytest.raises(PipelineError) as error:
        unpack_archive(path, store)
    line = str(error.value)
    assert line.startswith(f"{path}: ") and len(line) < len(str(path)) + 400
    return line


def test_an_archive_is_unpacked_to_the_same_bytes(
    files: list[GraphFile], store: Path, archive: Path, tmp_path: Path
) -> None:
    prepared = unpack_archive(archive, tmp_path / "store")
    assert contents(tmp_path / "store") == contents(store)
    assert [entry.stored for entry in prepared] == [
        stored_file(tmp_path / "store", file) for file in files
    ]
    assert not any(entry.is_new for entry in prepare(files, tmp_path / "store"))
    write_archive(prepared, tmp_path / "again.tar.zst")
    assert (tmp_path / "again.tar.zst").read_bytes() == archive.read_bytes()


def test_the_command_writes_and_unpacks_it(tiny_tree: Path, tmp_path: Path) -> None:
    path, there = tmp_path / "all.tar.zst", tmp_path / "there"
    printed = call("prepare", "--data", tiny_tree, "--store", tmp_path / "store", "--archive", path)
    assert f"archive     {path}" in printed
    call("prepare", "--from-archive", path, "--store", there)
    assert contents(there) == contents(tmp_path / "store")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--archive", "a", "--from-archive", "b"), "give one of them"),
        (("--from-archive", "b"), "give --store STORE too"),
        (("--archive", "."), "is a folder; expected a file"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: tuple[str, ...], line: str) -> None:
    assert line in call("prepare", *options, expect=2)


def test_each_flipped_byte_and_each_cut_is_noticed(archive: Path, tmp_path: Path) -> None:
    content, path = archive.read_bytes(), tmp_path / "damaged"
    for place in range(0, len(content), max(1, len(content) // 40)):
        changed = bytearray(content)
        changed[place] ^= 0x41
        path.write_bytes(changed)
        refusal(path, tmp_path / "store")
        path.write_bytes(content[:place])
        refusal(path, tmp_path / "store")


Change = Callable[[Members], Members]


def renamed(name: str) -> Change:
    return lambda members: [*members[:-1], (name, members[-1][1])]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(lambda m: [*m, m[1]], "twice", id="a graph twice"),
        pytest.param(lambda m: m[1:], "list of graphs", id="no list"),
        pytest.param(lambda m: m[:1], "lists no graph", id="no graph"),
        pytest.param(renamed("../../etc/passwd.safetensors"), "no place", id="up"),
        pytest.param(renamed("/etc/passwd.safetensors"), "no place", id="absolute"),
        pytest.param(renamed("tile/xla/train/../a.safetensors"), "no place", id="dots"),
        pytest.param(renamed("tile/xla/train/.a.safetensors"), "no place", id="hidden"),
        pytest.param(renamed("tile/xla/train/a.npz"), "no place", id="another suffix"),
        pytest.param(renamed("tile/xla/train/.safetensors"), "no place", id="no name"),
        pytest.param(renamed("tile/xla/train/" + "a" * 3000 + ".safetensors"), "", id="long name"),
        pytest.param(renamed("tile/xla/train/other.safetensors"), "tensor|another", id="misplaced"),
    ],
)
def test_a_member_out_of_its_place_is_refused(
    change: Change, problem: str, archive: Path, tmp_path: Path
) -> None:
    members = change(members_of(archive))
    path = written(tmp_path / "bad", members, listed=len(members) and members[0][0] == LISTING)
    line = refusal(path, tmp_path / "store")
    assert any(part in line for part in problem.split("|"))
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith((".tmp", "passwd.safetensors"))]


def test_a_list_that_says_another_thing_than_what_follows_is_refused(
    archive: Path, tmp_path: Path
) -> None:
    members = members_of(archive)
    path = written(tmp_path / "bad", members[:-1], listed=False)
    assert "ends before" in refusal(path, tmp_path / "store")
    path = written(tmp_path / "bad", [members[0], *members[2:]], listed=False)
    assert "is not what is listed" in refusal(path, tmp_path / "store")
    path = written(tmp_path / "bad", [*members, members[1]], listed=False)
    assert "is not what is listed" in refusal(path, tmp_path / "store")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"x", b"g"])
def test_what_is_no_regular_file_is_refused(kind: bytes, archive: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo("tile/xla/train/a.safetensors")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    (tmp_path / "bad").write_bytes(zstandard.compress(stream.getvalue()))
    assert "no regular file" in refusal(tmp_path / "bad", tmp_path / "store")


def test_a_negative_size_ends(archive: Path, tmp_path: Path) -> None:
    """Python's CVE-2025-8194: `tarfile` steps back, and reads the same header for ever."""
    info = tarfile.TarInfo(LISTING)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"  # -512
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "bad").write_bytes(zstandard.compress(bytes(header) * 2 + bytes(1024)))
    assert "no regular file" in refusal(tmp_path / "bad", tmp_path / "store")


def test_a_graph_whose_values_were_altered_is_refused_though_its_checksums_are_right(
    archive: Path, tmp_path: Path
) -> None:
    members = members_of(archive)
    name, content = members[-1]
    (tmp_path / "graph").write_bytes(content)
    opened = open_tensors(tmp_path / "graph")
    tensors = dict(opened.tensors) | {"edge_index": opened.tensors["edge_index"] + 10**6}
    write_tensors(tmp_path / "forged", tensors, facts=opened.facts)
    members[-1] = (name, (tmp_path / "forged").read_bytes())
    line = refusal(written(tmp_path / "bad", members), tmp_path / "store")
    assert "tensor 'edge_index' row 0" in line


def test_more_than_the_disk_holds_and_a_bomb_cost_nothing(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(archive_module.shutil, "disk_usage", lambda path: usage)
        assert "has 1000 free" in refusal(archive, tmp_path / "store")
    (tmp_path / "bomb").write_bytes(zstandard.compress(bytes(300 << 20)))
    tracemalloc.start()
    refusal(tmp_path / "bomb", tmp_path / "store")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_a_missing_archive_and_a_pipe_are_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        with pytest.raises(PipelineError, match="cannot be read: "):
            unpack_archive(tmp_path / name, tmp_path / "store")
