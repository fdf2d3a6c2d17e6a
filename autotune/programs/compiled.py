"""A JAX function as an HLO module. An edited module is a JAX function again.

The module of a function is dumped just before layouts are chosen: it is inlined and simplified, but
not fused. TpuGraphs stores the same.

A module becomes a function through `jax.export`: the serialized StableHLO of an export is replaced.
The conversion of HLO to StableHLO is private to jaxlib. The function that `accept_extra_options`
wraps is private to jax. Only this file uses them.
"""

import hashlib
import os
import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from autotune.measure.worker import error_line, one_line
from autotune.programs.catalogue import ProgramSource
from common.errors import PipelineError
from data.hlo.compiler_options import EXTRA, extra_flag
from data.hlo.descriptor import message_class
from data.hlo.parse import jaxlib_function

ELF = b"\x7fELF"
# Number of the field of DebugOptions that holds the extra options.
_EXTRA_FIELD = 500
DUMPED_STEP = "layout-assignment"
_ILLEGAL = re.compile(r"failed to legalize operation '(?:mhlo\.)?([\w.]+)'")
# Tables of the Python calls that led to each instruction.
_STACKS = re.compile(r"^(?:File|Function|Stack)\w+\n(?:.+\n)*| stack_frame_id=\d+", re.M)
_CUSTOM_CALL = re.compile(r"custom_call @\"?([^\s\"(]+)")


def lower_program(source: ProgramSource) -> tuple[Callable[..., Any], Any, Any]:
    """Build and trace a program.

    Returns:
        The function, its arguments on the device, and the `jax.stages.Lowered`.
    """
    import jax

    try:
        function, arguments = source.build()

        @wraps(function)
        def with_check(*inputs: Any) -> Any:
            outputs = function(*inputs)
            if not any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(outputs)):
                raise PipelineError(f"{source.name}: returns no array; expected at least one array")
            return outputs

        arguments = jax.device_put(arguments)
        return function, arguments, jax.jit(with_check, keep_unused=True).lower(*arguments)
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        # JAX refuses texts and functions, and `if` on a number, by a TypeError.
        hint = "; --static N names an argument that is no array" * isinstance(error, TypeError)
        reason = f"cannot be compiled: {error_line(error)}{hint}"
        raise PipelineError(f"{source.name}: {reason}") from error


