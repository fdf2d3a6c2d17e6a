"""One file of the store, compressed to be sent elsewhere, and unpacked there bit for bit.

It is a zstandard file, which `zstd --test` can check: a skippable frame that says what the file
holds, then blocks of at most 8 MiB, each in a frame after a skippable one with its sizes. Blocks
may hold columns for rows (see blocks.py), so `zstd --decompress` alone does not give the stored
file. A checksum of all packed bytes stands in front, so that no flipped bit goes unnoticed.
"""

import hashlib
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NoReturn

from common.atomic import atomic_path
from common.errors import PipelineError
from data.graph_store.compression import MAX_BLOCK_BYTES, block_rows, pack_block, unpack_block
from data.graph_store.stored_graph import STORE_SUFFIX, VERSION
from data.graph_store.tensor_file import open_tensors, read_facts
from data.npz.inflate import DamagedError
from data.tree import GraphFile

SHIPPED_SUFFIX = f"{STORE_SUFFIX}.zst"
FORMAT = b"storezs1"
# Two frames that zstd skips: magic number and length of what follows.
HEAD = struct.Struct("<II8s8s16sQQ16s")  # …, format, version, source, bytes, file's bytes, checksum
NO_CHECKSUM = bytes(16)  # while there is none
HEAD_FRAME = (0x184D2A50, HEAD.size - 8)
BLOCK = struct.Struct("<IIIII")  # …, bytes, width, packed bytes
BLOCK_FRAME = (0x184D2A51, BLOCK.size - 8)
MAX_PACKED_BYTES = MAX_BLOCK_BYTES + (1 << 17)  # what does not compress grows a little


@dataclass(frozen=True)
class Head:
    """What a shipped file says of itself.

    Attributes:
        version, source: the facts of the stored file.
        n_bytes: length of the stored file.
        file_bytes: length of the shipped file.
        checksum: of all that follows the head, and of the head itself; 16 bytes.
    """

    version: bytes
    source: bytes
    n_bytes: int
    file_bytes: int
    checksum: bytes = NO_CHECKSUM

    def packed(self) -> bytes:
        """Return the head as it stands in the file."""
        facts = (FORMAT, self.version, self.source, self.n_bytes, self.file_bytes)
        return HEAD.pack(*HEAD_FRAME, *facts, self.checksum)


def shipped_path(folder: Path, file: GraphFile) -> Path:
    """Return where `folder` keeps the compressed form of a graph."""
    return folder / file.collection.folder / file.split / f"{file.name}{SHIPPED_SUFFIX}"


def ship(stored: Path, path: Path) -> None:
    """Compress one file of the store, whole or not at all; equal input gives equal bytes.

    Raises:
        PipelineError: the stored file is damaged, or the new one cannot be written.
    """
    facts, parts = _layout(stored)
    version, source = facts["version"].encode().ljust(8, b"\0"), facts["source"].encode()
    checksum = hashlib.blake2b(digest_size=16)
    with atomic_path(path) as temporary, temporary.open("wb") as file, stored.open("rb") as raw:
        file.seek(HEAD.size)
        for n_bytes, width in _blocks(parts):
            content = raw.read(n_bytes)
            used_width, packed = pack_block(content, width)
            block = BLOCK.pack(*BLOCK_FRAME, len(content), used_width, len(packed)) + packed
            checksum.update(block)
            file.write(block)
        head = Head(version, source, raw.tell(), file.tell())
        checksum.update(head.packed())
        file.seek(0)
        file.write(replace(head, checksum=checksum.digest()).packed())


