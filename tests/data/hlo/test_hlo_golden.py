"""The real tuning protobufs against the dataset's own files of the same programs."""

from pathlib import Path

import numpy as np
import pytest

from data.hlo.programs import featurize_files
from data.read import read_tile
from data.tree import GraphFile, collection_named
from tests.real_data import REAL, real_file

PROTOBUFS = REAL / "pb"
TWIN = "layout:xla:default:unet_3d.4x4.bf16"
FIVE = ("node_feat", "node_opcode", "edge_index", "node_splits", "node_config_ids")

pytestmark = pytest.mark.skipif(
    not PROTOBUFS.is_dir(),
    reason=f"needs real tuning data at {PROTOBUFS} (set TPUGRAPHS_REAL to look elsewhere)",
)


def test_layout_arrays_equal_the_datasets_bit_for_bit(tmp_path: Path) -> None:
    path = PROTOBUFS / "module_tuning_data_layout.pb"
    [written] = featurize_files([path], tmp_path)
    assert (written.n_nodes, written.n_configs, written.n_failed) == (3163, 112, 10)
    with np.load(written.path) as made, np.load(real_file(TWIN).path) as real:
        assert list(made) == list(real)
        for key in FIVE:
            assert made[key].dtype == real[key].dtype, key
            assert made[key].shape == real[key].shape, key
            assert made[key].tobytes() == np.ascontiguousarray(real[key]).tobytes(), key
        tables = [[a["node_config_feat"], a["config_runtime"]] for a in (made, real)]
        assert tables[0][0].dtype == tables[1][0].dtype
    rows = [{(x.tobytes(), int(ns)) for x, ns in zip(*table, strict=True)} for table in tables]
    assert len(rows[0]) == 112
    assert rows[0] <= rows[1]


def test_tile_kernels_are_those_of_the_dataset(tmp_path: Path) -> None:
    path = tmp_path / "alexnet_train_batch_32.pb"
    path.write_bytes((PROTOBUFS / "op_tuning_data.pb").read_bytes())
    written = featurize_files([path], tmp_path / "out")
    assert len(written) == 15
    assert sum(graph.n_nodes for graph in written) == 294
    assert sum(graph.n_configs for graph in written) == 752
    assert sum(graph.n_failed for graph in written) == 2
    for graph in written:
        file = GraphFile(collection_named("tile:xla"), "train", graph.path.stem, graph.path)
        kernel = read_tile(file)
        assert kernel.n_configs == graph.n_configs
        assert kernel.runtime_normalizers[0] == kernel.runtime_ns[0], "the default is run 0"
    stems = {graph.path.stem for graph in written}
    assert "alexnet_train_batch_32_-8a7557b856e7b3b" in stems
    published = (REAL / "stats" / "tile_train_names.txt").read_text().split()
    assert len(stems & set(published)) == 8  # the dataset left seven out
