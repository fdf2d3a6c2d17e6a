"""The index of an npz archive, checked until every header and length in the file agrees.

An npz file is a zip archive of .npy members, and a zip archive says most things twice: before each
member and in the index at its end. `zipfile` believes the index. Here both must agree, members
must follow one another without a gap, and no size may be more than the data can inflate to. What
stays unchecked decides nothing: which system wrote a member, by which version, and its file mode.
"""

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from common.errors import PipelineError

LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
INDEX_ENTRY_BYTES = 46
INDEX_LENGTHS = struct.Struct("<HHH")  # of name, extra fields and comment; at byte 28 of an entry
INDEX_END = struct.Struct("<4sHHHHIIH")
WIDE_INDEX_END_BYTES = 76  # what zip64 puts before the end record: a wide one and its locator
UNKNOWN_32 = 0xFFFFFFFF
DESCRIPTOR_FLAG = 0x08
COMPRESSION_AND_NAME_FLAGS = 0x0806
ZIP64_FIELD = 1
# Extra fields of packers at work: zip64 sizes, NTFS and Unix times, Unix owners, Java's mark.
EXTRA_FIELDS = {ZIP64_FIELD, 0x000A, 0x5455, 0x7875, 0xCAFE}
# Deflate cannot shrink anything by more than this factor (zlib's technical notes).
MAX_DEFLATE_RATIO = 1032
MAX_SHOWN = 60
NO_ZIP = "File is not a zip file"  # zipfile's words


@dataclass(frozen=True)
class Member:
    """Where one array's bytes lie.

    Attributes:
        data_start: offset of its packed bytes in the file.
        packed_bytes: how many bytes are stored.
        n_bytes: how many they inflate to.
        checksum: CRC-32 of the inflated bytes.
        is_deflated: whether they are packed at all.
    """

    data_start: int
    packed_bytes: int
    n_bytes: int
    checksum: int
    is_deflated: bool


def read_index(path: Path) -> dict[str, Member]:
    """Return the members of an npz file by key, in the order of the file.

    Raises:
        PipelineError: not a zip archive, or its structure is damaged; the line names the file.
    """
    try:
        with path.open("rb") as raw:
            return _read_index(path, raw)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, struct.error) as error:
        reason = "" if str(error) == NO_ZIP else f" ({error})"  # the line says that by itself
        raise PipelineError(
            f"{path}: not a whole npz file{reason}; expected a zip archive of arrays"
        ) from error
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error


def shown(name: str) -> str:
    """Return a member's name fit for one line of a message, whatever it holds."""
    text = ascii(name)[1:-1]
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _read_index(path: Path, raw: IO[bytes]) -> dict[str, Member]:
    with zipfile.ZipFile(raw) as archive:
        infos, index_start = archive.infolist(), archive.start_dir
    _check_index_lengths(path, raw, index_start, len(infos))
    members: dict[str, Member] = {}
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        key = info.filename.removesuffix(".npy")
        if key == info.filename:
            _fail(path, key, "is no array; expected a name that ends in .npy")
        if key in members:
            _fail(path, key, "stands in the file twice; expected each key once")
        if info.header_offset != end:
            _fail(path, key, f"starts at byte {info.header_offset}, not {end}")
        _check_entry(path, key, info)
        data_start = _check_local_header(path, raw, key, info)
        members[key] = Member(
            data_start,
            info.compress_size,
            info.file_size,
            info.CRC,
            info.compress_type == zipfile.ZIP_DEFLATED,
        )
        end = data_start + info.compress_size
        if info.flag_bits & DESCRIPTOR_FLAG:
            end += _descriptor_bytes(path, raw, end, key, info)
    if end != index_start:
        raise PipelineError(f"{path}: bytes between the arrays and the index; damaged")
    return members


def _fail(path: Path, key: str, problem: str) -> NoReturn:
    raise PipelineError(f"{path}: key '{shown(key)}': {problem}")


def _check_index_lengths(path: Path, raw: IO[bytes], index_start: int, n_members: int) -> None:
    """Check that the index's entries and its end record fill the rest of the file exactly."""
    raw.seek(index_start)
    rest = raw.read()
    position = 0
    for _ in range(n_members):
        lengths = INDEX_LENGTHS.unpack_from(rest, position + 28)
        position += INDEX_ENTRY_BYTES + sum(lengths)
    gap = len(rest) - position - INDEX_END.size
    want = (
        *(b"PK\x05\x06", 0, 0, min(n_members, 0xFFFF), min(n_members, 0xFFFF)),
        *(min(position, UNKNOWN_32), min(index_start, UNKNOWN_32), 0),
    )
    if gap not in (0, WIDE_INDEX_END_BYTES) or INDEX_END.unpack(rest[-INDEX_END.size :]) != want:
        raise PipelineError(f"{path}: the end of the archive's index does not fit it; damaged")