def _layout(stored: Path) -> tuple[dict[str, str], list[tuple[int, int]]]:
    """Check a stored file; return its facts, and the bytes and row width of its parts in turn."""
    opened = open_tensors(stored)
    tensors = [values for values in opened.tensors.values() if values.nbytes]
    n_bytes = stored.stat().st_size - sum(values.nbytes for values in tensors)
    rows = [(values.nbytes, values.nbytes // len(values)) for values in tensors]
    return dict(opened.facts), [(n_bytes, 1), *rows]


def _blocks(parts: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Cut parts into blocks of whole rows; yield bytes and row width of each."""
    for n_bytes, given_width in parts:
        width = given_width if given_width <= MAX_BLOCK_BYTES else 1
        step = block_rows(width) * width
        for start in range(0, n_bytes, step):
            yield min(step, n_bytes - start), width


def is_shipped(stored: Path, path: Path) -> bool:
    """Tell whether `path` is a stored file's shipped form: same source, version and length.

    Raises:
        PipelineError: the stored file cannot be read.
    """
    return _head_or_none(path) == _identity(stored)


def is_unpacked(path: Path, stored: Path) -> bool:
    """Tell whether a shipped file has been unpacked to `stored`.

    Raises:
        PipelineError: the shipped file cannot be read, or its head is damaged.
    """
    head = read_head(path)
    try:
        return stored.is_file() and _identity(stored) == (head.version, head.source, head.n_bytes)
    except PipelineError:
        return False


def _head_or_none(path: Path) -> tuple[bytes, bytes, int] | None:
    try:
        head = read_head(path)
    except PipelineError:
        return None
    return head.version, head.source, head.n_bytes


def _identity(stored: Path) -> tuple[bytes, bytes, int]:
    facts = read_facts(stored)
    version, source = facts.get("version", "").encode(), facts.get("source", "").encode()
    return version.ljust(8, b"\0"), source, stored.stat().st_size


def read_head(path: Path) -> Head:
    """Return what a shipped file says of itself, after comparing its length.

    Raises:
        PipelineError: it cannot be read, is no such file, or does not end where it should.
    """
    with _opened(path) as file:
        content = _read(path, file, HEAD.size)
        *frame, form, version, source, n_bytes, file_bytes, checksum = HEAD.unpack(content)
        if (*frame, form) != (*HEAD_FRAME, FORMAT):
            _damaged(path, "it does not begin like an archived graph of the store")
        length = file.seek(0, 2)
    if length != file_bytes:
        _damaged(path, f"it has {length} bytes, and its head says {file_bytes}")
    return Head(version, source, n_bytes, file_bytes, checksum)


def unpack(path: Path, stored: GraphFile) -> None:
    """Unpack a shipped file to the graph's place in a store, whole or not at all.

    Raises:
        PipelineError: the shipped file is damaged, is of another graph or version, or says that
            it unpacks to more than the disk has room for; or the store cannot be written.
    """
    head = read_head(path)
    version = head.version.rstrip(b"\0").decode(errors="replace")
    if version != VERSION:
        raise PipelineError(f"{path}: is of store version {version[:8]!r}; expected {VERSION!r}")
    with atomic_path(stored.path) as temporary:
        free = shutil.disk_usage(temporary.parent).free
        if head.n_bytes > free:
            raise PipelineError(
                f"{path}: would unpack to {head.n_bytes} bytes; {temporary.parent} has {free} free"
            )
        with temporary.open("wb") as file:
            for content in _contents(path, head):
                file.write(content)
        try:
            facts = read_facts(temporary)
        except PipelineError:
            _damaged(path, "what it unpacks to is no file of the store")
        if _identity(temporary) != (head.version, head.source, head.n_bytes):
            _damaged(path, "its head is not that of the graph in it")
        if facts.get("id") != stored.submission_id:
            raise PipelineError(
                f"{path}: holds {facts.get('id')}; expected {stored.submission_id} in this place"
            )


def _contents(path: Path, head: Head) -> Iterator[bytes]:
    """Yield the stored file block by block; the last only after the checksum of all is right."""
    checksum = hashlib.blake2b(digest_size=16)
    n_left, content = head.n_bytes, b""
    with _opened(path) as file:
        file.seek(HEAD.size)
        while n_left:
            yield content
            sizes = _read(path, file, BLOCK.size)
            *frame, n_bytes, width, packed_bytes = BLOCK.unpack(sizes)
            if tuple(frame) != BLOCK_FRAME or not 0 < n_bytes <= min(n_left, MAX_BLOCK_BYTES):
                _damaged(path, "a block does not begin where the last one ends, or is too large")
            if not 0 < width <= n_bytes or packed_bytes > MAX_PACKED_BYTES:
                _damaged(path, "a block has impossible sizes")
            packed = _read(path, file, packed_bytes)
            checksum.update(sizes + packed)
            try:
                content = unpack_block(packed, n_bytes, width)
            except DamagedError as error:
                _damaged(path, str(error))
            n_left -= n_bytes
        at_end = file.tell() == head.file_bytes
    checksum.update(replace(head, checksum=NO_CHECKSUM).packed())
    if not at_end or checksum.digest() != head.checksum:
        _damaged(path, "its checksum is wrong")
    yield content


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read(path: Path, file: IO[bytes], n_bytes: int) -> bytes:
    try:
        content = file.read(n_bytes)
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) < n_bytes:
        _damaged(path, "it ends too early")
    return content


def _damaged(path: Path, problem: str) -> NoReturn:
    raise PipelineError(f"{path}: damaged: {problem}; copy it again, or archive the graph anew")
