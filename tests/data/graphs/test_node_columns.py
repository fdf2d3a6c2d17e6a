"""The names of the 140 columns against what real files hold in them."""

import numpy as np
import pytest

from data.graphs.node_columns import (
    CATEGORICAL,
    ELEMENT_BYTES,
    ELEMENT_TYPE,
    ELEMENT_TYPES,
    NODE_FEATURE_NAMES,
)
from data.read import read_graph
from data.tree import GraphFile
from tests.real_data import real_files, requires_real_data


def test_there_are_140_names_and_each_once() -> None:
    assert len(NODE_FEATURE_NAMES) == len(set(NODE_FEATURE_NAMES)) == 140
    assert NODE_FEATURE_NAMES[0] == "is_root"


def test_an_elements_bytes_are_those_of_its_name() -> None:
    for kind, n_bytes in zip(ELEMENT_TYPES, ELEMENT_BYTES, strict=True):
        bits = "".join(filter(str.isdigit, kind))
        assert n_bytes == (int(bits) // 8 if bits else int(kind == "pred")), kind


def test_sizes_counts_and_products_are_not_categorical() -> None:
    numeric = {NODE_FEATURE_NAMES[i] for i in range(140) if i not in CATEGORICAL}
    assert {"shape_dimensions_0", "window_size_3", "slice_dims_limit_1"} <= numeric
    assert not {"is_root", "is_stable", "layout_minor_to_major_5", "dimensions_0"} & numeric


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_real_nodes_agree_with_the_names(file: GraphFile) -> None:
    node_feat = read_graph(file).node_feat.astype(np.float64)
    column = {name: node_feat[:, i] for i, name in enumerate(NODE_FEATURE_NAMES)}
    assert (node_feat[:, ELEMENT_TYPE].sum(axis=1) == 1).all()
    # Every "_sum" is the sum of the numbered columns before it, as far as those were not cut off.
    for total in [name for name in NODE_FEATURE_NAMES if name.endswith("_sum")]:
        stem = total.removesuffix("_sum")
        parts = [values for name, values in column.items() if name[:-1] == f"{stem}_"]
        assert len(parts) in (2, 6)
        if len(parts) == 6:
            np.testing.assert_allclose(np.sum(parts, axis=0), column[total], err_msg=total)
    for flag in ("is_root", "is_stable"):
        assert set(column[flag].tolist()) <= {0.0, 1.0}
    for i in CATEGORICAL:
        values = node_feat[:, i]
        assert np.array_equal(values, np.rint(values)), NODE_FEATURE_NAMES[i]
        assert values.min() >= -1, NODE_FEATURE_NAMES[i]
        assert values.max() <= 6, NODE_FEATURE_NAMES[i]
