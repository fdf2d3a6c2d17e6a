"""Formats that jaxlib parses: the arrays are those of the protobuf; bad files are one line."""

import gzip
import io
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.errors import PipelineError, UsageError
from common.settings import how_to_install
from data.hlo import files, jaxlib_parser, parse
from data.hlo.descriptor import message_class
from data.hlo.formats import split_modules
from data.hlo.graph import featurize_module
from data.hlo.programs import HloProgram, featurize_files, read_programs
from tests.data.hlo.jax_functions import FAST, FUNCTIONS
from tests.features.hlo_modules import small_module, tile_tuning

ADD = "  a = f32[8,4]{1,0} parameter(0)\n  ROOT b = f32[8,4]{1,0} add(a, a)\n}\n"
ONE = f"HloModule one\n\nENTRY main {{\n{ADD}"
TWO = (
    f"// HloModule no\n{ONE}\n// -----\n\nHloModule two, is_scheduled=true\n\nENTRY main {{\n{ADD}"
)
FUNCTION = "func.func @NAME(%a: tensor<8xf32>) -> tensor<8xf32> {\n  return %a : tensor<8xf32>\n}\n"


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def only(path: Path) -> HloProgram:
    [program] = read_programs(path)
    return program


def refusal(path: Path, kind: type[PipelineError] = PipelineError) -> str:
    with pytest.raises(kind) as caught:
        read_programs(path)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 800
    assert line.startswith(str(path).partition("#")[0])
    return line


def forms_of(name: str, folder: Path) -> dict[str, Path]:
    """Write a function in all formats that JAX has. The key "protobuf" is the reference."""
    import jax
    from jax import export

    function, arguments = FUNCTIONS[name]()
    lowered = jax.jit(function).lower(*arguments)
    exported = export.export(jax.jit(function))(*arguments)
    hlo = lowered.compiler_ir("hlo")
    assert hlo is not None
    contents: dict[str, Any] = {
        "protobuf": hlo.as_serialized_hlo_module_proto(),
        "text": lowered.as_text("hlo"),
        "stablehlo": lowered.as_text(),
        "portable": bytes(exported.mlir_module_serialized),
        "export": bytes(exported.serialize()),
        "gzip": gzip.compress(lowered.as_text("hlo").encode()),
    }
    return {form: put(folder / form, content) for form, content in contents.items()}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in FUNCTIONS]
)
def test_each_form_gives_the_arrays_of_the_protobuf(tmp_path: Path, name: str) -> None:
    graphs = {form: only(path).graph for form, path in forms_of(name, tmp_path).items()}
    reference = graphs.pop("protobuf")
    for form, graph in graphs.items():
        for key, values in reference.arrays.items():
            assert getattr(graph, key).dtype == values.dtype, (form, key)
            np.testing.assert_array_equal(getattr(graph, key), values, err_msg=f"{form} {key}")
    for form in ("text", "gzip"):
        assert graphs[form].instruction_names == reference.instruction_names


def test_derivatives_in_an_exported_file_are_left_out(tmp_path: Path) -> None:
    import jax
    from jax import export

    exported = export.export(jax.jit(jax.numpy.sin))(np.ones(3, np.float32))
    sizes = [
        only(put(tmp_path / str(order), bytes(exported.serialize(vjp_order=order)))).graph.n_nodes
        for order in (0, 2)
    ]
    assert sizes[0] == sizes[1]
    cut = bytes(exported.serialize())
    assert "damaged jax.export artifact" in refusal(put(tmp_path / "cut", cut[:-300]))


def test_modules_of_a_text_are_named_and_chosen(tmp_path: Path) -> None:
    path = put(tmp_path / "tests.hlo", TWO)
    written = featurize_files([path], tmp_path)
    assert [graph.path.name for graph in written] == ["tests_one.npz", "tests_two.npz"]
    assert only(tmp_path / "tests.hlo#two").name == "tests_two"
    line = refusal(tmp_path / "tests.hlo#three", UsageError)
    assert f"no modules called 'three'; expected {path}#NAME with one of one, two" in line
    # Most files of XLA's own tests begin with a computation.
    for head in ("add", "%add (a: f32[8,4]) -> f32[8,4]{1,0}"):
        text = f"// RUN: HloModule {{\n\n {head} {{\n// CHECK\n{ADD}\n// -----\nfusion {{\n{ADD}"
        assert only(put(tmp_path / "head.hlo", text)).graph.n_nodes == 4
    # Lines are counted from the start of the file.
    broken = TWO.replace(
        "is_scheduled=true\n\nENTRY main {\n  a = f32", "\n\nENTRY main {\n  a = f"
    )
    line = refusal(put(tmp_path / "broken.hlo", broken))
    assert "broken.hlo#two: jaxlib" in line and "cannot parse it as HLO text: line 13: " in line


