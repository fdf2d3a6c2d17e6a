"""Tensors in one file, mapped when read: the safetensors format, and a checksum of all they hold.

The library writes and describes these files. What stands beside the tensors is one value of the
header, since the library puts several in any order.
"""

import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

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
NOT_A_HEADER = (AttributeError, KeyError, TypeError, ValueError, RecursionError, OSError)
REMEDY = "remove the file, and it is made again"


@dataclass(frozen=True)
class TensorFile:
    """An open file: tensors are views of the mapped file, good as long as they are used."""

    facts: Mapping[str, str]
    tensors: Mapping[str, NDArray[Any]]
    identity: tuple[int, ...]  # another one says that the file has changed


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
        return _read_header(path, file)[0]


def open_tensors(path: Path) -> TensorFile:
    """Map a file's tensors; the first time in a process, every byte is checked.

    Raises:
        PipelineError: the file cannot be read, or is damaged.
    """
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        identity = (state.st_ino, state.st_size, state.st_mtime_ns)
        _check_once(path, identity)
        facts, header = _read_header(path, file)
        start = file.tell()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensors = dict[str, NDArray[Any]]()
    for name, entry in header.items():
        dtype, (first, _) = TYPES[entry["dtype"]], entry["data_offsets"]
        values: NDArray[Any] = np.frombuffer(
            mapped, dtype, math.prod(entry["shape"]), start + first
        )
        tensors[name] = values.reshape(entry["shape"])
    return TensorFile(facts, tensors, identity)


@cache
def _check_once(path: Path, identity: tuple[int, ...]) -> None:
    check_seal(path, REMEDY)


def _read_header(path: Path, file: IO[bytes]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the facts, and what is said of each tensor; read as far as the first one."""
    try:
        with safe_open(path, framework="numpy") as opened:  # checks that all lies inside the file
            facts = json.loads(opened.metadata()[FACTS])
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        del header["__metadata__"]
        is_known = all(entry["dtype"] in TYPES for entry in header.values())
        is_sealed = facts.pop(SEAL_KEY).startswith(MARK.decode())
        if is_known and is_sealed and all(isinstance(fact, str) for fact in facts.values()):
            return facts, header
    except (SafetensorError, *NOT_A_HEADER):
        pass
    raise PipelineError(f"{path}: damaged: it has no readable header; {REMEDY}")
