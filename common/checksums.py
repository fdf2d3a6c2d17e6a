"""The project's one checksum, and files that hold their own, so that a flipped bit is noticed.

A file of any format is written with the text `UNSEALED` in it, as a value of its header, footer or
last key; then the zeros are replaced by the CRC-32 of all of the file as it stood.
"""

import importlib
import io
import mmap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.atomic import atomic_path, open_regular
from common.errors import PipelineError

if TYPE_CHECKING:
    import polars as pl

SEAL_KEY = "checksum"
MARK = b"crc32:"
ZEROS = b"0" * 8
UNSEALED = (MARK + ZEROS).decode()

# Three times as fast as zlib, which takes its place where it is missing.
FAST_ZLIB = importlib.import_module("zlib_ng.zlib_ng" if find_spec("zlib_ng") else "zlib")


def checksum_of(content: bytes) -> str:
    """Return the CRC-32 of some bytes; 8 hex digits."""
    return f"{FAST_ZLIB.crc32(content):08x}"


def write_sealed(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write content with its checksum in the place of `UNSEALED`; see `atomic_path`."""
    start, whole = content.rfind(MARK) + len(MARK), memoryview(content)
    parts = whole[:start], checksum_of(content).encode(), whole[start + len(ZEROS) :]
    with atomic_path(path, durable=durable) as temporary, temporary.open("wb") as file:
        file.writelines(parts)


def check_seal(path: Path, remedy: str) -> None:
    """Compare a file with the checksum that it may hold; PipelineError: they differ."""
    with open_regular(path) as file:
        if not file.seek(0, 2):
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.rfind(MARK) + len(MARK)
            held = content[start : start + len(ZEROS)]
            if start >= len(MARK) and held != _unsealed_checksum(content, start):
                raise PipelineError(f"{path}: damaged: it is not as it was written; {remedy}")


def _unsealed_checksum(content: mmap.mmap, start: int) -> bytes:
    with memoryview(content) as whole, whole[:start] as before, whole[start + len(ZEROS) :] as rest:
        checksum = FAST_ZLIB.crc32(rest, FAST_ZLIB.crc32(ZEROS, FAST_ZLIB.crc32(before)))
    return f"{checksum:08x}".encode()


def write_table(path: Path, table: "pl.DataFrame", **facts: str) -> None:
    """Write a table as parquet with its checksum, whole or not at all; raises as `atomic_path`.

    Args:
        facts: of the table, beside it in the file, where `table_facts` finds them.
    """
    content = io.BytesIO()  # the library has its own idea of a path's encoding
    table.write_parquet(content, metadata={**facts, SEAL_KEY: UNSEALED})
    write_sealed(path, content.getvalue())


def read_table(path: Path, schema: Mapping[str, Any] | None = None) -> "pl.DataFrame":
    """Read a parquet file; PipelineError: it is missing, damaged, or not of these columns."""
    import polars as pl

    check_seal(path, "remove the file, and it is made again")
    try:
        table = pl.read_parquet(path.read_bytes())
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        first = (str(error).splitlines() or [""])[0]
        raise PipelineError(f"{path}: cannot be read: {first}") from error
    if schema is not None and dict(table.schema) != schema:
        columns = ", ".join(table.columns)
        raise PipelineError(f"{path}: has columns {columns}; expected {', '.join(schema)}")
    return table


def table_facts(path: Path) -> dict[str, str]:
    """Return what `write_table` wrote beside a table that can be read; {} if nothing."""
    import polars as pl

    facts = pl.read_parquet_metadata(path.read_bytes())
    return {key: value for key, value in facts.items() if key not in (SEAL_KEY, "ARROW:schema")}
