"""Programs of files and static arguments: they compute the same, and are applied without us."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.collect import collect_graph
from autotune.optimize.candidate import Comparison, OptimizeCandidate, Ratio
from autotune.optimize.optimize import OptimizeResult, Screening
from autotune.optimize.session import OptimizeRequest
from autotune.optimize.write import write_result
from autotune.plan import CollectRequest
from autotune.programs.catalogue import ProgramInputs, catalogue, rows
from autotune.programs.files import POSITIVE, SIGNED, draw_arguments, load_program
from autotune.same_outputs import SameOutputs
from autotune.spaces import DecidedProgram
from common.errors import PipelineError, UsageError
from data.hlo.programs import read_programs
from tests.data.hlo.jax_functions import FUNCTIONS
from tests.data.hlo.test_formats import forms_of

jax = pytest.importorskip("jax", reason="pip install -r requirements-collect.txt")

SPACES = ("options", "layouts", "fusion")
# A loop, a convolution, indices, batched dots, small types.
QUICK = ("scan", "convolution_bf16", "gather", "attention", "fp8_dot")


def put(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content)
    return str(folder / name)


def last_setting(program: DecidedProgram) -> NDArray[np.int64]:
    """Return the setting in which each knob has its last option."""
    return program.describe().n_options - 1


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in FUNCTIONS]
)
def test_file_computes_what_its_function_does_in_each_format_and_each_space(
    name: str, tmp_path: Path
) -> None:
    function, arguments = FUNCTIONS[name]()
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for form, path in forms_of(name, tmp_path).items():
        if form not in ("text", "stablehlo", "export"):
            continue
        source = load_program(str(path))
        outputs: Any = source.build()[0](*jax.tree.leaves(arguments))
        for output, value in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(output), np.asarray(value))
    program = DecidedProgram(source, SPACES)
    if name != "cholesky":  # of drawn numbers it is not finite
        SameOutputs(program).load(last_setting(program))
    [read] = read_programs(path)
    assert program.describe().names == read.graph.instruction_names


HEAD = "HloModule a\n\nENTRY e {\n  p = f32[40] parameter(0)\n"
CALL = HEAD + '  ROOT r = f32[40] custom-call(p), custom_call_target="NAME"\n}\n'
TOKEN = HEAD + "  ROOT t = token[] after-all()\n}\n"
INFEED = """HloModule a

ENTRY e {
  t = token[] after-all()
  i = (f32[4], token[]) infeed(t)
  ROOT r = f32[4] get-tuple-element(i), index=0
}
"""
FUSED = """HloModule a

f {
  q = f32[4] parameter(0)
  ROOT c = f32[4] add(q, q)
}

ENTRY e {
  q = f32[4] parameter(0)
  ROOT c = f32[4] fusion(q), kind=kLoop, calls=f
}
"""
TWO = "HloModule one\n\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
ELIDED = HEAD + "  c = f32[40] constant({...})\n  ROOT r = f32[40] add(p, c)\n}\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CALL.replace("NAME", "xla_ffi_python_cpu_callback"), "'r' calls the host (xla_ffi_"),
        (CALL.replace("NAME", "mine"), "the compiler refuses: NOT_FOUND: No registered"),
        (INFEED, "instruction 'i' calls the host (infeed)"),
        (TOKEN, "parameter or result that is no array"),
        (HEAD + "  ROOT t = () tuple()\n}\n", "returns no array"),
        (ELIDED, "constants, as `"),
        (HEAD.replace("40", "<=40") + "  ROOT r = f32[<=40] add(p, p)\n}\n", "sizes that are unkn"),
        (FUSED, "StableHLO: it has no operation 'fusion'; expected a module before optimizations"),
        (TWO + TWO.replace("one", "two"), "2 modules and none chosen; expected "),
        (HEAD.replace("f32", "u2") + "  ROOT r = u2[40] add(p, p)\n}\n", "JAX cannot export it"),
        ("nonsense", "damaged, cut short or something else"),
    ],
)
def test_file_that_cannot_run_is_refused_in_one_line(
    text: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError) as refused:
        program = DecidedProgram(load_program(put(tmp_path, "a.hlo", text)), SPACES)
        SameOutputs(program).load(np.zeros(len(program.describe().n_options), np.int64))
    line = str(refused.value)
    assert reason in line and "\n" not in line and len(line) < 700


ROOTS = "HloModule a\n\nENTRY e {\n  p = TYPE[400] parameter(0)\n  ROOT r = TYPE[400] sqrt(p)\n}\n"


def test_arguments_are_drawn_so_that_outputs_are_finite(tmp_path: Path) -> None:
    path = put(tmp_path, "roots.hlo", ROOTS.replace("TYPE", "f32"))
    programs = [
        DecidedProgram(load_program(path, ProgramInputs(seed=seed)), ("options",))
        for seed in (0, 0, 1)
    ]
    first, same, other = (program.describe().facts["values"] for program in programs)
    assert first == same != other
    setting = np.zeros(len(programs[0].describe().n_options), np.int64)
    outputs: Any = programs[0].load(setting).run()
    (roots,) = outputs
    assert np.isfinite(roots).all() and len(np.unique(roots)) > 300
    kinds = [("bool", {0, 1}), ("int4", set(range(8))), ("uint32", set(range(8))), ("int2", {0, 1})]
    from jax import numpy as jnp

    for name, values in kinds:
        kind = jnp.dtype(name)
        (drawn,) = draw_arguments([((200,), kind)], SIGNED, 0)  # type: ignore[list-item]
        assert drawn.dtype == kind and set(drawn.astype(int).tolist()) == values
    (drawn,) = draw_arguments([((200,), jnp.dtype("bfloat16"))], POSITIVE, 0)  # type: ignore[list-item]
    assert (drawn.astype(float) > 0).all()


def test_arguments_of_a_file_are_used_and_checked(tmp_path: Path) -> None:
    path = put(tmp_path, "roots.hlo", ROOTS.replace("TYPE", "bf16"))
    from jax import numpy as jnp

    values = np.arange(400).astype(jnp.bfloat16)

    def load(*arrays: Any) -> Any:
        np.savez(tmp_path / "own.npz", *arrays)
        return load_program(path, ProgramInputs(arguments=tmp_path / "own.npz")).build()

    function, arguments = load(values)
    np.testing.assert_array_equal(np.asarray(function(*arguments)[0]), np.sqrt(values))
    for arrays, message in (
        ((values, values), "has 2 arrays; expected 1"),
        ((values.astype(np.float32),), r"arr_0 is float32\[400\]; expected bfloat16\[400\]"),
        ((values[1:],), r"arr_0 is bfloat16\[399\]; expected"),
    ):
        with pytest.raises(UsageError, match=message):
            load(*arrays)
    (tmp_path / "own.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(PipelineError, match=r"own\.npz: cannot be read: .*; expected an npz file"):
        load_program(path, ProgramInputs(arguments=tmp_path / "own.npz")).build()


OWN = """
import jax
import numpy as np
from jax import numpy as jnp