def _check_entry(path: Path, key: str, info: zipfile.ZipInfo) -> None:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _fail(path, key, f"is packed by method {info.compress_type}; expected stored or deflate")
    if info.flag_bits & ~(DESCRIPTOR_FLAG | COMPRESSION_AND_NAME_FLAGS):
        _fail(path, key, "is encrypted or patched; expected a plain archive")
    if info.file_size > MAX_DEFLATE_RATIO * info.compress_size + 64:
        _fail(path, key, f"claims {info.file_size} bytes, more than its data can hold")
    plain = not (info.volume or info.reserved or info.comment) and info.internal_attr in (0, 1)
    if not plain or _extra_fields(info.extra) is None:
        _fail(path, key, "has an entry in the index that no npz writer makes; damaged")


def _extra_fields(extra: bytes) -> dict[int, bytes] | None:
    """Part a header's extra fields by their number; None if they are damaged."""
    fields: dict[int, bytes] = {}
    position = 0
    while position < len(extra):
        if position + 4 > len(extra):
            return None
        number, length = struct.unpack_from("<HH", extra, position)
        position += 4 + length
        if number not in EXTRA_FIELDS or number in fields or position > len(extra):
            return None
        fields[number] = extra[position - length : position]
    return fields


def _check_local_header(path: Path, raw: IO[bytes], key: str, info: zipfile.ZipInfo) -> int:
    """Check one member's own header against the index; return where its data starts."""
    raw.seek(info.header_offset)
    head = raw.read(LOCAL_HEADER.size)
    if len(head) < LOCAL_HEADER.size:
        _fail(path, key, "has no header of its own; the file is truncated or damaged")
    signature, version, flags, method, time, date, crc, packed, size, n_name, n_extra = (
        LOCAL_HEADER.unpack(head)
    )
    name = raw.read(n_name)
    fields = _extra_fields(raw.read(n_extra))
    year, month, day, hour, minute, second = info.date_time
    encoding = "utf-8" if flags & 0x800 else "cp437"
    agrees = (
        signature == b"PK\x03\x04"
        and name == info.orig_filename.encode(encoding)
        and flags == info.flag_bits
        and method == info.compress_type
        and version == info.extract_version
        and (time, date)
        == (hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day)
        and fields is not None
        and _sizes_agree(info, crc, (packed, size), fields.get(ZIP64_FIELD))
    )
    if not agrees:
        _fail(path, key, "the header and the archive's index disagree; the file is damaged")
    return info.header_offset + LOCAL_HEADER.size + n_name + n_extra


def _sizes_agree(
    info: zipfile.ZipInfo, crc: int, sizes: tuple[int, int], zip64: bytes | None
) -> bool:
    """Compare the sizes and checksum before a member with those of the index.

    A streamed member may leave them all 0: its writer knew them only afterwards.
    """
    streamed = bool(info.flag_bits & DESCRIPTOR_FLAG)
    exact = (info.compress_size, info.file_size)
    known = [(info.CRC, exact, struct.pack("<QQ", info.file_size, info.compress_size))]
    if streamed:
        known.append((0, (0, 0), bytes(16)))
    return any(
        crc == want_crc
        and sizes in (want, (UNKNOWN_32, UNKNOWN_32))
        and (zip64 == wide or (zip64 is None and sizes == want))
        for want_crc, want, wide in known
    )


def _descriptor_bytes(
    path: Path, raw: IO[bytes], offset: int, key: str, info: zipfile.ZipInfo
) -> int:
    """Check the record behind a streamed member; return its length, 12 to 24 bytes."""
    raw.seek(offset)
    record = raw.read(24)
    narrow = struct.pack("<III", info.CRC, *(s & UNKNOWN_32 for s in _sizes(info)))
    wide = struct.pack("<IQQ", info.CRC, *_sizes(info))
    for want in (b"PK\x07\x08" + wide, b"PK\x07\x08" + narrow, wide, narrow):
        if record.startswith(want):
            return len(want)
    _fail(path, key, "the record behind it and the archive's index disagree; damaged")


def _sizes(info: zipfile.ZipInfo) -> tuple[int, int]:
    return info.compress_size, info.file_size
