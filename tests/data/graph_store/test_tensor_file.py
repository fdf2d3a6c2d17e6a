"""Tensor files hold what was written, to the bit, and are refused once a single bit is another."""

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save_file

from common.checksums import seal
from common.errors import PipelineError
from data.graph_store.stored_graph import TYPES, open_tensors, read_facts, write_tensors

FACTS = {"version": "1", "source": 'größer "quoted"\n', "": ""}
SHAPES = [(), (1,), (0,), (7,), (3, 5), (0, 4), (4, 0), (2, 3, 4)]
MAX_ALLOCATED = 4 << 20


def every_type(seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return tensors of every type and of many shapes, some of them empty."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[Any]] = {}
    for name, dtype in TYPES.items():
        for shape in SHAPES:
            values = np.asarray(rng.integers(0, 2, shape) if name == "BOOL" else rng.random(shape))
            values = values if name in ("BOOL", "F32", "F64") else values * 100
            tensors[f"{name}-{'x'.join(map(str, shape))}"] = np.asarray(values.astype(dtype))
    return tensors


def check_same(one: NDArray[Any], other: NDArray[Any]) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
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
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with pytest.raises(PipelineError) as error:
        open_tensors(path)
    line = str(error.value)
    assert line.startswith(f"{path}: damaged: ") and len(line) < len(str(path)) + 300
    return line


def test_what_is_written_is_read_here_and_by_the_library(tmp_path: Path) -> None:
    tensors = every_type()
    write_tensors(tmp_path / "file", tensors, facts=FACTS)
    opened = open_tensors(tmp_path / "file")
    assert opened.facts == FACTS == read_facts(tmp_path / "file")
    assert opened.tensors.keys() == tensors.keys()
    with safetensors.safe_open(tmp_path / "file", framework="numpy") as by_library:
        assert set(by_library.keys()) == tensors.keys()
        for name, values in tensors.items():
            check_same(by_library.get_tensor(name), values)
            check_same(opened.tensors[name], values)
            assert values.size == 0 or not opened.tensors[name].flags.writeable
            assert opened.tensors[name].flags.aligned


def test_equal_input_gives_equal_bytes_whatever_its_order(tmp_path: Path) -> None:
    tensors = every_type()
    write_tensors(tmp_path / "one", tensors, facts=FACTS)
    write_tensors(
        tmp_path / "two", dict(reversed(tensors.items())), facts=dict(reversed(FACTS.items()))
    )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_each_flipped_bit_is_noticed_and_none_costs_memory(small: bytes, tmp_path: Path) -> None:
    tracemalloc.start()
    for position in range(len(small)):
        changed = bytearray(small)
        changed[position] ^= 1 << (position % 8)
        refusal(tmp_path / f"file{position}", bytes(changed))
    assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED
    tracemalloc.stop()


def test_a_file_cut_anywhere_or_longer_is_refused(small: bytes, tmp_path: Path) -> None:
    for length in range(len(small)):
        refusal(tmp_path / "file", small[:length])
    refusal(tmp_path / "file", small + b"\0")


def test_bytes_are_checked_once_and_again_when_the_file_is_another(
    small: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(small)
    open_tensors(path)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert open_tensors(path).tensors["bytes"][-1] == ord("x")  # not read again
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(PipelineError, match="not as it was written"):
        open_tensors(path)


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"null", b"[]", b"{}", b"\xff{}", b"[" * 100_000, b'{"a":' * 100_000),
        b'{"__metadata__": {}}',
        b'{"__metadata__": {"facts": "[]"}}',
        b'{"__metadata__": {"facts": "{\\"version\\": 1}"}}',
        b'{"__metadata__": {"facts": "[[[[[[[["}}',
        b'{"__metadata__": {"facts": "{}"}, "a": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_header_that_is_none_is_refused(header: bytes, tmp_path: Path) -> None:
    assert " header" in refusal(tmp_path / "file", struct.pack("<Q", len(header)) + header)


@pytest.mark.parametrize(
    "change",
    [
        *({"shape": shape} for shape in ([-2, -2], [2, 3], ["2", "2"], 4, [2**62 + 1, 4])),
        *({"data_offsets": offsets} for offsets in ([16, 32], [28, 44], [40, 24], [24])),
        *({"dtype": dtype} for dtype in ("F128", ["F32"], "F64", "BF16", None)),
    ],
)
def test_a_hostile_entry_is_refused_though_its_checksum_is_right(
    change: dict[str, Any], small: bytes, tmp_path: Path
) -> None:
    (length,) = struct.unpack("<Q", small[:8])
    header = json.loads(small[8 : 8 + length])
    header["floats"].update(change)
    if change == {"dtype": "BF16"}:  # the library's, but not of this project
        header["floats"]["shape"] = [4, 2]
    text = json.dumps(header).encode()
    path = tmp_path / "file"
    path.write_bytes(struct.pack("<Q", len(text)) + text + small[8 + length :])
    seal(path)
    assert " header" in refusal(path, path.read_bytes())


def test_a_file_without_facts_a_missing_one_and_a_folder_are_one_line(tmp_path: Path) -> None:
    save_file({"a": np.arange(3)}, tmp_path / "plain", metadata={"version": "1"})
    for read in (open_tensors, read_facts):
        with pytest.raises(PipelineError, match=r"plain: damaged: .*it is made again"):
            read(tmp_path / "plain")
        for path in (tmp_path / "missing", tmp_path):
            with pytest.raises(PipelineError, match="cannot be read: "):
                read(path)
