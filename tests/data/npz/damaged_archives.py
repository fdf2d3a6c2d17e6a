"""Ways to damage an npz file's bytes and its structure as a zip archive, from a seed."""

import io
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib import format as npy_format
from numpy.random import Generator
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
# Offsets in an index entry: system, version, text flag and file mode. The arrays do not depend on
# these fields, so a change of them is no damage.
MEANINGLESS_IN_INDEX = {4, 5, 36, 38, 39, 40, 41}


@dataclass(frozen=True)
class Damaged:
    """A damaged file: its bytes, and the keys of which the error must name one (if any)."""

    content: bytes
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Victim:
    """A good file: its bytes and its arrays."""

    content: bytes
    arrays: Arrays

    def open(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(io.BytesIO(self.content))

    def entries(self) -> list[zipfile.ZipInfo]:
        return self.open().infolist()

    def inflated(self, name: str) -> bytes | None:
        try:
            return self.open().read(name)
        except Exception:
            return None

    def data_start(self, entry: zipfile.ZipInfo) -> int:
        lengths = self.content[entry.header_offset + 26 : entry.header_offset + 30]
        return entry.header_offset + 30 + sum(struct.unpack("<HH", lengths))


PICKLED_NONE = b"\x80\x04N."

Damage = Callable[[Victim, Generator], Damaged]


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


def _mask(rng: Generator) -> int:
    return 1 << int(rng.integers(8)) if rng.random() < 0.7 else int(rng.integers(1, 256))


def _entry(victim: Victim, rng: Generator) -> zipfile.ZipInfo:
    entries = victim.entries()
    return entries[int(rng.integers(len(entries)))]


# --- bytes --------------------------------------------------------------------------------------


def truncated(victim: Victim, rng: Generator) -> Damaged:
    length = len(victim.content)
    left = rng.integers(length) if rng.random() < 0.5 else length - rng.integers(1, 23)
    return Damaged(victim.content[: int(left)])


def bytes_in_front(victim: Victim, rng: Generator) -> Damaged:
    return Damaged(rng.bytes(int(rng.integers(1, 50))) + victim.content)


def bytes_behind(victim: Victim, rng: Generator) -> Damaged:
    return Damaged(victim.content + rng.bytes(int(rng.integers(1, 50))))


def bytes_lost(victim: Victim, rng: Generator) -> Damaged:
    start = int(rng.integers(len(victim.content) - 40))
    return Damaged(victim.content[:start] + victim.content[start + int(rng.integers(1, 40)) :])


def not_an_archive(victim: Victim, rng: Generator) -> Damaged:
    contents = (b"", b"PK\x03\x04", b"<html>404</html>\n", npy(np.zeros(3)), rng.bytes(500))
    return Damaged(contents[int(rng.integers(len(contents)))])


def local_header_flipped(victim: Victim, rng: Generator) -> Damaged:
    entry = _entry(victim, rng)
    place = rng.integers(entry.header_offset, victim.data_start(entry))
    return Damaged(flipped(victim.content, int(place), _mask(rng)))


def index_flipped(victim: Victim, rng: Generator) -> Damaged:
    harmless, position = set(), victim.open().start_dir
    for entry in victim.entries():
        harmless |= {position + offset for offset in MEANINGLESS_IN_INDEX}
        position += 46 + len(entry.filename) + len(entry.extra)
    places = np.arange(victim.open().start_dir, len(victim.content))
    place = rng.choice(np.setdiff1d(places, list(harmless)))
    return Damaged(flipped(victim.content, int(place), _mask(rng)))


def data_flipped(victim: Victim, rng: Generator) -> Damaged:
    """Flip bits of packed data until plain inflating no longer gives the same arrays."""
    while True:
        entry = _entry(victim, rng)
        start = victim.data_start(entry)
        place = int(rng.integers(start, start + entry.compress_size))
        content = flipped(victim.content, place, _mask(rng))
        good = victim.inflated(entry.filename)
        if Victim(content, {}).inflated(entry.filename) != good:
            return Damaged(content, (entry.filename.removesuffix(".npy"),))


# --- structure ----------------------------------------------------------------------------------


def some_key(victim: Victim, rng: Generator) -> str:
    return str(rng.choice(sorted(victim.arrays)))


def member_twice(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    members = [*members_of(victim.arrays), (f"{key}.npy", npy(victim.arrays[key]))]
    return Damaged(packed(members), (key,))


def member_of_another_name(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    names = (f"../{key}.npy", f"/tmp/{key}.npy", f"{key}", f"{key}.npy/", f"{key}\n.npy", ".npy")
    name = names[int(rng.integers(len(names)))]
    members = [(name if n == f"{key}.npy" else n, c) for n, c in members_of(victim.arrays)]
    return Damaged(packed(members), (key, name, f"{name}.npy"))


def other_packing(victim: Victim, rng: Generator) -> Damaged:
    method = (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)[int(rng.integers(2))]
    return Damaged(packed(members_of(victim.arrays), method), tuple(victim.arrays))


def encrypted_flag(victim: Victim, rng: Generator) -> Damaged:
    content, entry = bytearray(victim.content), victim.entries()[0]
    for place in (entry.header_offset + 6, victim.open().start_dir + 8):
        content[place] |= 1
    return Damaged(bytes(content), (entry.filename.removesuffix(".npy"),))


def bomb(victim: Victim, rng: Generator) -> Damaged:
    """Claim a huge shape over a little data, in the npy header or in the archive's headers too."""
    key = some_key(victim, rng)
    kind = npy_format.dtype_to_descr(victim.arrays[key].dtype)
    length = int(rng.choice([10**9, 10**15, 2**62, 2**63, 10**30]))
    lengths = (length,) * max(1, victim.arrays[key].ndim)
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {lengths}}}\n"
    content = repacked(victim.arrays, **{key: raw_npy(header, bytes(64))})
    if rng.random() < 0.5:
        entry = next(e for e in Victim(content, {}).entries() if e.filename == f"{key}.npy")
        claimed = struct.pack("<I", 2**32 - 2)
        real = struct.pack("<III", entry.CRC, entry.compress_size, entry.file_size)
        content = content.replace(real, real[:8] + claimed)
    return Damaged(content, (key,))


def strange_npy_header(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    good = npy(victim.arrays[key])
    kind = npy_format.dtype_to_descr(victim.arrays[key].dtype)
    start = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': "
    headers = (
        npy(victim.arrays[key], (3, 0)),
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
    return Damaged(
        repacked(victim.arrays, **{key: headers[int(rng.integers(len(headers)))]}), (key,)
    )


ARCHIVE_DAMAGES: tuple[Damage, ...] = (
    *(truncated, bytes_in_front, bytes_behind, bytes_lost, not_an_archive),
    *(local_header_flipped, index_flipped, data_flipped),
    *(member_twice, member_of_another_name, other_packing, encrypted_flag),
    *(bomb, strange_npy_header),
)
