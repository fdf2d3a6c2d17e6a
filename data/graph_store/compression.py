"""Blocks of a stored file, compressed with zstandard in whichever order of bytes is smallest.

Bytes of one column are alike: the indices of one config column, the high bytes of an integer. Put
side by side they compress better than row by row, and better still where each column gets a code of
its own and hardly any repeats are looked for: that comes within 2 % of a large table's entropy.
Rows that repeat, such as node features, go better as they are. So all three ways are tried for each
block.
"""

from types import ModuleType

import numpy as np

from common.errors import PipelineError
from data.npz.inflate import DamagedError

LEVEL = 9  # 12 gains less than 1 % and takes 1.5 times as long; 19 gains 3 % and takes ten times
LEVEL_BY_COLUMN = 1
HASH_LOG_BY_COLUMN = 6  # the least: a repeat by chance costs more than the code of its values
MIN_ROWS_BY_COLUMN = 512  # in shorter columns a code costs more than it saves
WANTED_ROWS = 8192
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 1 << 20, 8 << 20


def import_zstandard() -> ModuleType:
    """Import the package, where it is needed first.

    Raises:
        PipelineError: it is not installed.
    """
    try:
        import zstandard
    except ImportError as error:
        raise PipelineError(
            f"zstandard cannot be imported ({error}); archives of the store need it: "
            "pip install -r requirements.txt"
        ) from error
    return zstandard


def block_rows(width: int) -> int:
    """Return how many rows of `width` bytes a block holds."""
    return max(MIN_BLOCK_BYTES, min(MAX_BLOCK_BYTES, width * WANTED_ROWS)) // width


def pack_block(content: bytes, width: int) -> tuple[int, bytes]:
    """Compress rows of `width` bytes each.

    Returns:
        The width of the rows if the bytes were put column by column, else 1; the packed bytes.
    """
    zstd = import_zstandard()
    compressor = zstd.ZstdCompressor(level=LEVEL, write_checksum=True)
    packed = [(1, compressor.compress(content))]
    if width > 1:
        columns = _transposed(content, width)
        packed.append((width, compressor.compress(columns)))
        if len(columns) // width >= MIN_ROWS_BY_COLUMN:
            packed.append((width, _by_column(columns, len(columns) // width)))
    return min(packed, key=lambda way: len(way[1]))


def unpack_block(packed: bytes, n_bytes: int, width: int) -> bytes:
    """Return what was given to `pack_block`; never more memory than `n_bytes` asks for.

    Raises:
        DamagedError: the packed bytes are no such block.
    """
    zstd = import_zstandard()
    if n_bytes % width:
        raise DamagedError(f"a block of {n_bytes} bytes has no whole rows of {width}")
    try:
        claimed = zstd.frame_content_size(packed)
        if claimed != n_bytes:
            raise DamagedError(f"a block of {n_bytes} bytes would unpack to {claimed}")
        content: bytes = zstd.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise DamagedError(f"a block does not unpack ({error})") from error
    return _transposed(content, n_bytes // width) if width > 1 else content


def _transposed(content: bytes, width: int) -> bytes:
    """Return rows of `width` bytes as columns."""
    return np.frombuffer(content, np.uint8).reshape(-1, width).T.tobytes()


def _by_column(columns: bytes, length: int) -> bytes:
    """Compress columns of `length` bytes, each with a code of its own, as one frame."""
    zstd = import_zstandard()
    parameters = zstd.ZstdCompressionParameters.from_level(
        LEVEL_BY_COLUMN, source_size=len(columns), hash_log=HASH_LOG_BY_COLUMN, write_checksum=True
    )
    compressor = zstd.ZstdCompressor(compression_params=parameters)
    stream = compressor.compressobj(size=len(columns))
    pieces = []
    for start in range(0, len(columns), length):
        pieces.append(stream.compress(columns[start : start + length]))
        pieces.append(stream.flush(zstd.COMPRESSOBJ_FLUSH_BLOCK))
    return b"".join([*pieces, stream.flush()])
