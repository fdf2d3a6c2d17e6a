"""Ways to make whole npz files that hold the wrong arrays, from a seed."""

from functools import partial

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tests.data.npz.damaged_archives import (
    Damage,
    Damaged,
    Victim,
    members_of,
    packed,
    repacked,
    some_key,
)

Values = NDArray[np.generic]
PER_CONFIG = ("node_config_feat", "config_feat", "config_runtime", "config_runtime_normalizers")


def altered(victim: Victim, key: str, values: Values) -> Damaged:
    return Damaged(repacked(victim.arrays, **{key: values}), (key,))


def key_dropped(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    members = [(n, c) for n, c in members_of(victim.arrays) if n != f"{key}.npy"]
    return Damaged(packed(members), (key,))


def other_dtype(victim: Victim, rng: Generator) -> Damaged:
    key = some_key(victim, rng)
    old = victim.arrays[key].dtype
    kinds = ("<f8", "<f2", "<i4", ">i8", ">f4", "|i1", "<c8", "|b1", "<U3", "<M8[s]")
    kind = rng.choice([k for k in kinds if np.dtype(k) != old])
    with np.errstate(all="ignore"):
        changed = victim.arrays[key].astype(kind)
    return altered(victim, key, changed)


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


def configs_by_column(victim: Victim, rng: Generator) -> Damaged:
    key = "node_config_feat"
    return altered(victim, key, np.asfortranarray(victim.arrays[key]))


def _position_outside(victim: Victim, rng: Generator, *, key: str) -> Damaged:
    choices = (-1, len(victim.arrays["node_opcode"]), 2**40, -(2**63))
    return _with_value(victim, rng, key=key, choices=choices)


NOT_FINITE = (np.nan, np.inf, -np.inf)
_feat_not_finite = partial(_with_value, key="node_feat", choices=NOT_FINITE)
edge_outside = partial(_position_outside, key="edge_index")
config_id_outside = partial(_position_outside, key="node_config_ids")
_runtime_negative = partial(_with_value, key="config_runtime", choices=(-1, -(2**63)))

SHARED_DAMAGES: tuple[Damage, ...] = (
    *(key_dropped, other_dtype, pickled_objects, other_axes, row_lost_or_gained),
    *(column_lost, zero_configs, zero_nodes, edge_outside, node_layout_impossible),
    *(runtimes_half_hidden, _feat_not_finite, _runtime_negative),
)
LAYOUT_DAMAGES: tuple[Damage, ...] = (
    *(config_id_outside, config_id_twice, no_configurable_node, splits_wrong, configs_by_column),
    partial(_with_value, key="node_config_feat", choices=(*NOT_FINITE, -2, 6, 261, 1e30)),
    partial(_with_value, key="node_config_feat", choices=(0.5, -0.25, 4.9999995, 1e-30)),
)
TILE_DAMAGES: tuple[Damage, ...] = (
    partial(_with_value, key="config_feat", choices=NOT_FINITE),
    partial(_with_value, key="config_runtime_normalizers", choices=(0, -1, -(2**63))),
)
