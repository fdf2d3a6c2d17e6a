"""Protobuf files of every kind to npz files, as the dataset's own; damaged ones to one line."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format  # type: ignore[import-untyped]

from common.errors import PipelineError
from data.graph_store.stored_graph import read_layout, read_tile
from data.hlo.descriptor import message_class
from data.hlo.graph import featurize_module
from data.hlo.programs import featurize_files
from data.tree import GraphFile, collection_named
from tests.data.npz.damaged_archives import BYTE_DAMAGES
from tests.drills.fuzz.doors import DOORS, try_door
from tests.features.hlo_modules import layout_tuning, small_module, tile_tuning
from tests.support.real_data import REAL, real_file

PROTOBUFS = REAL / "pb"
TWIN = "layout:xla:default:unet_3d.4x4.bf16"
FIVE = ("node_feat", "node_opcode", "edge_index", "node_splits", "node_config_ids")

requires_protobufs = pytest.mark.skipif(
    not PROTOBUFS.is_dir(),
    reason=f"needs real tuning data at {PROTOBUFS} (set TPUGRAPHS_REAL to look elsewhere)",
)


def write(path: Path, message: Any) -> Path:
    path.write_bytes(message.SerializeToString())
    return path


def file_of(path: Path, collection: str) -> GraphFile:
    return GraphFile(collection_named(collection), "valid", path.stem, path)


def test_layout_tuning_gives_one_readable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "program.pb", layout_tuning())
    [written] = featurize_files([path], tmp_path / "out")
    assert written.path == tmp_path / "out" / "program.npz"
    assert written[1:] == ("layout", 20, written.n_edges, 3, 1)
    graph = read_layout(file_of(written.path, "layout:xla:default"))
    expected = featurize_module(layout_tuning().module)
    np.testing.assert_array_equal(graph.node_feat, expected.node_feat)
    np.testing.assert_array_equal(graph.edge_index, expected.edge_index)
    assert graph.runtime_ns.tolist() == [3_000_000_000, 3_000_000_001, 3_000_000_003]
    assert graph.node_config_ids.tolist() == [10, 12]
    first = [3, 2, 1, 0, -1, -1, *[-1] * 6, 3, 2, -1, -1, -1, -1]
    assert graph.configs.rows(np.array([0]))[0].tolist() == [first, first]


def test_tile_tuning_gives_a_file_per_kernel(tmp_path: Path) -> None:
    path = write(tmp_path / "program.hlo.pb", tile_tuning())
    written = featurize_files([path], tmp_path / "out")
    names = [graph.path.name for graph in written]
    assert names == ["program_-1234.npz", "program_abc.npz"]
    assert [(graph.n_configs, graph.n_failed) for graph in written] == [(3, 1), (2, 1)]
    graph = read_tile(file_of(written[0].path, "tile:xla"))
    assert graph.runtime_ns.tolist() == [50, 40, 60]
    assert graph.runtime_normalizers.tolist() == [50, 50, 50]
    nothing = [0] * 8
    assert graph.config_feat[1].tolist() == [*nothing, 3, 4, 0, 0, 0, 0, 7, 12, *nothing]


@pytest.mark.parametrize("wrapped", [False, True])
def test_plain_module_gives_its_graph_alone(tmp_path: Path, wrapped: bool) -> None:
    module = small_module()
    message = message_class("HloProto")(hlo_module=module) if wrapped else module
    content = message.SerializeToString()
    if wrapped:  # XLA's dumps add a buffer assignment, field 3, of which nothing is declared here
        content += b"\x1a\x04\x0a\x02\x08\x05"
    path = tmp_path / "step.hlo.pb"
    path.write_bytes(content)
    [written] = featurize_files([path], tmp_path)
    assert (written.kind, written.path.name, written.n_configs) == ("module", "step.npz", 0)
    expected = featurize_module(module)
    with np.load(written.path) as arrays:
        assert list(arrays) == ["node_feat", "node_opcode", "edge_index", "node_splits"]
        for key in arrays:
            np.testing.assert_array_equal(arrays[key], getattr(expected, key))
    with pytest.raises(PipelineError, match=r"from a module and has no configs; .*--candidates"):
        read_layout(file_of(written.path, "layout:xla:default"))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (small_module(), ""),
        (layout_tuning(), ""),
        (tile_tuning(), ""),
        (small_module(), "HloProto.hlo_module"),
        (message_class("HloProto")(hlo_module=small_module()), "HloSnapshot.hlo"),
    ],
)
@pytest.mark.parametrize("head", ["", "\ufeff# proto-file: a\n\n  # proto-message: b\n"])
def test_protobuf_as_text_gives_the_same_arrays(
    tmp_path: Path, message: Any, field: str, head: str
) -> None:
    if field:
        name, key = field.split(".")
        message = message_class(name)(**{key: message})
    text = text_format.MessageToString(message)
    assert "element_type: F32" in text
    # Fields that no reader needs.
    text = text.replace("layout {", "layout { format: DENSE tiles { dimensions: [8, 128] }")
    binary, as_text = tmp_path / "binary", tmp_path / "text"
    for file, content in (
        (binary / "module.pb", message.SerializeToString()),
        (as_text / "module.pbtxt", (head + text).encode()),
    ):
        file.parent.mkdir()
        file.write_bytes(content)
        featurize_files([file], file.parent)
    names = [sorted(path.name for path in folder.glob("*.npz")) for folder in (binary, as_text)]
    assert names[0] == names[1] != []
    for path in binary.glob("*.npz"):
        with np.load(path) as expected, np.load(as_text / path.name) as arrays:
            for key in expected:
                np.testing.assert_array_equal(arrays[key], expected[key], err_msg=key)


def fails(paths: list[Path], out: Path) -> str:
    """Featurise invalid files, check that no output remains, and return the error."""
    with pytest.raises(PipelineError) as caught:
        featurize_files(paths, out)
    assert not out.is_dir() or not any(out.iterdir())
    line = str(caught.value)
    assert "\n" not in line
    return line


def nodes(entry: Any) -> Any:
    return entry.runs[0].module_config.layout_config.nodes


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda entry: entry.config_index_to_node.__setitem__(1, 20),
            "config_index_to_node names 2 nodes; expected at least one, each once, of 0..19",
        ),
        (lambda entry: nodes(entry).pop(), "gives layouts to 1 nodes; expected 2"),
        (lambda entry: nodes(entry)[0].tensors.add(), "lays out 4 tensors"),
        (
            lambda entry: nodes(entry)[0].tensors[0].dims.append(6),
            "dimension numbers -1..6; expected -1..5",
        ),
        (lambda entry: entry.ClearField("runs"), "0 runs"),
        (
            lambda entry: [run.ClearField("profile") for run in entry.runs],
            "none of 4 runs succeeded",
        ),
        (lambda entry: entry.runs[0].op_config.SetInParent(), "expected one kind"),
    ],
)
def test_tuning_data_that_does_not_fit_is_one_line(
    tmp_path: Path, spoil: Callable[[Any], object], said: str
) -> None:
    entry = layout_tuning()
    spoil(entry)
    line = fails([write(tmp_path / "bad.pb", entry)], tmp_path / "out")
    assert line.startswith(f"{tmp_path / 'bad.pb'}: ")
    assert said in line


def test_bad_kernel_is_named_and_none_is_written(tmp_path: Path) -> None:
    data = tile_tuning()
    data.modules[1].runs[0].is_default = False
    line = fails([write(tmp_path / "bad.pb", data)], tmp_path / "out")
    assert "bad.pb, bad_abc: no run of the default config succeeded" in line
    data.modules[1].CopyFrom(data.modules[0])
    assert "a second kernel" in fails([write(tmp_path / "bad.pb", data)], tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"HloModule jit_step, entry_computation_layout=...", "it as HLO text: line 1: "),
        (b"// a comment\n\n/* and\n another */ HloModule jit_step", "it as HLO text: line 4: "),
        (b"\xef\xbb\xbfHloModule m", "it as HLO text: line 1: expects name"),
        (b"%f (a: f32[]) -> f32[4]{0} {\n  ROOT b = f32[]", "it as HLO text: line 2: "),
        (b'#loc1 = loc("a")\nmodule @jit_f {', "cannot parse it as StableHLO: line 2: "),
        (b"// -----\nfunc.func public @main() {", "cannot parse it as StableHLO: line 2: "),
        (b'"builtin.module"() ({', "cannot parse it as StableHLO: line 1: "),
        (
            b"\x3c\0\0\0\x38\0\x60\0\x5e\0\x58\0 a flatbuffer ML\xefR\x0dStableHLO_v1.15.0",
            "a damaged jax.export artifact;",
        ),
        (b'# c\nhlo_module {\n  name: "m"\n}\n', "a protobuf as text without instructions;"),
        (b'hlo_module {\n  name: "m"\n', "a damaged protobuf as text: 2:9: Expected"),
        (b"hlo_module { x { " + b"a { " * 9_000, "a damaged protobuf as text: maximum recursion"),
        (b'name: "\xff"', "a damaged protobuf as text: 'utf-8' codec"),
        (gzip.compress(b"any module", mtime=0), "damaged, cut short or something else"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "is compressed by zstd (unzstd unpacks it);"),
        (b"PK\3\4\x14\0", "is a zip archive, as npz files are;"),
        (b"/**/" * 20_000 + b"/*", "damaged, cut short or something else"),
        (b"\x00\x01\x02 no protobuf", "damaged, cut short or something else"),
        (b"\x0a\x03abc", "damaged, cut short or something else"),
    ],
)
def test_other_files_are_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "other.pb"
    path.write_bytes(content)
    line = fails([path], tmp_path / "out")
    assert line.startswith(f"{path}: ")
    assert said in line
    assert "; expected " in line


def test_missing_files_and_wrong_usage_are_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "program.pb", small_module())
    out = tmp_path / "out"
    os.mkfifo(tmp_path / "pipe.pb")  # reading it would wait for ever
    assert f"did you mean {path}?" in fails([tmp_path / "porgram.pb"], out)
    assert "cannot be read" in fails([tmp_path / "pipe.pb"], out)
    assert "no file given" in fails([], out)
    (tmp_path / "other").mkdir()
    twin = write(tmp_path / "other" / "program.hlo.pb", small_module())
    assert "would be written over" in fails([path, twin], out)
    assert "cannot be written" in fails([path], path)


def test_damaged_file_is_one_line_or_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for content in DOORS["hlo"].seeds():
        for damage in BYTE_DAMAGES * 8:
            try_door(DOORS["hlo"], damage(content.ljust(50), rng), tmp_path / "damaged.pb")


@requires_protobufs
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


@requires_protobufs
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
