"""Ways to damage an npz file's bytes and its structure as a zip archive, from a seed."""

import io
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.lib import format as npy_format
from numpy.random import Generator
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
PICKLED_NONE = b"\x80\x04N."
# Bytes at the end of a small archive that are mostly its index.
INDEX_BYTES = 500
# Returns the bytes of a damaged file, and the keys of which the error must name one (if any).
Damage = Callable[[Arrays, Generator], tuple[bytes, Sequence[str]]]


def read_arrays(content: bytes) -> dict[str, NDArray[np.generic]]:
    with np.load(io.BytesIO(content)) as archive:
        return {key: archive[key] for key in archive.files}


def npy(array: NDArray[np.generic], version: tuple[int, int] = (1, 0)) -> bytes:
    if array.dtype.hasobject:  # spelled out, so that nothing here can pickle
        header = {"descr": "|O", "fortran_order": False, "shape": array.shape}
        return raw_npy(f"{header}\n", PICKLED_NONE)
    stream = io.BytesIO()
    npy_format.write_array(stream, array, version=version, allow_pickle=False)
    return stream.getvalue()


def raw_npy(header: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


def packed(members: Sequence[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        # Some tests need duplicate members.
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


def members_of(arrays: Arrays) -> list[tuple[str, bytes]]:
    return [(f"{key}.npy", npy(values)) for key, values in arrays.items()]


def repacked(arrays: Arrays, **changed: NDArray[np.generic] | bytes) -> bytes:
    members = dict(members_of(arrays))
    for key, values in changed.items():
        members[f"{key}.npy"] = values if isinstance(values, bytes) else npy(values)
    return packed(list(members.items()))


def flipped(content: bytes, position: int, mask: int) -> bytes:
    changed = bytearray(content)
    changed[position] ^= mask
    return bytes(changed)


def some_key(arrays: Arrays, rng: Generator) -> str:
    return str(rng.choice(sorted(arrays)))


def truncated(content: bytes, rng: Generator) -> bytes:
    n_lost = rng.integers(1, len(content)) if rng.random() < 0.5 else rng.integers(1, 23)
    return content[: -int(n_lost)]


def with_bytes_in_front(content: bytes, rng: Generator) -> bytes:
    return rng.bytes(int(rng.integers(1, 50))) + content


def with_bytes_behind(content: bytes, rng: Generator) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 50)))


def without_bytes(content: bytes, rng: Generator) -> bytes:
    start = int(rng.integers(len(content) - 40))
    return content[:start] + content[start + int(rng.integers(1, 40)) :]


def with_flipped_bit(content: bytes, rng: Generator) -> bytes:
    start = 0 if rng.random() < 0.5 else max(0, len(content) - INDEX_BYTES)
    return flipped(content, int(rng.integers(start, len(content))), 1 << int(rng.integers(8)))


BYTE_DAMAGES = (truncated, with_bytes_in_front, with_bytes_behind, without_bytes, with_flipped_bit)


def not_an_archive(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
    contents = (b"", b"PK\x03\x04", b"<html>404</html>\n", npy(np.zeros(3)), rng.bytes(500))
    return contents[int(rng.integers(len(contents)))], ()


def member_twice(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
    key = some_key(arrays, rng)
    members = [*members_of(arrays), (f"{key}.npy", npy(arrays[key]))]
    return packed(members), (key,)


def member_of_another_name(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
    key = some_key(arrays, rng)
    names = (f"../{key}.npy", f"/tmp/{key}.npy", f"{key}", f"{key}.npy/", f"{key}\n.npy", ".npy")
    name = names[int(rng.integers(len(names)))]
    members = [(name if n == f"{key}.npy" else n, c) for n, c in members_of(arrays)]
    return packed(members), (key, name, f"{name}.npy")


def key_dropped(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
    key = some_key(arrays, rng)
    return packed([(n, c) for n, c in members_of(arrays) if n != f"{key}.npy"]), (key,)


def other_packing(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
    method = (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)[int(rng.integers(2))]
    return packed(members_of(arrays), method), tuple(arrays)


def encrypted_flag(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
    content = bytearray(packed(members_of(arrays)))
    for place in (6, content.index(b"PK\x01\x02") + 8):
        content[place] |= 1
    return bytes(content), tuple(arrays)


def bomb(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
    """Claim a huge shape over a little data, in the npy header or in the archive's headers too."""
    key = some_key(arrays, rng)
    kind = npy_format.dtype_to_descr(arrays[key].dtype)
    length = int(rng.choice([10**9, 10**15, 2**62, 2**63, 10**30]))
    lengths = (length,) * max(1, arrays[key].ndim)
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {lengths}}}\n"
    content = repacked(arrays, **{key: raw_npy(header, bytes(64))})
    if rng.random() < 0.5:
        entry = zipfile.ZipFile(io.BytesIO(content)).getinfo(f"{key}.npy")
        claimed = struct.pack("<I", 2**32 - 2)
        real = struct.pack("<III", entry.CRC, entry.compress_size, entry.file_size)
        content = content.replace(real, real[:8] + claimed)
    return content, (key,)


def strange_npy_header(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
    key = some_key(arrays, rng)
    good = npy(arrays[key])
    kind = npy_format.dtype_to_descr(arrays[key].dtype)
    start = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': "
    headers = (
        npy(arrays[key], (3, 0)),
        good[:6] + b"\x09" + good[7:],
        good[: int(rng.integers(1, 60))],
        b"",
        good + b"\x00",
        good[:-1],
        raw_npy(start + "(-1,)}\n", bytes(8)),
        raw_npy(start + "(" * 300 + "}\n"),
        raw_npy(start + "-" * 5000 + "1}\n"),
        raw_npy(start + f"({'9' * 4000}, {'9' * 4000})}}\n"),
        raw_npy(start + "(1.5,)}\n", bytes(8)),
        raw_npy(start + "(3L,)}\n", bytes(24)),
        raw_npy("{'descr': (), 'fortran_order': False, 'shape': (1,)}\n"),
        raw_npy("{'descr': 7, 'fortran_order': 2, 'shape': None}\n"),
        raw_npy("{'descr': [('a\\n', '<f4')], 'fortran_order': False, 'shape': (1,)}\n", bytes(4)),
        raw_npy("__import__('os').abort()\n"),
    )
    return repacked(arrays, **{key: headers[int(rng.integers(len(headers)))]}), (key,)


ARCHIVE_DAMAGES: tuple[Damage, ...] = (
    *(not_an_archive, member_twice, member_of_another_name, key_dropped, other_packing),
    *(encrypted_flag, bomb, strange_npy_header),
)
