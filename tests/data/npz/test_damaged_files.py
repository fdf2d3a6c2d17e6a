"""Damaged copies: each is refused with one line that names the file and the key."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph
from data.tree import GraphFile, find_graphs
from tests.data.graph_store.test_store import check_same_graph
from tests.data.npz.damaged_archives import (
    ARCHIVE_DAMAGES,
    BYTE_DAMAGES,
    Arrays,
    Damage,
    read_arrays,
    repacked,
    some_key,
)

Values = NDArray[np.generic]
Change = Callable[[Values, Generator], Values]
N_COPIES = 4
PER_CONFIG = ("node_config_feat", "config_feat", "config_runtime", "config_runtime_normalizers")
NOT_FINITE = (np.nan, np.inf, -np.inf)


def with_one_of(*numbers: float) -> Change:
    """Return a change of one value of an array."""

    def change(values: Values, rng: Generator) -> Values:
        values.reshape(-1)[rng.integers(values.size)] = numbers[rng.integers(len(numbers))]
        return values

    return change


def array_damage(change: Change, key: str = "", *, may_name_others: bool = False) -> Damage:
    """Return a damage of one array, by default of any."""

    def damage(arrays: Arrays, rng: Generator) -> tuple[bytes, Sequence[str]]:
        chosen = key or some_key(arrays, rng)
        values = change(arrays[chosen].copy(), rng)
        named = tuple(arrays) if may_name_others else (chosen,)
        return repacked(arrays, **{chosen: values}), named

    return damage


def emptied(*keys: str, named: tuple[str, ...]) -> Damage:
    def damage(arrays: Arrays, _: Generator) -> tuple[bytes, Sequence[str]]:
        empty = {key: arrays[key][:0] for key in keys if key in arrays}
        return repacked(arrays, **empty), named

    return damage


def no_configurable_node(arrays: Arrays, _: Generator) -> tuple[bytes, Sequence[str]]:
    key = "node_config_feat"
    changed = {"node_config_ids": arrays["node_config_ids"][:0], key: arrays[key][:, :0]}
    return repacked(arrays, **changed), ("node_config_ids",)


def as_another_type(values: Values, rng: Generator) -> Values:
    return values.astype(rng.choice(("<c8", "|b1", "<U3", "<M8[s]", "<f4,<f4")))


def with_other_axes(values: Values, rng: Generator) -> Values:
    return np.asarray([values[None], values[..., None], values.ravel()[0]][rng.integers(3)])


def a_row_less_or_more(values: Values, rng: Generator) -> Values:
    return [values[:-1], values[:0], np.concatenate([values, values[-1:]])][rng.integers(3)]


def with_impossible_layout(values: Values, rng: Generator) -> Values:
    values[rng.integers(len(values)), rng.integers(134, 140)] = rng.choice([6, -2, 0.5, 1e30])
    return values


def half_hidden(values: Values, rng: Generator) -> Values:
    values[:] = np.arange(len(values)) + 1
    values[rng.choice(len(values), rng.integers(1, len(values)), replace=False)] = 0
    return values


def wrong_boundaries(values: Values, rng: Generator) -> Values:
    n = int(values[0, -1])
    choices = ([0], [0, n - 1], [1, n], [0, n, n - 1, n], [n, 0], [], [-1, n])
    return np.asarray([choices[rng.integers(len(choices))]], np.int64).reshape(1, -1)


OUTSIDE = with_one_of(-1, 10**6, 2**40, -(2**63))
NODES = ("node_feat", "node_opcode", "edge_index")
SHARED_DAMAGES: dict[str, Damage] = {
    "another type": array_damage(as_another_type),
    "number that does not fit": array_damage(
        lambda values, rng: with_one_of(0.1, 1e300)(values.astype("<f8"), rng)
    ),
    "pickled objects": array_damage(lambda values, _: values.astype(object)),
    "other axes": array_damage(with_other_axes),
    "other length": array_damage(a_row_less_or_more, "config_runtime", may_name_others=True),
    "column lost": array_damage(lambda values, _: values[:, :-1].copy(), "node_feat"),
    "zero configs": emptied(*PER_CONFIG, named=("config_runtime",)),
    "zero nodes": emptied(*NODES, named=NODES),
    "edge outside": array_damage(OUTSIDE, "edge_index"),
    "impossible layout": array_damage(with_impossible_layout, "node_feat"),
    "runtimes half hidden": array_damage(half_hidden, "config_runtime"),
    "features not finite": array_damage(with_one_of(*NOT_FINITE), "node_feat"),
    "negative runtime": array_damage(with_one_of(-1, -(2**63)), "config_runtime"),
}
LAYOUT_DAMAGES: dict[str, Damage] = {
    "config id outside": array_damage(OUTSIDE, "node_config_ids"),
    "config id twice": array_damage(lambda values, _: values.clip(values[1]), "node_config_ids"),
    "no configurable node": no_configurable_node,
    "wrong boundaries": array_damage(wrong_boundaries, "node_splits"),
    "no layout": array_damage(with_one_of(*NOT_FINITE, -2, 6, 261, 1e30), "node_config_feat"),
    "half a layout": array_damage(with_one_of(0.5, -0.25, 4.9999995, 1e-30), "node_config_feat"),
}
TILE_DAMAGES: dict[str, Damage] = {
    "tile not finite": array_damage(with_one_of(*NOT_FINITE), "config_feat"),
    "normalizer": array_damage(with_one_of(0, -1, -(2**63)), "config_runtime_normalizers"),
}
OF_ARCHIVES = {damage.__name__: damage for damage in ARCHIVE_DAMAGES}
DAMAGES = {
    "layout": OF_ARCHIVES | SHARED_DAMAGES | LAYOUT_DAMAGES,
    "tile": OF_ARCHIVES | SHARED_DAMAGES | TILE_DAMAGES,
}


def read_copy(file: GraphFile, content: bytes, folder: Path) -> Graph | str:
    """Write and read a copy of a file. Return its graph, or the error's line without the path."""
    path = folder / f"{file.name}.npz"
    path.write_bytes(content)
    try:
        return read_graph(replace(file, path=path))
    except PipelineError as error:
        line = str(error)
    assert len(line.splitlines()) == 1 and line.isprintable() and len(line) < 1000
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, damages in DAMAGES.items() for name in damages]
)
def test_damaged_copy_of_a_made_file_is_refused(
    kind: str, name: str, tiny_tree: Path, tmp_path: Path
) -> None:
    files = [file for file in find_graphs(tiny_tree) if file.collection.kind == kind]
    for seed, file in enumerate(files[:N_COPIES]):
        arrays = read_arrays(file.path.read_bytes())
        content, keys = DAMAGES[kind][name](arrays, np.random.default_rng(seed))
        line = read_copy(file, content, tmp_path)
        assert isinstance(line, str)
        assert not keys or any(f"key '{ascii(key)[1:-1]}'" in line for key in keys), line