def accept_extra_options() -> None:
    """Let `compiler_options` have EXTRA, as one compilation's own part of XLA_FLAGS.

    An option that XLA_FLAGS has already is left to XLA_FLAGS. A jax without the wrapped function
    goes on refusing EXTRA.
    """
    from jax._src import compiler

    original = getattr(compiler, "get_compile_options", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def with_extra(*args: Any, env_options_overrides: Any = None, **more: Any) -> Any:
        overrides = dict(env_options_overrides or {})
        extra = str(overrides.pop(EXTRA, ""))
        options = original(*args, env_options_overrides=overrides, **more)
        if not extra or extra_flag(extra) in os.environ.get("XLA_FLAGS", "").split():
            return options
        # Reading the debug options fills them in. Messages whose bytes are joined are merged.
        _ = options.executable_build_options.debug_options
        pairs = (text.partition("=")[::2] for text in extra.split(","))
        entries = (_message(1, key.encode()) + _message(2, value.encode()) for key, value in pairs)
        debug = b"".join(_message(_EXTRA_FIELD, entry) for entry in entries)
        content = options.SerializeAsString() + _message(3, _message(3, debug))
        return type(options).ParseFromString(content)

    compiler.get_compile_options = with_extra


def _message(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message. Its tag and its length are varints."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _varint(value >> 7)


def dump_module(name: str, lowered: Any) -> Any:
    """Compile a `jax.stages.Lowered` and return its HloModuleProto before layout assignment."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            lowered.compile(
                compiler_options={
                    "xla_dump_to": folder,
                    "xla_dump_hlo_as_proto": True,
                    "xla_dump_hlo_pass_re": DUMPED_STEP,
                    # Otherwise the module depends on the number of threads of the process.
                    "xla_cpu_multi_thread_eigen": False,
                }
            )
        except Exception as error:
            raise PipelineError(f"{name}: cannot be compiled: {error_line(error)}") from error
        return _read_dump(name, Path(folder))


def _read_dump(name: str, folder: Path) -> Any:
    files = sorted(folder.glob(f"*before_{DUMPED_STEP}.hlo.pb"))
    if not files:
        raise PipelineError(
            f"{name}: the compiler dumped no module before {DUMPED_STEP}; expected one from "
            "xla_dump_hlo_pass_re (a newer jaxlib may have renamed the pass)"
        )
    # Small programs that run while tracing are dumped too. The largest is the program itself.
    largest = max(files, key=lambda path: path.stat().st_size)
    return message_class("HloProto").FromString(largest.read_bytes()).hlo_module


def facts_of(lowered: Any, arguments: Any, *, has_values: bool) -> dict[str, str]:
    """Return the digest of a `jax.stages.Lowered`, and types and shapes of its arguments.

    Args:
        has_values: Whether the facts include a digest of the arguments' values.
    """
    import jax

    leaves = jax.tree.leaves(arguments)
    facts = {
        "function": hashlib.blake2b(lowered.as_text().encode(), digest_size=8).hexdigest(),
        # For example "float32[4,2], int32[]".
        "arguments": ", ".join(jax.typeof(leaf).str_short() for leaf in leaves),
    }
    if has_values:
        values = hashlib.blake2b(digest_size=8)
        for leaf in leaves:
            values.update(np.asarray(leaf).tobytes())
        facts["values"] = values.hexdigest()
    return facts


def code_of(executable: Any) -> str:
    """Return a digest of the code of an executable.

    The digest is of the optimized HLO text without call stacks, and of the sorted object files,
    which lack the compiler options. Systems without ELF files, for example macOS, use the whole
    executable, so different code never has the same digest. An executable that cannot be
    serialized, for example because it sorts, has the digest "".
    """
    import jax

    text = "".join(module.to_string() for module in executable.hlo_modules())
    try:
        content = executable.serialize()
    except jax.errors.JaxRuntimeError:
        return ""
    digest = hashlib.blake2b(_STACKS.sub("", text).encode(), digest_size=16)
    start, objects = content.find(ELF), list[bytes]()
    # An object file ends with the table of its sections.
    while start >= 0:
        table, size, count = struct.unpack_from("<40xQ10xHH", content, start)
        end = start + table + size * count
        objects.append(hashlib.blake2b(content[start:end]).digest())
        start = content.find(ELF, end)
    digest.update(b"".join(sorted(objects)) or content)
    return digest.hexdigest()


def raw(leaf: Any) -> Any:
    """Return an argument as an array. A typed key of jax.random becomes its numbers."""
    import jax

    is_key = not isinstance(getattr(leaf, "dtype", np.dtype(float)), np.dtype)
    return jax.random.key_data(leaf) if is_key else leaf


def share_finite(outputs: Any) -> float:
    """Return the share of finite numbers in all floating-point outputs. 1 without such outputs."""
    import jax

    arrays = [np.asarray(raw(leaf)) for leaf in jax.tree.leaves(outputs)]
    floats = [array for array in arrays if jax.numpy.issubdtype(array.dtype, jax.numpy.inexact)]
    finite = np.concatenate([[], *(np.isfinite(array).ravel() for array in floats)])
    return float(finite.mean()) if len(finite) else 1.0


def export_flat(name: str, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Return a function of lists, the leaves of its trees, as a `jax.export.Exported`."""
    import jax
    from jax import export

    leaves, tree = jax.tree.flatten(tuple(arguments))

    def on_leaves(*inputs: Any) -> list[Any]:
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, inputs)))

    flat = jax.jit(on_leaves, keep_unused=True)
    targets = set(_CUSTOM_CALL.findall(flat.lower(*leaves).as_text()))
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in targets]
    try:
        export_result = export.export(flat, disabled_checks=checks)(*leaves)
        export_result.serialize()
    except Exception as error:
        fault = f"JAX cannot export it ({error_line(error)})"
        raise PipelineError(f"{name}: {fault}; --space options of a function needs none") from error
    return export_result


def with_module(name: str, export_result: Any, module: bytes) -> Any:
    """Return a `jax.export.Exported` that computes another HLO module.

    The module has the same parameters and results.
    """
    from jaxlib.mlir.dialects import stablehlo

    mlir = jaxlib_function("mlir", name)
    try:
        content = mlir.serialize_portable_artifact(
            mlir.hlo_to_stablehlo(module), stablehlo.get_current_version()
        )
    except Exception as error:
        match = _ILLEGAL.search(str(error))
        reason = f"it has no operation '{match[1]}'" if match else one_line(error)
        fault = f"cannot be converted to StableHLO: {reason}"
        raise PipelineError(f"{name}: {fault}; expected a module before optimizations") from error
    return replace(export_result, mlir_module_serialized=content)
