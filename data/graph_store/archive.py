"""A whole store in one file, to be sent elsewhere and unpacked there bit for bit.

FILE.tar.zst, which `tar --zstd` reads too: a list of the graphs, and each graph of the store below
its place, such as layout/xla/default/train/GRAPH.safetensors.
"""

import io
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, Self

import zstandard

from common.atomic import atomic_path
from common.errors import PipelineError
from common.progress import progress
from data.graph_store.prepare import Prepared, alone
from data.graph_store.stored_graph import STORE_SUFFIX, open_stored, stored_file
from data.graph_store.tensor_file import read_facts
from data.npz.read import open_regular, shown
from data.tree import COLLECTIONS, SPLITS, GraphFile

LISTING = "graphs.txt"  # a name per line, so that a graph that is missing or stands twice is seen
LEVEL = 9  # 12 gains less than 1 % and takes 1.5 times as long; 19 gains 3 % and takes ten times
MAX_LISTING_BYTES = 4 << 20
MAX_NAME_BYTES = 1 << 10
MEMBERS = (tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME)


def write_archive(prepared: Sequence[Prepared], path: Path) -> None:
    """Compress every graph of a store into `path`, whole or not at all; equal graphs, equal bytes.

    Nobody else may write to the store meanwhile.

    Raises:
        PipelineError: a stored file is damaged, or the archive cannot be written.
    """
    graphs = [entry.stored for entry in prepared if entry.stored]
    listing = "".join(f"{_name(file)}\n" for file in graphs).encode()
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with (
        atomic_path(path) as temporary,
        temporary.open("wb") as raw,
        compressor.stream_writer(raw) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        _add(tar, LISTING, len(listing), io.BytesIO(listing))
        for number, file in enumerate(graphs, start=1):
            open_stored(file)
            with file.path.open("rb") as content:
                _add(tar, _name(file), file.path.stat().st_size, content)
            progress("archive", number, len(graphs))


def _name(file: GraphFile) -> str:
    return f"{file.collection.folder}/{file.split}/{file.name}{STORE_SUFFIX}"


def _add(tar: tarfile.TarFile, name: str, n_bytes: int, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)  # of no time and no owner
    info.size = n_bytes
    tar.addfile(info, content)


def unpack_archive(path: Path, store: Path) -> list[Prepared]:
    """Unpack every graph of an archive into the store, in place of what is there.

    Another process that works in the same store is waited for.

    Raises:
        PipelineError: the archive is damaged, holds anything but graphs of the store, a graph twice
            or not at all, or more than the disk has room for; or the store cannot be written.
    """
    done: list[Prepared] = []
    with alone(store), _opened(path) as tar:
        members = iter(tar)
        names = _listed(path, tar, next(members, None))
        for info in members:
            if len(done) == len(names) or info.name != names[len(done)]:
                _damaged(path, f"'{shown(info.name)}' is not what is listed in this place")
            source = _placed(path, info.name)
            stored = stored_file(store, source)
            _unpack(path, tar, info, stored)
            done.append(Prepared(source, stored, is_new=True))
            progress("unpack", len(done), len(names))
    if len(done) < len(names):
        _damaged(path, f"it ends before '{shown(names[len(done)])}', which is listed")
    return done


class _PlainMember(tarfile.TarInfo):
    """A member of an archive of ours; refused before `tarfile` acts on what its header says."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type not in MEMBERS or info.size < 0:
            raise tarfile.ReadError("a member is no regular file")
        if info.type == tarfile.GNUTYPE_LONGNAME and info.size > MAX_NAME_BYTES:
            raise tarfile.ReadError("a name is too long")
        return info


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with (
            open_regular(path) as raw,
            zstandard.ZstdDecompressor().stream_reader(raw) as stream,
            tarfile.open(fileobj=stream, mode="r|", tarinfo=_PlainMember) as tar,
        ):
            yield tar
    except (zstandard.ZstdError, tarfile.TarError, EOFError, ValueError) as error:
        _damaged(path, shown(error))


def _listed(path: Path, tar: tarfile.TarFile, first: tarfile.TarInfo | None) -> list[str]:
    if first is None or first.name != LISTING or first.size > MAX_LISTING_BYTES:
        _damaged(path, "it does not begin with a list of graphs")
    content = tar.extractfile(first)
    assert content is not None
    names = content.read().decode().splitlines()
    if not names:
        _damaged(path, "it lists no graph")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _damaged(path, f"'{shown(name)}' stands in it twice; expected each graph once")
        seen.add(name)
    return names


def _placed(path: Path, name: str) -> GraphFile:
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(STORE_SUFFIX)
    parts = {f"{c.folder}/{split}": (c, split) for c in COLLECTIONS for split in SPLITS}
    if folder not in parts or stem in ("", file) or stem[0] == "." or not stem.isprintable():
        _damaged(path, f"'{shown(name)}' is no place of a graph")
    return GraphFile(*parts[folder], stem, path)


def _unpack(path: Path, tar: tarfile.TarFile, info: tarfile.TarInfo, stored: GraphFile) -> None:
    with atomic_path(stored.path, durable=False) as temporary:
        free = shutil.disk_usage(temporary.parent).free
        if info.size > free:
            folder = temporary.parent
            raise PipelineError(
                f"{path}: '{shown(info.name)}' has {info.size} bytes; {folder} has {free} free"
            )
        content: Any = tar.extractfile(info)
        with temporary.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        try:
            open_stored(GraphFile(stored.collection, stored.split, stored.name, temporary))
        except PipelineError as error:
            _damaged(path, f"'{shown(info.name)}' {str(error).removeprefix(f'{temporary}: ')}")
        found = read_facts(temporary).get("id")
        if found != stored.submission_id:
            _damaged(path, f"'{shown(info.name)}' holds another graph, {shown(found)}")


def _damaged(path: Path, problem: str) -> NoReturn:
    raise PipelineError(f"{path}: damaged: {problem}; copy it again, or archive the store anew")
