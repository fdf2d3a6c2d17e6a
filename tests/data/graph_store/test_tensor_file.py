"""Tensor files hold what was written, to the bit, and are refused once a single bit is another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save_file

from common.errors import PipelineError
from data.graph_store.tensor_file import (
    TYPES,
    StreamedTensor,
    open_tensors,
    read_facts,
    write_tensors,
)
from tests.data.packing.tensor_parts import forged, parts

FACTS = {"version": "1", "source": 'größer "quoted"\n', "": ""}
SHAPES = [(), (1,), (0,), (7,), (3, 5), (0, 4), (4, 0), (2, 3, 4)]


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


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tensors = every_type()
    write_tensors(tmp_path / "file", tensors, facts=FACTS)
    opened = open_tensors(tmp_path / "file")
    assert opened.facts == FACTS == read_facts(tmp_path / "file")
    assert opened.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        check_same(opened.tensors[name], values)
        assert opened.tensors[name].size == 0 or not opened.tensors[name].flags.writeable


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    tensors = every_type()
    write_tensors(tmp_path / "file", tensors, facts=FACTS)
    with safetensors.safe_open(tmp_path / "file", framework="numpy") as opened:
        assert set(opened.keys()) == tensors.keys()
        assert FACTS.items() <= opened.metadata().items()
        for name, values in tensors.items():
            check_same(opened.get_tensor(name), values)


def test_tensors_are_aligned_to_their_types(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", every_type(), facts=FACTS)
    for values in open_tensors(tmp_path / "file").tensors.values():
        assert values.flags.aligned


def test_what_the_library_writes_is_read_once_it_has_checksums(tmp_path: Path) -> None:
    tensors = every_type(1)
    save_file(tensors, tmp_path / "plain", metadata={"version": "1"})
    with pytest.raises(PipelineError) as error:
        open_tensors(tmp_path / "plain")
    assert str(error.value) == (
        f"{tmp_path / 'plain'}: damaged: its header has no checksum; "
        "remove the file, and it is made again"
    )
    header, body = parts((tmp_path / "plain").read_bytes())
    (tmp_path / "checked").write_bytes(forged(header, body))
    opened = open_tensors(tmp_path / "checked")
    assert opened.facts == {"version": "1"}
    for name, values in tensors.items():
        check_same(opened.tensors[name], values)


def test_equal_input_gives_equal_bytes_whatever_its_order(tmp_path: Path) -> None:
    tensors = every_type()
    write_tensors(tmp_path / "one", tensors, facts=FACTS)
    write_tensors(tmp_path / "two", dict(reversed(tensors.items())), facts=FACTS)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("shape", [(0,), (1,), (10,), (10, 3), (10, 0), (0, 3)])
@pytest.mark.parametrize("rows_per_chunk", [1, 3, 10])
def test_chunks_give_the_same_bytes_as_the_whole(
    shape: tuple[int, ...], rows_per_chunk: int, tmp_path: Path
) -> None:
    values = np.random.default_rng(2).integers(0, 99, shape).astype(np.int32)
    chunks = [values[i : i + rows_per_chunk] for i in range(0, len(values), rows_per_chunk)]
    beside: dict[str, NDArray[Any]] = {
        "before": np.arange(3),
        "behind": np.arange(5, dtype=np.uint8),
    }
    streamed = StreamedTensor(values.dtype, values.shape, iter(chunks))
    write_tensors(tmp_path / "whole", {**beside, "values": values}, facts=FACTS)
    write_tensors(tmp_path / "chunks", {**beside, "values": streamed}, facts=FACTS)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "chunks").read_bytes()


@pytest.mark.parametrize("given", [(0, 3), (9, 3), (11, 3), (10, 2)])
def test_chunks_that_do_not_fill_the_shape_leave_nothing(
    given: tuple[int, int], tmp_path: Path
) -> None:
    chunks = np.array_split(np.zeros(given, np.float32), 3)
    streamed = StreamedTensor(np.dtype(np.float32), (10, 3), chunks)
    n_bytes = 4 * given[0] * given[1]
    with pytest.raises(ValueError, match=f"values: {n_bytes} bytes were given; expected 120"):
        write_tensors(tmp_path / "file", {"values": streamed}, facts={})
    assert not list(tmp_path.iterdir())


def test_a_stream_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    def chunks() -> Any:
        yield np.zeros(5)
        raise PipelineError("the source is damaged")

    write_tensors(tmp_path / "file", {"values": np.arange(3)}, facts={})
    before = (tmp_path / "file").read_bytes()
    streamed = StreamedTensor(np.dtype(np.float64), (10,), chunks())
    with pytest.raises(PipelineError, match="the source is damaged"):
        write_tensors(tmp_path / "file", {"values": streamed}, facts={})
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
