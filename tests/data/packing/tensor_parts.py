"""Tensor files taken apart and put together again, with right checksums on wrong content."""

import json
import struct
import zlib
from typing import Any


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a file's header and what follows it."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


def in_file(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def forged(header: dict[str, Any], body: bytes) -> bytes:
    """Return a file whose checksums are right, whatever its header says."""
    metadata = dict(header.get("__metadata__", {}))
    metadata.pop("crc32", None)
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = map(int, entry["data_offsets"])
            metadata[f"crc32:{name}"] = f"{zlib.crc32(body[start:end]):08x}"
    return marked({**header, "__metadata__": metadata}, body)


def marked(header: dict[str, Any], body: bytes) -> bytes:
    """Return a file whose header has a right checksum, and tensors those that it says."""
    header["__metadata__"].pop("crc32", None)
    checksum = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    header["__metadata__"]["crc32"] = f"{checksum:08x}"
    return in_file(json.dumps(header).encode(), body)