@pytest.mark.parametrize("blank", ["\n", " \n", "\t", "// x\n", "\r\n", "// -----\t\t"])
@pytest.mark.parametrize(
    "head", ["module {\n", "ENTRY e (a: f32[]) -> f32[] {\n", "func.func @f() {\n", "HloModule\n"]
)
def test_blank_text_takes_linear_time(tmp_path: Path, head: str, blank: str) -> None:
    began_s = time.process_time()
    split_modules(tmp_path, f"{head}{blank * 250_000}}}\n".encode())
    assert time.process_time() - began_s < 2  # minutes if the time were quadratic


def test_functions_are_modules_if_none_is_main(tmp_path: Path) -> None:
    f, g, main = (FUNCTION.replace("NAME", name) for name in ("f", "g", "main"))
    private = FUNCTION.replace("@NAME", "private @h")
    two = put(tmp_path / "two.mlir", f"#loc = loc(unknown)\nmodule @m {{\n{f}{g}{private}}}\n")
    assert [program.name for program in read_programs(two)] == ["two_f", "two_g"]
    assert [program.name for program in read_programs(put(two, f))] == ["two"]
    assert [program.name for program in read_programs(put(two, f + main))] == ["two"]
    many = "".join(FUNCTION.replace("NAME", f"f{number}") for number in range(101))
    assert "101 modules and none chosen" in refusal(put(two, many), UsageError)
    assert only(tmp_path / "two.mlir#f77").name == "two_f77"


def test_entries_without_a_header_are_modules(tmp_path: Path) -> None:
    helper = "add {\n  x = f32[] parameter(0)\n  ROOT y = f32[] add(x, x)\n}\n\n"
    one, two, three = (f"  ENTRY  {name} (a: f32[8,4]) -> f32[8,4] {{\n{ADD}" for name in "abc")
    path = put(tmp_path / "entries.hlo", f"// a\n{one}\n{helper}{two}\n{helper}{three}")
    programs = read_programs(path)
    assert [program.name for program in programs] == ["entries_a", "entries_b", "entries_c"]
    assert [program.graph.n_nodes for program in programs] == [2, 4, 4]
    assert only(tmp_path / "entries.hlo#b").graph.name == "b"
    mixed = put(path, f"  HloModule m\n{helper}{one}\n  HloModule n\n{two}{three}")
    assert [program.name for program in read_programs(mixed)] == [
        *("entries_m", "entries_n", "entries_c")
    ]


COMPARE = "ROOT c = pred[8,4]{1,0} compare(a, a), direction=GE"
REDUCE = "ROOT c = f32[8,4]{1,0} all-reduce(a), channel_id=1, replica_groups={{0}}, to_apply=s"
GATHER = (
    "ROOT c = f32[2,4]{1,0} gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, "
    "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"
)
CALL = 'ROOT c = f32[8,4]{1,0} custom-call(a), custom_call_target="f", metadata={op_name="d"}'
FUSION = "ROOT c = f32[8,4]{1,0} fusion(a), kind=kLoop, calls=n"
START = "b = ((f32[8,4]), f32[8,4], s32[]) async-start(a), calls=n\n  "
DONE = "ROOT c = f32[8,4]{1,0} async-done(b), metadata={}"
CONSTANT = "ROOT c = f32[2]{0} constant({1, 2})"


