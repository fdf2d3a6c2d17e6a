"""Tables as parquet files: whole or absent, and with a checksum of their own."""

from pathlib import Path

import polars as pl

from common.atomic import atomic_path
from common.checksums import SEAL_KEY, UNSEALED, check_seal, sealed
from common.errors import PipelineError


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a table, whole or not at all.

    Raises:
        PipelineError: the file cannot be written.
    """
    with atomic_path(path) as temporary:
        table.write_parquet(temporary, metadata={SEAL_KEY: UNSEALED})
        temporary.write_bytes(sealed(temporary.read_bytes()))


def read_table(path: Path) -> pl.DataFrame:
    """Read a table, after checking every byte; a table from elsewhere has no checksum.

    Raises:
        PipelineError: the file is missing or damaged.
    """
    check_seal(path, "remove the file, and it is made again")
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        first = (str(error).splitlines() or [""])[0]
        raise PipelineError(f"{path}: cannot be read: {first}") from error