FAMILY = "toy"
SOURCE = "nlp"


def step(x, n, name, weights):
    for _ in range(n):
        x = getattr(jnp, name)(x @ weights["w"])
    return {"x": x, "key": jax.random.key(n)}


def step_arguments():
    return np.full((8, 8), 0.3, np.float32), 2, "tanh", {"w": np.full((8, 8), 0.1, np.float32)}


def calls(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) @ x


def example_arguments():
    return (np.full((8, 8), 0.3, np.float32),)


def wrong(x):
    return x


def wrong_arguments():
    return [1]


def failing(x):
    return x


def failing_arguments():
    raise OSError("no\\ndata")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DecidedProgram]:
    put(tmp_path, "own_programs.py", OWN)
    put(tmp_path, "raises_two_lines.py", 'raise ValueError("one\\ntwo")')
    put(tmp_path, "ends_the_process.py", "raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def opened(name: str, *static: int) -> DecidedProgram:
        return DecidedProgram(load_program(name, ProgramInputs(static)), SPACES)

    return opened


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_program", "not in the catalogue, which `collect --list` prints"),
        ("absent.mlir", "--program absent.mlir: no such file"),
        ("raises_two_lines:step", "cannot be imported: ValueError: one two;"),
        ("ends_the_process:step", "cannot be imported: SystemExit: 3"),
        ("own_programs:absent", "has no function 'absent'; it has .*step"),
        ("own_programs.py:wrong", "are a list; expected a tuple"),
        ("own_programs:failing", r"failing: failing_arguments\(\) fails: OSError: no data"),
        ("json:dumps", r"has no dumps_arguments\(\) nor example_arguments\(\)"),
        ("json:codecs", "is a module; expected a function$"),
    ],
)
def test_program_that_cannot_be_loaded_is_one_line(
    own: Callable[..., DecidedProgram], name: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as error:
        load_program(name).build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("mlp_b16", ProgramInputs((1,)), "--static: mlp_b16 has only arrays"),
        ("own_programs:step", ProgramInputs(arguments=Path("a.npz")), "own_programs:step is no f"),
        ("own_programs:step", ProgramInputs(), "--static N names an argument that is no array"),
        ("own_programs:step", ProgramInputs((1,)), "cannot be compiled: TypeError"),
        ("own_programs:step", ProgramInputs((4,)), "--static 4: expected 0 to 3"),
        ("own_programs:step", ProgramInputs((3,)), "--static 3: unhashable type: 'dict'"),
    ],
)
def test_other_inputs_are_refused(
    own: Callable[..., DecidedProgram], name: str, inputs: ProgramInputs, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        DecidedProgram(load_program(name, inputs), SPACES)


def test_static_arguments_are_bound(own: Callable[..., DecidedProgram]) -> None:
    source = load_program("own_programs:step")
    assert (source.name, source.family, source.source) == ("own_programs.step", "toy", "nlp")
    program = own("own_programs:step", 1, 2)
    assert program.describe().facts["arguments"] == "float32[8,8], float32[8,8]"
    SameOutputs(program).load(last_setting(program))


def test_function_with_a_callback_has_options_only(own: Callable[..., DecidedProgram]) -> None:
    program = own("own_programs:calls")
    setting = np.zeros(len(program.describe().n_options), np.int64)
    setting[0] = 1
    SameOutputs(program).load(setting)
    setting[-1] = 1
    with pytest.raises(PipelineError, match="JAX cannot export it"):
        program.load(setting)


def result_of(name: str, inputs: ProgramInputs, program: DecidedProgram) -> OptimizeResult:
    """A result in which the last option of each knob is faster."""
    setting, ratio = last_setting(program), Ratio(0.5, 0.49, 0.51)
    measured = Comparison(ratio, Ratio(1.0, 0.99, 1.01), 4, 40, 1.0)
    decisions, key = program.describe_setting(setting), tuple(setting.tolist())
    best = OptimizeCandidate(key, "menu", 0.5, "", decisions, measured, measured, measured)
    request = OptimizeRequest(name, SPACES, inputs=inputs)
    screening = Screening([best], 1, 1e6)
    return OptimizeResult(request, program.describe(), screening, [best], measured, decisions)


APPLIED = """
import sys
import numpy as np, jax
from of_file.apply import step as of_file
from of_function.apply import step
from own_programs import step as original, step_arguments
x, n, name, weights = step_arguments()
found, expected = step(2 * x, n, name, weights), original(2 * x, n, name, weights)
np.testing.assert_allclose(found["x"], expected["x"], rtol=1e-4)
assert (jax.random.key_data(found["key"]) == jax.random.key_data(expected["key"])).all()
np.testing.assert_allclose(of_file(4 * np.ones(400))[0], 2)
try:
    step(x[:4], n, name, weights)
except ValueError as error:
    print(error)
assert "autotune" not in sys.modules
"""


def test_apply_py_needs_only_jax_and_the_users_module(
    own: Callable[..., DecidedProgram], tmp_path: Path
) -> None:
    path = put(tmp_path, "roots.hlo", ROOTS.replace("TYPE", "f64"))
    result = result_of("own_programs:step", ProgramInputs((1, 2)), own("own_programs:step", 1, 2))
    write_result(result, tmp_path / "of_function")
    try:
        of_file = DecidedProgram(load_program(path), SPACES)
        content = write_result(result_of(path, ProgramInputs(), of_file), tmp_path / "of_file")
    finally:
        jax.config.update("jax_enable_x64", False)  # as a file of float64 sets it
    assert "--xla_cpu_use_fusion_emitters=false" in content["xla_flags"]
    script = put(tmp_path, "script.py", APPLIED)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "expected (8, 8) and called with (4, 8)" in re.sub(r"\s+", " ", done.stdout)


DOTS = """HloModule dots

ENTRY e {
  x = f32[96,160]{1,0} parameter(0)
  w = f32[160,96]{1,0} parameter(1)
  ids = s32[7]{0} parameter(2)
  first = f32[96,96]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  second = f32[160,160]{1,0} dot(w, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT all = (f32[96,96]{1,0}, f32[160,160]{1,0}, s32[7]{0}) tuple(first, second, ids)
}
"""


def test_file_is_collected_under_the_names_of_its_instructions(tmp_path: Path) -> None:
    path = put(tmp_path, "dots.hlo", DOTS)
    request = CollectRequest(path, n_configs=4)
    outcome = collect_graph(request, tmp_path / "out")
    assert (request.submission_id, request.is_users) == ("layout:xla:random:dots", True)
    if outcome.path:  # runtimes may be too similar
        names = outcome.path.with_suffix(".names.txt").read_text().split()
        with np.load(outcome.path) as arrays:
            nodes = arrays["node_config_ids"]
        assert [names[node] for node in nodes] == ["first", "second"]
    with pytest.raises(UsageError, match="the program was edited after its measurement"):
        put(tmp_path, "dots.hlo", DOTS.replace("s32[7]", "s32[8]"))
        collect_graph(request, tmp_path / "out")


def test_programs_of_every_family_trace_and_equal_builds_give_equal_arguments() -> None:
    """All programs, of other sizes, are compiled in a slow test of test_spaces.py."""
    small = [
        program for program, row in zip(catalogue(), rows(), strict=True) if row["plan"] == "sample"
    ]
    programs = {p.family: p for p in sorted(small, key=lambda p: "_train_" in p.name)}
    for place, program in enumerate(programs.values()):
        function, arguments = program.build()
        assert jax.tree.leaves(jax.eval_shape(function, *arguments))
        leaves = jax.tree.leaves(arguments)
        assert sum(leaf.size for leaf in leaves) < 10_000_000
        if place % 8 == 0:
            again = jax.tree.leaves(program.build()[1])
            assert all(map(np.array_equal, leaves, again)) and len(leaves) == len(again)