@pytest.mark.parametrize(
    ("old", "today"),
    [
        (COMPARE.replace("compare", "greater-than-or-equal-to").split(", d")[0], COMPARE),
        (REDUCE.replace("all-reduce", "cross-replica-sum"), REDUCE),
        (REDUCE.replace("channel_id", 'barrier="x, {", all_reduce_id'), REDUCE),
        (
            GATHER.replace("offset", "output_window")
            .replace("collapsed_slice", "elided_window")
            .replace("start_index_map", "gather_dims_to_operand_dims")
            .replace("slice_sizes", "window_bounds"),
            GATHER,
        ),
        (f'{CALL}, opaque="a\\"b", api_version=API_VERSION_UNSPECIFIED', CALL),
        (CALL.replace("op_name", "creation_pass_id=3 op_name"), CALL),
        (CALL.replace("}", " profile_info={a={1} b=2}}"), CALL),
        (FUSION.replace("kind", "outer_dimension_partitions={1,2},\n  kind"), FUSION),
        (START + DONE.replace(", m", ", async_group_id=3, calls=n, m"), START + DONE),
        (CONSTANT.replace("({", "(f32[2]{0} {"), CONSTANT),
    ],
)
def test_texts_of_old_printers_give_the_arrays_of_today(
    tmp_path: Path, old: str, today: str
) -> None:
    head = (
        "HloModule m, input_output_alias={ {}: (0, {}, USER) }\n"
        "s {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT z = f32[] add(x, y)\n}\n"
        "n {\n  x = f32[8,4]{1,0} parameter(0)\n  ROOT y = f32[8,4]{1,0} negate(x)\n}\n"
        "ENTRY e {\n  a = f32[8,4]{1,0} parameter(0)\n  i = s32[2]{0} parameter(1)\n  "
    )
    graph = only(put(tmp_path / "old.hlo", f"   {head}{old}\n}}\n")).graph
    plain = head.replace("(0, {}, USER)", "(0, {}, must-alias)")
    expected = only(put(tmp_path / "new.hlo", f"{plain}{today}\n}}\n")).graph
    for key, values in expected.arrays.items():
        np.testing.assert_array_equal(getattr(graph, key), values, err_msg=key)


def test_bytecode_without_main_gives_its_functions(tmp_path: Path) -> None:
    from jax.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    with make_ir_context():
        for names in (["f", "domain"], ["f", "main"]):
            module = ir.Module.parse("".join(FUNCTION.replace("NAME", name) for name in names))
            stream = io.BytesIO()
            module.operation.write_bytecode(stream)
            path = put(tmp_path / f"{names[1]}.mlirbc", stream.getvalue())
    assert [program.name for program in read_programs(path)] == ["main"]
    path = tmp_path / "domain.mlirbc"
    assert [program.name for program in read_programs(path)] == ["domain_f", "domain_domain"]


def test_batch_sets_the_symbolic_size_of_an_export(tmp_path: Path) -> None:
    import jax
    from jax import export

    def symbolic(shape: str) -> Path:
        arrays = jax.ShapeDtypeStruct(export.symbolic_shape(shape), np.float32)
        exported = export.export(jax.jit(lambda x: {"a": (x @ x.T).reshape(-1)}))(arrays)
        return put(tmp_path / "f.bin", bytes(exported.serialize()))

    [program] = read_programs(symbolic("b, 2*b"), batch=3)
    entry = next(
        c for c in program.module.computations if c.id == program.module.entry_computation_id
    )
    assert list(entry.program_shape.parameters[0].dimensions) == [3, 6]
    assert list(entry.program_shape.result.dimensions) == [9]
    assert "or give --batch N for one symbolic size of jax.export" in refusal(symbolic("b, 4"))
    for path, fault in (
        (symbolic("b, s"), r"has 2 symbolic sizes \(b, s\); --batch N is for one symbolic size; "),
        (put(tmp_path / "one.hlo", ONE), "--batch 3: .* is no jax.export artifact; leave it out"),
    ):
        with pytest.raises(PipelineError, match=fault):
            read_programs(path, batch=3)


def test_dump_folder_lists_its_modules(tmp_path: Path) -> None:
    for name in (
        *("module_0001.jit_f.before_optimizations.txt", "module_0001.jit_f.debug_options"),
        *("module_0003.jit_g.before_optimizations.hlo.pb", "module_0003.jit_g.ir-no-opt.ll"),
        "module_0003.jit_g.sm_8.0_gpu_after_optimizations.txt",
        "module_0003.jit_g.sm_8.0_gpu_after_optimizations-buffer-assignment.txt",
    ):
        put(tmp_path / name, b"not read")
    put(tmp_path / "module_0001.jit_f.cpu_after_optimizations.txt", ONE)
    early = "module_0003.jit_g.0010.pipeline.after_cse.before_layout-assignment.hlo.pb"
    put(tmp_path / early, small_module().SerializeToString())
    assert f"{tmp_path}: 2 modules and none chosen; expected {tmp_path}#NAME with one of " in (
        refusal(tmp_path, UsageError)
    )
    for name in ("jit_g", "module_0003", "module_0003.jit_g"):
        assert only(Path(f"{tmp_path}#{name}")).graph.n_nodes == 20
    put(tmp_path / "module_0001.jit_f.before_optimizations.txt", TWO.replace("two", "jit_f"))
    assert [one.graph.n_nodes for one in read_programs(Path(f"{tmp_path}#jit_f"))] == [2, 2]
    (tmp_path / "empty").mkdir()
    assert "a folder without modules; expected a file" in refusal(tmp_path / "empty")


