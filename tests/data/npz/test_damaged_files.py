"""Two hundred damaged copies: each is refused with one line that names the file and the key."""

import os
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store.stored_graph import read_graph
from data.tree import GraphFile, find_graphs
from tests.data.graph_store.conftest import check_same_graph
from tests.data.npz.damaged_archives import (
    ARCHIVE_DAMAGES,
    Damage,
    Damaged,
    Victim,
    bytes_lost,
    index_flipped,
    local_header_flipped,
    members_of,
    packed,
    read_arrays,
    repacked,
    some_key,
)
from tests.support.real_data import real_files

Values = NDArray[np.generic]
PER_CONFIG = ("node_config_feat", "config_feat", "config_runtime", "config_runtime_normalizers")

NOT_FINITE = (np.nan, np.inf, -np.inf)

N_COPIES = 200
# What is said of a member twice, and not read where zipfile does not read it.
HALF_HARMLESS = (local_header_flipped, index_flipped, bytes_lost)


def altered(victim: Victim, key: str, values: Values) -> Damaged:
    return Damaged(repacked(victim.arrays, **{key: values}), (key,))


def key_dropped(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    members = [(n, c) for n, c in members_of(victim.arrays) if n != f"{key}.npy"]
    return Damaged(packed(members), (key,))


def other_dtype(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    kind = rng.choice(("<c8", "|b1", "<U3", "<M8[s]", "<f4,<f4"))
    return altered(victim, key, victim.arrays[key].astype(kind))


def number_that_does_not_fit(victim: Victim, rng: Generator) -> Damaged:
    """Store an array as other numbers, one of which the right dtype cannot hold exactly."""
    key = some_key(victim, rng)
    values = victim.arrays[key].astype("<f8")
    values.reshape(-1)[int(rng.integers(values.size))] = rng.choice([0.1, 1e300])
    return altered(victim, key, values)


def pickled_objects(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    return altered(victim, key, victim.arrays[key].astype(object))


def other_axes(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    values = victim.arrays[key]
    choices = [values[None], values[..., None], values.ravel()[0]]
    if values.ndim > 1:
        choices += [values.ravel()]
        if values.shape[0] != values.shape[1]:
            choices += [np.ascontiguousarray(np.swapaxes(values, 0, 1))]
    return altered(victim, key, choices[int(rng.integers(len(choices)))])


def row_lost_or_gained(victim: Victim, rng: Generator) -> Damaged:
    """Change the length of one array alone; the error may name it or one that it must match."""
    key = str(rng.choice([k for k in victim.arrays if k not in ("edge_index", "node_splits")]))
    values = victim.arrays[key]
    shorter = values[:-1] if rng.random() < 0.5 else values[:0]
    changed = shorter if rng.random() < 0.7 else np.concatenate([values, values[-1:]])
    return Damaged(repacked(victim.arrays, **{key: changed}), tuple(victim.arrays))


def column_lost(victim: Victim, rng: Generator) -> Damaged:
    wide = [k for k, v in victim.arrays.items() if v.ndim > 1 and k != "node_splits"]
    key = str(rng.choice(wide))
    return altered(victim, key, np.ascontiguousarray(victim.arrays[key][..., :-1]))


def _emptied(
    victim: Victim, rng: Generator, *, emptied: tuple[str, ...], keys: tuple[str, ...]
) -> Damaged:
    empty = {key: victim.arrays[key][:0] for key in emptied if key in victim.arrays}
    return Damaged(repacked(victim.arrays, **empty), keys)


zero_configs = partial(_emptied, emptied=PER_CONFIG, keys=("config_runtime",))
zero_nodes = partial(
    _emptied,
    emptied=("node_feat", "node_opcode", "edge_index"),
    keys=("node_opcode", "node_feat"),
)


def _with_value(victim: Victim, rng: Generator, *, key: str, choices: tuple[float, ...]) -> Damaged:
    values = victim.arrays[key].copy()
    values.reshape(-1)[int(rng.integers(values.size))] = choices[int(rng.integers(len(choices)))]
    return altered(victim, key, values)


def config_id_twice(victim: Victim, rng: Generator) -> Damaged:
    ids = victim.arrays["node_config_ids"].copy()
    one, other = rng.choice(len(ids), 2, replace=False)
    ids[one] = ids[other]
    return altered(victim, "node_config_ids", ids)


def no_configurable_node(victim: Victim, rng: Generator) -> Damaged:
    key = "node_config_feat"
    changed: dict[str, Values] = {
        "node_config_ids": victim.arrays["node_config_ids"][:0],
        key: victim.arrays[key][:, :0],
    }
    return Damaged(repacked(victim.arrays, **changed), ("node_config_ids",))


def node_layout_impossible(victim: Victim, rng: Generator) -> Damaged:
    node_feat = victim.arrays["node_feat"].copy()
    row, column = int(rng.integers(len(node_feat))), int(rng.integers(134, 140))
    node_feat[row, column] = rng.choice([6, -2, 0.5, 1e30])
    return altered(victim, "node_feat", node_feat)


def runtimes_half_hidden(victim: Victim, rng: Generator) -> Damaged:
    runtime = np.arange(len(victim.arrays["config_runtime"]), dtype=np.int64) + 1
    n_hidden = int(rng.integers(1, len(runtime)))
    runtime[rng.choice(len(runtime), n_hidden, replace=False)] = 0
    return altered(victim, "config_runtime", runtime)


def splits_wrong(victim: Victim, rng: Generator) -> Damaged:
    n = len(victim.arrays["node_opcode"])
    choices = ([[0]], [[0, n - 1]], [[1, n]], [[0, n, n - 1, n]], [[n, 0]], [[]], [[-1, n]])
    chosen = choices[int(rng.integers(len(choices)))]
    return altered(victim, "node_splits", np.asarray(chosen, dtype=np.int64).reshape(1, -1))


def _position_outside(victim: Victim, rng: Generator, *, key: str) -> Damaged:
    choices = (-1, len(victim.arrays["node_opcode"]), 2**40, -(2**63))
    return _with_value(victim, rng, key=key, choices=choices)


_feat_not_finite = partial(_with_value, key="node_feat", choices=NOT_FINITE)
edge_outside = partial(_position_outside, key="edge_index")
config_id_outside = partial(_position_outside, key="node_config_ids")
_runtime_negative = partial(_with_value, key="config_runtime", choices=(-1, -(2**63)))

SHARED_DAMAGES: tuple[Damage, ...] = (
    *(
        key_dropped,
        other_dtype,
        number_that_does_not_fit,
        pickled_objects,
        other_axes,
        row_lost_or_gained,
    ),
    *(column_lost, zero_configs, zero_nodes, edge_outside, node_layout_impossible),
    *(runtimes_half_hidden, _feat_not_finite, _runtime_negative),
)
LAYOUT_DAMAGES: tuple[Damage, ...] = (
    *(config_id_outside, config_id_twice, no_configurable_node, splits_wrong),
    partial(_with_value, key="node_config_feat", choices=(*NOT_FINITE, -2, 6, 261, 1e30)),
    partial(_with_value, key="node_config_feat", choices=(0.5, -0.25, 4.9999995, 1e-30)),
)
TILE_DAMAGES: tuple[Damage, ...] = (
    partial(_with_value, key="config_feat", choices=NOT_FINITE),
    partial(_with_value, key="config_runtime_normalizers", choices=(0, -1, -(2**63))),
)
DAMAGES = {
    "layout": (*ARCHIVE_DAMAGES, *SHARED_DAMAGES, *LAYOUT_DAMAGES),
    "tile": (*ARCHIVE_DAMAGES, *SHARED_DAMAGES, *TILE_DAMAGES),
}


def name_of(damage: Damage) -> str:
    if isinstance(damage, partial):
        return f"{damage.func.__name__}-{next(iter(damage.keywords.values()))}"
    return damage.__name__


def cases() -> list[object]:
    chosen = []
    for number in range(N_COPIES):
        kind = ("layout", "tile")[number % 2]
        damage = DAMAGES[kind][number // 2 % len(DAMAGES[kind])]
        chosen.append(pytest.param(kind, damage, number, id=f"{number}-{kind}-{name_of(damage)}"))
    return chosen


@cache
def victim_of(path: Path) -> Victim:
    content = path.read_bytes()
    return Victim(content, read_arrays(content))


def refusal(file: GraphFile, content: bytes, folder: Path) -> str:
    """Write a damaged copy and read it; the error's line without the path."""
    path = folder / f"{file.name}.npz"
    path.write_bytes(content)
    with pytest.raises(PipelineError) as caught:
        read_graph(GraphFile(file.collection, file.split, file.name, path))
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert len(line) < 1000
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def is_read_all_the_same(file: GraphFile, content: bytes, folder: Path) -> bool:
    """Tell whether a copy, damaged where it decides nothing, is read to the same bits."""
    path = folder / f"{file.name}.npz"
    path.write_bytes(content)
    try:
        graph = read_graph(replace(file, path=path))
    except PipelineError:
        return False
    check_same_graph(replace(graph, file=file), read_graph(file))
    return True


def check(file: GraphFile, damage: Damage, seed: int, folder: Path) -> None:
    damaged: Damaged = damage(victim_of(file.path), np.random.default_rng(seed))
    if damage in HALF_HARMLESS and is_read_all_the_same(file, damaged.content, folder):
        return
    line = refusal(file, damaged.content, folder)
    if damaged.keys:
        shown = [ascii(key)[1:-1] for key in damaged.keys]
        assert any(f"key '{key}'" in line for key in shown), line


@pytest.mark.parametrize(("kind", "damage", "number"), cases())
def test_a_damaged_copy_of_a_made_file_is_refused(
    kind: str, damage: Damage, number: int, tiny_tree: Path, tmp_path: Path
) -> None:
    files = [file for file in find_graphs(tiny_tree) if file.collection.kind == kind]
    check(files[number % len(files)], damage, number, tmp_path)


def test_the_good_copies_are_read(tiny_tree: Path, tmp_path: Path) -> None:
    """What the damages start from is good, packed by numpy or by the tests' own packer."""
    for file in [*find_graphs(tiny_tree), *real_files(max_bytes=120_000)]:
        victim = victim_of(file.path)
        path = tmp_path / "copy.npz"
        path.write_bytes(repacked(victim.arrays))
        copy = read_graph(GraphFile(file.collection, file.split, file.name, path))
        np.testing.assert_array_equal(copy.node_feat, victim.arrays["node_feat"])
        np.testing.assert_array_equal(copy.runtime_ns, victim.arrays["config_runtime"])


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_a_graph_in_other_forms_is_read_to_the_same_bits(
    kind: str, tiny_tree: Path, tmp_path: Path
) -> None:
    """Forms that other programs write: small integers, long or half floats, other byte orders."""
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
        path.write_bytes(repacked(arrays, **changed))
        graph = read_graph(replace(file, path=path))
        check_same_graph(replace(graph, file=file), read_graph(file))


def test_a_missing_file_a_folder_and_a_pipe_are_refused_at_once(
    tiny_tree: Path, tmp_path: Path
) -> None:
    file = find_graphs(tiny_tree)[0]
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "none.npz", tmp_path, tmp_path / "pipe.npz"):
        with pytest.raises(PipelineError, match="cannot be read") as caught:
            read_graph(GraphFile(file.collection, file.split, file.name, path))
        assert str(caught.value).startswith(f"{path}: ")
