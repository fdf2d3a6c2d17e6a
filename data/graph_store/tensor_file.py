"""Tensors in one file, mapped when read: the safetensors format, and a checksum of all they hold.

The library writes and describes these files. What stands beside the tensors is one value of the
header, since the library puts several in any order.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from common.atomic import atomic_path, open_regular
from common.errors import PipelineError
from data.npz.read import INFLATER

FACTS = "facts"
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
LENGTH = struct.Struct("<Q")  # of the header, in front of it
CHECK_BYTES = 1 << 20


@dataclass(frozen=True)
class TensorFile:
    """An open file: tensors are views of the mapped file, good as long as they are used."""

    facts: Mapping[str, str]
    tensors: Mapping[str, NDArray[Any]]
    identity: tuple[int, ...]  # another one says that the file has changed


@dataclass(frozen=True)
class _Place:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], *, facts: Mapping[str, str]
) -> None:
    """Write tensors and facts to a file, whole or not at all; equal input gives equal bytes.

    Raises:
        PipelineError: the file cannot be written.
    """
    arrays = {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}
    checksum = _checksum(
        facts,
        {name: (values.dtype, values.shape) for name, values in arrays.items()},
        (values.reshape(-1).view(np.uint8).data for values in arrays.values()),
    )
    text = json.dumps({**facts, "checksum": checksum}, sort_keys=True)
    # The library's own way to files leaves others that nobody else may read, and that stay.
    content = save(arrays, metadata={FACTS: text})
    with atomic_path(path, durable=False) as temporary:
        temporary.write_bytes(content)


def read_facts(path: Path) -> dict[str, str]:
    """Return what was written beside the tensors of a file, without reading these.

    Raises:
        PipelineError: the file cannot be read, its header is damaged, or its length is not what the
            header says.
    """
    with open_regular(path) as file:
        facts, _ = _read_header(path, file)
    facts.pop("checksum", None)
    return facts


def open_tensors(path: Path) -> TensorFile:
    """Map a file's tensors; the first time in a process, every byte is checked.

    Raises:
        PipelineError: the file cannot be read, or is damaged.
    """
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        identity = (state.st_ino, state.st_size, state.st_mtime_ns)
        _check_once(path, identity)
        facts, places = _read_header(path, file)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensors = {}
    for name, place in places.items():
        count = math.prod(place.shape)
        values = np.frombuffer(mapped, place.dtype, count, place.start) if count else np.empty(0)
        tensors[name] = values.astype(place.dtype, copy=False).reshape(place.shape)
    facts.pop("checksum")
    return TensorFile(facts, tensors, identity)


@cache
def _check_once(path: Path, identity: tuple[int, ...]) -> None:
    with path.open("rb") as file:
        facts, places = _read_header(path, file)
        expected = facts.pop("checksum", None)
        described = {name: (place.dtype, place.shape) for name, place in places.items()}
        parts = (part for name in sorted(places) for part in _parts(file, places[name]))
        if _checksum(facts, described, parts) != expected:
            _damaged(path, "it is not as it was written")


def _parts(file: IO[bytes], place: _Place) -> Iterator[bytes]:
    file.seek(place.start)
    for start in range(0, place.n_bytes, CHECK_BYTES):
        yield file.read(min(CHECK_BYTES, place.n_bytes - start))


def _checksum(
    facts: Mapping[str, str],
    described: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
    parts: Iterable[bytes | memoryview],
) -> str:
    names = [(name, str(dtype), shape) for name, (dtype, shape) in sorted(described.items())]
    checksum = INFLATER.crc32(repr((sorted(facts.items()), names)).encode())
    for part in parts:
        checksum = INFLATER.crc32(part, checksum)
    return f"{checksum:08x}"


def _read_header(path: Path, file: IO[bytes]) -> tuple[dict[str, str], dict[str, _Place]]:
    try:
        with safe_open(path, framework="numpy") as opened:  # checks that all lies inside the file
            facts = json.loads((opened.metadata() or {})[FACTS])
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        header = json.loads(file.read(length))
        start = LENGTH.size + length
        places = {
            name: _Place(
                np.dtype(TYPES[entry["dtype"]]),
                tuple(entry["shape"]),
                start + entry["data_offsets"][0],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError, OSError):
        _damaged(path, "it has no readable header")
    if not isinstance(facts, dict) or not all(isinstance(fact, str) for fact in facts.values()):
        _damaged(path, "it has no readable header")
    return facts, places


def _damaged(path: Path, problem: str) -> NoReturn:
    raise PipelineError(f"{path}: damaged: {problem}; remove the file, and it is made again")
