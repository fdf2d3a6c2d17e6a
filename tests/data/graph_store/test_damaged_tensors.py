"""A tensor file that is damaged, cut or made in bad faith is one line, soon and without memory."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store.tensor_file import open_tensors, read_facts, write_tensors
from tests.data.packing.tensor_parts import forged, in_file, marked, parts

MAX_ALLOCATED = 4 << 20


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with a few tensors."""
    path = tmp_path_factory.mktemp("small") / "file"
    tensors: dict[str, NDArray[Any]] = {
        "wide": np.arange(3),
        "floats": np.eye(2, dtype=np.float32),
        "none": np.empty((0, 2), np.uint8),
        "bytes": np.arange(5, dtype=np.uint8),
    }
    write_tensors(path, tensors, facts={"version": "1", "source": "0123456789abcdef"})
    return path.read_bytes()


def refusal(path: Path, content: bytes) -> str:
    """Return the line that refuses a file of this content, and starts with its name."""
    path.write_bytes(content)
    with pytest.raises(PipelineError) as error:
        open_tensors(path)
    line = str(error.value)
    assert line.startswith(f"{path}: damaged: ") and len(line) < len(str(path)) + 300
    assert line.isprintable()
    return line


def test_each_flipped_bit_is_noticed_and_none_costs_memory(small: bytes, tmp_path: Path) -> None:
    tracemalloc.start()
    for position in range(len(small)):
        changed = bytearray(small)
        changed[position] ^= 1 << (position % 8)
        refusal(tmp_path / "file", bytes(changed))
    assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED
    tracemalloc.stop()


def test_each_flipped_bit_of_the_facts_is_noticed_without_the_tensors(
    small: bytes, tmp_path: Path
) -> None:
    end = 8 + struct.unpack("<Q", small[:8])[0]
    for position in range(end):
        changed = bytearray(small)
        changed[position] ^= 1 << (7 - position % 8)
        (tmp_path / "file").write_bytes(changed)
        with pytest.raises(PipelineError):
            read_facts(tmp_path / "file")


def test_a_file_cut_anywhere_or_longer_is_refused(small: bytes, tmp_path: Path) -> None:
    for length in range(len(small)):
        refusal(tmp_path / "file", small[:length])
    assert "does not end with its last tensor" in refusal(tmp_path / "file", small + b"\0")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"", id="no header"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="no facts"),
        pytest.param(b'{"__metadata__": []}', id="facts are a list"),
        pytest.param(b'{"__metadata__": {"crc32": 0}}', id="a checksum that is a number"),
        pytest.param(b"\xff{}", id="not UTF-8"),
        pytest.param(b"[" * 100_000, id="deep lists"),
        pytest.param(b'{"a":' * 100_000, id="deep objects"),
        pytest.param(b'{"__metadata__": {"crc32": "0"}, "a": ' + b"9" * 5000 + b"}", id="digits"),
    ],
)
def test_a_header_that_is_none_is_refused(header: bytes, tmp_path: Path) -> None:
    assert " header" in refusal(tmp_path / "file", in_file(header, b"body"))


@pytest.mark.parametrize(("opening", "closing"), [(b'{"a":', b"}"), (b"[", b"]")])
def test_a_header_of_any_depth_is_refused(opening: bytes, closing: bytes, tmp_path: Path) -> None:
    for depth in range(1, 1100, 3):
        deep = opening * depth + b"1" + closing * depth
        header = b'{"__metadata__": {"crc32": "0"}, "a": ' + deep + b"}"
        assert " header" in refusal(tmp_path / "file", in_file(header))


@pytest.mark.parametrize("length", [2**20 + 1, 2**31, 2**32 + 4, 2**63, 2**64 - 1])
def test_a_huge_header_is_refused_without_reading_it(
    length: int, small: bytes, tmp_path: Path
) -> None:
    tracemalloc.start()
    line = refusal(tmp_path / "file", struct.pack("<Q", length) + small[8:])
    assert "no readable header" in line
    assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED
    tracemalloc.stop()


