"""The project's one checksum, and files that hold their own, so that a flipped bit is noticed.

A file of any format is written with the text `UNSEALED` in it, as a value of its header, footer or
last key; then the zeros are replaced by the CRC-32 of all of the file as it stood.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from common.atomic import atomic_path, open_regular
from common.errors import PipelineError

SEAL_KEY = "checksum"
MARK = b"crc32:"
ZEROS = b"0" * 8
UNSEALED = (MARK + ZEROS).decode()


def checksum_of(content: bytes) -> str:
    """Return the CRC-32 of some bytes; 8 hex digits."""
    return f"{zlib.crc32(content):08x}"


def sealed(content: bytes) -> bytes:
    """Return `content` with its checksum in the place that `UNSEALED` keeps for it."""
    start = content.rindex(MARK) + len(MARK)
    before, after = content[:start], content[start + len(ZEROS) :]
    return before + checksum_of(before + ZEROS + after).encode() + after


def check_seal(path: Path, remedy: str) -> None:
    """Compare a file with the checksum that it holds; a file from elsewhere may hold none.

    Raises:
        PipelineError: the file cannot be read, or is not as it was written.
    """
    with open_regular(path) as file:
        content = file.read()
    if MARK in content and sealed(content) != content:
        raise PipelineError(f"{path}: damaged: it is not as it was written; {remedy}")


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a table as parquet with its checksum, whole or not at all.

    Raises:
        PipelineError: the file cannot be written.
    """
    with atomic_path(path) as temporary:
        table.write_parquet(temporary, metadata={SEAL_KEY: UNSEALED})
        temporary.write_bytes(sealed(temporary.read_bytes()))


def read_table(path: Path, schema: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """Read a parquet file, after checking every byte; one from elsewhere has no checksum.

    Raises:
        PipelineError: the file is missing or damaged, or has other columns than `schema`.
    """
    check_seal(path, "remove the file, and it is made again")
    try:
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        first = (str(error).splitlines() or [""])[0]
        raise PipelineError(f"{path}: cannot be read: {first}") from error
    if schema is not None and dict(table.schema) != schema:
        columns = ", ".join(table.columns)
        raise PipelineError(f"{path}: has columns {columns}; expected {', '.join(schema)}")
    return table
