"""The names of the 140 columns."""

from data.graphs.node_columns import CATEGORICAL, ELEMENT_BYTES, ELEMENT_TYPES, NODE_FEATURE_NAMES


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