def changed_entry(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["floats"].update(changes)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "negative length": (changed_entry(shape=[-2, -2]), "lies"),
    "other length": (changed_entry(shape=[2, 3]), "lies"),
    "length is text": (changed_entry(shape=["2", "2"]), "lies"),
    "length is a fraction": (changed_entry(shape=[2.0, 2.0]), "lies"),
    "length is infinite": (changed_entry(shape=[float("inf")]), "lies"),
    "length is true": (changed_entry(shape=[True, 4]), "lies"),
    "length of thousands of digits": (changed_entry(shape=[10**4000] * 100), "lies"),
    "shape is a number": (changed_entry(shape=4), "lies"),
    "shape is text": (changed_entry(shape="22"), "lies"),
    "a product of 2 to the 64": (changed_entry(shape=[2**32, 2**32]), "lies"),
    "a product that wraps to the true one": (changed_entry(shape=[2**62 + 1, 4]), "lies"),
    "overlap": (changed_entry(data_offsets=[16, 32]), "lies"),
    "a gap": (changed_entry(data_offsets=[28, 44]), "lies"),
    "backwards": (changed_entry(data_offsets=[40, 24]), "lies"),
    "one offset": (changed_entry(data_offsets=[24]), "lies"),
    "unknown type": (changed_entry(dtype="F128"), "lies"),
    "type is a list": (changed_entry(dtype=["F32"]), "lies"),
    "wider type": (changed_entry(dtype="F64"), "lies"),
    "no type": (lambda header: header["floats"].pop("dtype"), "lies"),
    "beyond the end": (
        lambda header: header["bytes"].update(shape=[2**60], data_offsets=[40, 40 + 2**60]),
        "tensor 'bytes' is not as it was written",
    ),
    "empty, yet too long": (
        lambda header: header["none"].update(shape=[0, 2**62, 2**62]),
        "tensor 'none' has an impossible shape",
    ),
    "too many axes": (changed_entry(shape=[1] * 1000 + [4]), "impossible shape"),
    "a fact is a number": (
        lambda header: header["__metadata__"].update(version=1),
        "facts that are no text",
    ),
    "a fact is a list": (
        lambda header: header["__metadata__"].update(version=["1"]),
        "facts that are no text",
    ),
    "a name of several lines": (
        lambda header: header.update({"\n\x1b[2J" * 99: header.pop("bytes") | {"dtype": "X"}}),
        "lies",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused(name: str, small: bytes, tmp_path: Path) -> None:
    change, problem = HOSTILE[name]
    header, body = parts(small)
    good = forged(header, body)
    (tmp_path / "good").write_bytes(good)
    open_tensors(tmp_path / "good")
    checksums = parts(good)[0]["__metadata__"]
    change(header)
    header["__metadata__"].pop("crc32")
    header["__metadata__"].update({k: v for k, v in checksums.items() if ":" in k})
    tracemalloc.start()
    line = refusal(tmp_path / "file", marked(header, body))
    assert problem in line
    assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED
    tracemalloc.stop()


def test_a_name_that_is_given_twice_is_refused(small: bytes, tmp_path: Path) -> None:
    header, body = parts(small)
    text = json.dumps(header)
    again = text[:-1] + ', "bytes": ' + json.dumps(header["bytes"]) + "}"
    assert json.loads(again) == header
    refusal(tmp_path / "file", in_file(again.encode(), body))


def test_an_entry_that_is_no_object_is_refused(small: bytes, tmp_path: Path) -> None:
    header, body = parts(small)
    entries: list[Any] = [None, 1, "text", ["dtype"], [], {}]
    for entry in entries:
        header["bytes"] = entry
        line = refusal(tmp_path / "file", marked(header, body))
        assert "tensor 'bytes' lies" in line


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    for read in (open_tensors, read_facts):
        for path in (tmp_path / "missing", tmp_path):
            with pytest.raises(PipelineError, match="cannot be read: "):
                read(path)
