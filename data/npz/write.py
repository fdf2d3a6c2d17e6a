"""Write npz archives of identical bytes for identical content, large members piece by piece.

zlib-ng deflates about twice as fast as zlib, and smaller at the same level; zlib takes its place
where it is not installed. The bytes are those of the library at hand, the content is the same.
"""

import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike, NDArray

from common.atomic import atomic_path
from common.checksums import FAST_ZLIB

COMPRESSION_LEVEL = 4  # of zlib-ng: configs shrink about 30-fold, as in the real files


@dataclass(frozen=True)
class Streamed:
    """An array of known shape whose rows are made while they are written.

    `pieces` is called once and yields consecutive blocks of rows, together `shape[0]` of them.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike
    pieces: Callable[[], Iterable[NDArray[np.generic]]]


NpzMember = NDArray[np.generic] | Streamed


def write_npz(path: Path, members: Mapping[str, NpzMember]) -> None:
    """Write `members` to `path` in their order, whole or not at all.

    Entries carry no clock time: equal content gives equal bytes.

    Raises:
        PipelineError: the file cannot be written.
    """
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(
            temporary, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL
        ) as archive,
    ):
        for name, member in members.items():
            # Opened by name, an entry gets the fixed date 1980-01-01.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                # zipfile has no public way to choose the deflater; it starts with zlib's.
                deflater = FAST_ZLIB.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
                vars(stream)["_compressor"] = deflater
                dtype = np.dtype(member.dtype)
                kind = npy_format.dtype_to_descr(dtype)
                description = {"descr": kind, "fortran_order": False, "shape": member.shape}
                npy_format.write_array_header_1_0(stream, description)
                for piece in member.pieces() if isinstance(member, Streamed) else [member]:
                    stream.write(np.ascontiguousarray(piece, dtype).data)
