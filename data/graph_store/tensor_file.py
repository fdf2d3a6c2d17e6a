"""Tensors in one file, written as a stream and mapped when read: the safetensors format.

Its library reads these files too. Ours writes them in chunks, so that no array has to fit in
memory, and keeps checksums of each and of the header itself in the header, so that a flipped bit
on the disk is noticed.
"""

import json
import math
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from common.atomic import atomic_path
from common.errors import PipelineError
from data.npz.inflate import INFLATER
from data.npz.zip_index import shown

TYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "I64": np.int64,
    "U64": np.uint64,
    "F64": np.float64,
}
TYPE_NAMES = {np.dtype(dtype): name for name, dtype in TYPES.items()}
LENGTH = struct.Struct("<Q")
MAX_HEADER_BYTES = 1 << 20
ALIGNMENT = 64
CHECK_BYTES = 1 << 20
CHECKSUM = "crc32:"
HEADER_CHECKSUM = "crc32"
UNKNOWN_CHECKSUM = "0" * 8


@dataclass(frozen=True)
class StreamedTensor:
    """A tensor that is written in chunks of whole rows, as they are made."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: Iterable[NDArray[Any]]


def write_tensors(
    path: Path,
    tensors: Mapping[str, NDArray[Any] | StreamedTensor],
    *,
    facts: Mapping[str, str],
) -> None:
    """Write tensors and facts to a file, whole or not at all; equal input gives equal bytes.

    Raises:
        PipelineError: the file cannot be written.
        ValueError: a streamed tensor's chunks do not fill its shape.
    """
    # Wide types first: then each tensor is aligned to its own type, as the format wants it.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    checksums = dict.fromkeys((name for name, _ in ordered), UNKNOWN_CHECKSUM)
    with atomic_path(path, durable=False) as temporary, temporary.open("wb") as file:
        file.write(_header(ordered, facts, checksums))
        for name, tensor in ordered:
            checksums[name] = f"{_write(file, name, tensor):08x}"
        file.seek(0)
        file.write(_header(ordered, facts, checksums))


def _header(
    tensors: Iterable[tuple[str, NDArray[Any] | StreamedTensor]],
    facts: Mapping[str, str],
    checksums: Mapping[str, str],
) -> bytes:
    """Return the header; its length depends on no checksum."""
    marks = {f"{CHECKSUM}{name}": value for name, value in checksums.items()}
    header: dict[str, Any] = {"__metadata__": {**facts, **marks}}
    start = 0
    for name, tensor in tensors:
        end = start + _n_bytes(tensor)
        header[name] = {
            "dtype": TYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    header["__metadata__"][HEADER_CHECKSUM] = _header_checksum(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + LENGTH.size) % ALIGNMENT)
    return LENGTH.pack(len(text)) + text


def _header_checksum(header: dict[str, Any]) -> str:
    """Return the checksum of all that a header says, in whatever order."""
    return f"{INFLATER.crc32(json.dumps(header, sort_keys=True).encode()):08x}"


def _n_bytes(tensor: NDArray[Any] | StreamedTensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def _write(file: IO[bytes], name: str, tensor: NDArray[Any] | StreamedTensor) -> int:
    """Write one tensor; return its checksum."""
    chunks = tensor.chunks if isinstance(tensor, StreamedTensor) else (tensor,)
    checksum = n_bytes = 0
    for chunk in chunks:
        content = np.ascontiguousarray(chunk, tensor.dtype).reshape(-1).view(np.uint8).data
        checksum = INFLATER.crc32(content, checksum)
        file.write(content)
        n_bytes += len(content)
    if n_bytes != _n_bytes(tensor):
        raise ValueError(f"{name}: {n_bytes} bytes were given; expected {_n_bytes(tensor)}")
    return checksum


@dataclass(frozen=True)
class TensorFile:
    """An open file: tensors are views of the mapped file, good as long as they are used.

    Attributes:
        path: the file.
        facts: what was written beside the tensors.
        tensors: read-only arrays by name.
    """

    path: Path
    facts: Mapping[str, str]
    tensors: Mapping[str, NDArray[Any]]


def read_facts(path: Path) -> dict[str, str]:
    """Return what was written beside the tensors of a file, without reading these.

    Raises:
        PipelineError: the file cannot be read, its header is damaged, or its length is not what the
            header says.
    """
    with _opened(path) as file:
        header, start = _read_header(path, file)
        facts, _ = _metadata(path, header)
        n_bytes = 0
        for name, entry in header.items():
            n_bytes += _described(path, name, entry, n_bytes)[2]
        _check_end(path, file, start + n_bytes)
        return facts


def open_tensors(path: Path) -> TensorFile:
    """Map a file's tensors, after checking every byte against its checksum.

    Raises:
        PipelineError: the file cannot be read, or is damaged; names the first bad tensor.
    """
    with _opened(path) as file:
        header, start = _read_header(path, file)
        facts, checksums = _metadata(path, header)
        tensors: dict[str, NDArray[Any]] = {}
        end = start
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for name, entry in header.items():
            dtype, shape, n_bytes = _described(path, name, entry, end - start)
            if _checksum(file, end, n_bytes) != checksums.get(CHECKSUM + name):
                _damaged(path, f"tensor '{shown(name)}' is not as it was written")
            count = n_bytes // dtype.itemsize
            values = np.frombuffer(mapped, dtype, count, end) if count else np.empty(0, dtype)
            try:
                tensors[name] = values.reshape(shape)
            except ValueError:  # more axes than there can be, or longer ones beside one of 0
                _damaged(path, f"tensor '{shown(name)}' has an impossible shape")
            end += n_bytes
        _check_end(path, file, end)
    return TensorFile(path, facts, tensors)


def _check_end(path: Path, file: IO[bytes], end: int) -> None:
    if file.seek(0, 2) != end:
        _damaged(path, "the file does not end with its last tensor")


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error


def _damaged(path: Path, problem: str) -> NoReturn:
    raise PipelineError(f"{path}: damaged: {problem}; remove the file, and it is made again")


def _read_header(path: Path, file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """Return the header, in the order of the tensors, and where these start."""
    head = file.read(LENGTH.size)
    length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
    content = file.read(length) if 0 < length <= MAX_HEADER_BYTES else b""
    header = None
    if content and len(content) == length:
        try:
            header = json.loads(content, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError):
            header = None
    if not isinstance(header, dict):
        _damaged(path, "it has no readable header")
    return header, LENGTH.size + length


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; of two values of one name, `json` would drop the first in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _metadata(path: Path, header: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Take the facts, and the checksums of the tensors, out of a header, and check the header."""
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or HEADER_CHECKSUM not in metadata:
        _damaged(path, "its header has no checksum")
    checksum = metadata.pop(HEADER_CHECKSUM)
    if not all(isinstance(value, str) for value in metadata.values()):
        _damaged(path, "its header has facts that are no text")
    if checksum != _header_checksum(header):
        _damaged(path, "its header is not as it was written")
    del header["__metadata__"]
    facts = {key: value for key, value in metadata.items() if not key.startswith(CHECKSUM)}
    return facts, metadata


def _described(
    path: Path, name: str, entry: Any, start: int
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return type, shape and bytes of a tensor that is to start at `start`."""
    try:
        dtype: np.dtype[Any] = np.dtype(TYPES[entry["dtype"]])
        shape, offsets = tuple(entry["shape"]), list(entry["data_offsets"])
    except (KeyError, TypeError):
        dtype, shape, offsets = np.dtype(np.uint8), (), []
    is_shape = all(type(length) is int and length >= 0 for length in shape)
    n_bytes = math.prod(shape) * dtype.itemsize if is_shape else 0
    if not is_shape or offsets != [start, start + n_bytes]:
        _damaged(path, f"the header does not say where tensor '{shown(name)}' lies")
    return dtype, shape, n_bytes


def _checksum(file: IO[bytes], start: int, n_bytes: int) -> str:
    """Return the checksum of some bytes. They are read, not mapped: mapped ones stay in memory."""
    file.seek(start)
    checksum = 0
    while n_bytes:
        content = file.read(min(CHECK_BYTES, n_bytes))
        if not content:
            return "ends too early"
        checksum = INFLATER.crc32(content, checksum)
        n_bytes -= len(content)
    return f"{checksum:08x}"