@pytest.mark.parametrize("damage", BYTE_DAMAGES)
def test_copy_with_damaged_bytes_is_refused_or_the_same_graph(
    damage: Callable[[bytes, Generator], bytes], tiny_tree: Path, tmp_path: Path
) -> None:
    """Zipfile need not read duplicate facts about a member, or bytes around the archive."""
    for seed, file in enumerate(find_graphs(tiny_tree)):
        content = damage(file.path.read_bytes(), np.random.default_rng(seed))
        graph = read_copy(file, content, tmp_path)
        if not isinstance(graph, str):
            check_same_graph(replace(graph, file=file), read_graph(file))


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_graph_in_other_forms_is_read_to_the_same_bits(
    kind: str, tiny_tree: Path, tmp_path: Path
) -> None:
    """Forms that other programs write: other types and byte orders, no axis of length 1."""
    file = next(file for file in find_graphs(tiny_tree) if file.collection.kind == kind)
    arrays, path = read_arrays(file.path.read_bytes()), tmp_path / f"{file.name}.npz"
    with_dtypes: dict[str, str] = {"config_runtime": ">i8", "edge_index": "<i4"}
    with_dtypes |= {"node_feat": "<f8", "node_opcode": "<i8", "node_splits": "<i4"}
    for configs in ("|i1", "<f2", "<i8", "F"):
        changed = {
            key: arrays[key].astype(kind) for key, kind in with_dtypes.items() if key in arrays
        }
        if kind == "layout":
            values = arrays["node_config_feat"]
            other = np.asfortranarray(values) if configs == "F" else values.astype(configs)
            changed["node_config_feat"] = other
            changed["node_splits"] = changed["node_splits"].ravel()
        path.write_bytes(repacked(arrays, **changed))
        graph = read_graph(replace(file, path=path))
        check_same_graph(replace(graph, file=file), read_graph(file))


def test_missing_file_a_folder_and_a_pipe_are_refused_at_once(
    tiny_tree: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "none.npz", tmp_path, tmp_path / "pipe.npz"):
        with pytest.raises(PipelineError, match=f"^{path}: cannot be read"):
            read_graph(replace(find_graphs(tiny_tree)[0], path=path))
