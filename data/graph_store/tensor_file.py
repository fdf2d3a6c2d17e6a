"""Tensors in one file, mapped when read: the safetensors format, and a checksum of all they hold.

The library writes and describes these files. What stands beside the tensors is one value of the
header, since the library puts several in any order.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from common.atomic import open_regular
from common.checksums import MARK, SEAL_KEY, UNSEALED, check_seal, write_sealed
from common.errors import PipelineError

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
REMEDY = "remove the file, and it is made again"


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


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], *, facts: Mapping[str, str]
) -> None:
    """Write tensors and facts to a file, whole or not at all; equal input gives equal bytes.

    Raises:
        PipelineError: the file cannot be written.
    """
    arrays = {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}
    text = json.dumps({**facts, SEAL_KEY: UNSEALED}, sort_keys=True)
    # The library's own way to files leaves others that nobody else may read, and that stay.
    write_sealed(path, save(arrays, metadata={FACTS: text}), durable=False)


def read_facts(path: Path) -> dict[str, str]:
    """Return what was written beside the tensors of a file, without reading these.

    Raises:
        PipelineError: the file cannot be read, its header is damaged, or its length is not what the
            header says.
    """
    with open_regular(path) as file:
        facts, _ = _read_header(path, file)
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
    return TensorFile(facts, tensors, identity)


@cache
def _check_once(path: Path, identity: tuple[int, ...]) -> None:
    check_seal(path, REMEDY)


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
        _damaged(path)
    if not isinstance(facts, dict) or not all(isinstance(fact, str) for fact in facts.values()):
        _damaged(path)
    if not facts.pop(SEAL_KEY, "").startswith(MARK.decode()):
        _damaged(path)
    return facts, places


def _damaged(path: Path) -> NoReturn:
    raise PipelineError(f"{path}: damaged: it has no readable header; {REMEDY}")