def test_snapshots_and_gzip_files_need_no_jaxlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parse, "parse_module", None)
    snapshot = message_class("HloSnapshot")()
    snapshot.hlo.hlo_module.CopyFrom(small_module())
    content = snapshot.SerializeToString() + b"\x22\x04Host"  # its platform, field 4
    expected = featurize_module(small_module()).node_feat
    for path in (
        put(tmp_path / "snapshot.pb", content),
        put(tmp_path / "step.hlo.pb.gz", gzip.compress(small_module().SerializeToString())),
    ):
        np.testing.assert_array_equal(only(path).graph.node_feat, expected)
    assert only(path).name == "step"
    kernels = put(tmp_path / "kernels.pb.gz", gzip.compress(tile_tuning().SerializeToString()))
    assert only(Path(f"{kernels}#abc")).name == "kernels_abc"
    cut = gzip.compress(content)[:-20]
    assert "damaged gzip file" in refusal(put(tmp_path / "cut.gz", cut))
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 1 << 20)
    bomb = put(tmp_path / "bomb.gz", gzip.compress(bytes(2 << 20)))
    assert "unpacks to over 1 MiB" in refusal(bomb)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (ONE.replace("add", "xadd"), "HLO text: line 5: expects opcode but sees: xadd"),
        ("module {}", "StableHLO: line 1: conversion requires module with `main` function"),
        (b"ML\xefR\x0dStableHLO_v1.15.0\x00", "cannot parse it as StableHLO bytecode: "),
        (
            FUNCTION.replace("NAME", "main").replace("8x", "?x"),
            "has a dimension of unknown size; expected sizes; export the program for fixed shapes",
        ),
        # These crash jaxlib or take all memory.
        (
            f"HloModule deep\nENTRY e {{\n a = {'(' * 100_000} parameter(0)\n}}",
            "HLO text: the parser crashed (-",
        ),
        ("HloModule big\nENTRY e {\n ROOT a = f32[9000000000] constant({...})\n}", "HLO text: "),
    ],
)
def test_what_jaxlib_refuses_is_one_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert said in refusal(put(tmp_path / "bad", content))


def test_parser_that_hangs_or_is_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "one.txt", ONE)
    with monkeypatch.context() as patch:
        patch.setattr(parse, "MAX_PARSE_S", 0.01)
        assert "cannot parse it as HLO text: not done after 0.01 s" in refusal(path)
    # The parser imports this release, which has none of the functions.
    (tmp_path / "old" / "jaxlib").mkdir(parents=True)
    for name in ("__init__", "_jax"):
        put(tmp_path / "old" / "jaxlib" / f"{name}.py", "")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "old"))
        line = refusal(path)
        assert re.search(r"jaxlib \S+: no function hlo_module_from_text; expected", line)

    def missing(name: str) -> str:
        raise parse.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(parse.metadata, "version", missing)
    line = refusal(path)
    expected = f"expected jaxlib 0.10.2 to 0.12; {how_to_install('collect')}"
    assert line.endswith(f"is HLO text: jaxlib is not installed; {expected}")


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [("0.10.1", False), ("0.10.2", True), ("0.12.0.1", True), ("0.13.0.dev3", False)],
)
def test_untested_jaxlib_gives_one_note(
    version: str, is_tested: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parse.log_once.cache_clear()
    monkeypatch.setattr(parse.metadata, "version", lambda _: version)
    with caplog.at_level("INFO", logger="fast_or_slow"):
        assert [parse.check_jaxlib("a.hlo"), parse.check_jaxlib("b.hlo")] == [version] * 2
    note = f"note: jaxlib {version} was not tested with this project; 0.10.2 to 0.12 was"
    assert caplog.messages == [note] * (not is_tested)


def test_functions_of_older_releases_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib._hlo", None)
    monkeypatch.setitem(sys.modules, "jaxlib._jax", SimpleNamespace(XlaComputation=3))
    assert jaxlib_parser.private("XlaComputation") == 3
    with pytest.raises(PipelineError, match=r"^a: jaxlib \S+: no function mlir; expected "):
        parse.jaxlib_function("mlir", "a")


def test_new_operations_and_types_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = ADD.replace("f32", "f8e4m3fn").replace("add(a, a)", "erf(a)")
    path = put(tmp_path / "new.hlo", f"HloModule new\nENTRY main {{\n{body}")
    with caplog.at_level("INFO", logger="fast_or_slow"):
        assert only(path).graph.node_opcode.tolist() == [63, 0]
    assert f"note: {path}: the dataset of 2023 has no number for erf, f8e4m3fn" in caplog.text
