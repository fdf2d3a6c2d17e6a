"""The HLO module of a JAX program. An edited module can be compiled and run.

The module is dumped just before layouts are chosen: it is inlined and simplified, but not fused.
TpuGraphs stores the same.

JAX has no public way to compile an HLO module. Only this file uses the private one, with releases
of jaxlib that were tested (`data.hlo.formats.check_jaxlib`).
"""

import hashlib
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from autotune.measure.worker import error_line, one_line
from autotune.programs.catalogue import ProgramSource
from common.errors import PipelineError
from data.hlo.compiler_options import Options
from data.hlo.descriptor import message_class
from data.hlo.formats import check_jaxlib

ELF = b"\x7fELF"
DUMPED_STEP = "layout-assignment"


def dump_module(source: ProgramSource) -> Any:
    """Compile a program once and return its HloModuleProto before layout assignment.

    Args:
        source: The program.

    Raises:
        PipelineError: The program cannot be built, traced, compiled or dumped, or returns no array.
    """
    import jax

    try:
        function, arguments = source.build()

        @wraps(function)
        def checked(*given: Any) -> Any:
            returned = function(*given)
            if not any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(returned)):
                raise PipelineError(f"{source.name}: returns no array; expected at least one array")
            return returned

        lowered = jax.jit(checked, keep_unused=True).lower(*arguments)
        with tempfile.TemporaryDirectory() as folder:
            lowered.compile(
                compiler_options={
                    "xla_dump_to": folder,
                    "xla_dump_hlo_as_proto": True,
                    "xla_dump_hlo_pass_re": DUMPED_STEP,
                    # Otherwise the module depends on the number of threads of the process.
                    "xla_cpu_multi_thread_eigen": False,
                }
            )
            return _read_dump(source.name, Path(folder))
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        raise PipelineError(f"{source.name}: cannot be compiled: {error_line(error)}") from error


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


def digest_of(lowered: Any) -> str:
    """Return a digest of a function, 16 hex digits.

    Args:
        lowered: The function as a `jax.stages.Lowered`.
    """
    return hashlib.blake2b(lowered.as_text().encode(), digest_size=8).hexdigest()


def shapes_of(arguments: Any) -> str:
    """Return types and shapes of arguments, for example "float32[4,2], int32[]".

    Args:
        arguments: Tree of arguments.
    """
    import jax

    return ", ".join(jax.typeof(leaf).str_short() for leaf in jax.tree.leaves(arguments))


def code_of(executable: Any) -> str:
    """Return a digest of the code of an executable.

    The digest is of the optimized HLO text and the sorted object files. Neither contains the
    compiler options. Systems without ELF files, for example macOS, use the whole executable, so
    different code never has the same digest.

    Args:
        executable: Executable that XLA loaded.
    """
    text = "".join(module.to_string() for module in executable.hlo_modules())
    content, found = executable.serialize(), hashlib.blake2b(text.encode(), digest_size=16)
    start, objects = content.find(ELF), list[bytes]()
    # An object file ends with the table of its sections.
    while start >= 0:
        (table,) = struct.unpack_from("<Q", content, start + 0x28)
        size, count = struct.unpack_from("<HH", content, start + 0x3A)
        end = start + table + size * count
        objects.append(hashlib.blake2b(content[start:end]).digest())
        start = content.find(ELF, end)
    found.update(b"".join(sorted(objects)) or content)
    return found.hexdigest()


def raw(leaf: Any) -> Any:
    """Return an argument as an array. A typed key of jax.random becomes its numbers.

    Args:
        leaf: One array of the arguments.
    """
    import jax

    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return not isinstance(getattr(leaf, "dtype", np.dtype(float)), np.dtype)


def applied(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    path: Path,
    options: Options,
    digest: str,
) -> Callable[..., Any]:
    """Return a function that runs the edited HLO module of a function.

    Args:
        function: The function.
        arguments: Example arguments. The result accepts only the same shapes and types.
        path: File with the serialized HloModuleProto.
        options: Compiler options.
        digest: Digest of the function from which the module was made.

    Raises:
        OSError: The file cannot be read.
        PipelineError: The compiler rejects the module, or the function was edited.
    """
    import jax

    check_jaxlib(str(path))
    if digest_of(jax.jit(function, keep_unused=True).lower(*arguments)) != digest:
        raise PipelineError(
            f"{path}: was made of the function as it was before an edit; optimize it again"
        )
    executable = loaded_module(str(path), path.read_bytes(), options)
    return as_function(str(path), executable, function, arguments)


def loaded_module(name: str, module: bytes, options: Options) -> Any:
    """Compile an HLO module and return the executable.

    Args:
        name: Name in the error.
        module: Serialized HloModuleProto.
        options: Compiler options.

    Raises:
        PipelineError: The compiler rejects the module.
    """
    import jax
    from jaxlib import _jax

    device = jax.devices()[0]
    try:
        stable = _jax.mlir.hlo_to_stablehlo(module)
        how = _jax.CompileOptions()
        how.env_option_overrides = list(options.items())
        return device.client.compile_and_load(stable, [device], how)
    except Exception as error:
        raise PipelineError(f"{name}: the compiler refuses: {one_line(error)}") from error


def as_function(
    name: str, executable: Any, function: Callable[..., Any], arguments: Sequence[Any]
) -> Callable[..., Any]:
    """Return a function that runs an executable with the signature of a JAX function.

    The result takes positional arguments. It raises a TypeError if shapes, types or structure
    differ from the example, or if `jax.jit` or `jax.grad` traces it.

    Args:
        name: Name in errors.
        executable: Loaded executable of the function's module.
        function: The JAX function.
        arguments: Example arguments.

    Raises:
        PipelineError: The function returns typed random keys.
    """
    import jax

    results, outputs = jax.tree.flatten(jax.eval_shape(function, *arguments))
    if any(map(_is_key, results)):
        raise PipelineError(f"{name}: returns typed keys of jax.random; an edited module cannot")
    leaves, inputs = jax.tree.flatten(tuple(arguments))
    # Each call is timed, so it looks for keys only if the example has one.
    has_keys = any(map(_is_key, leaves))
    # A call of a compiled function places NumPy arrays in a fifth of the time of device_put.
    to_device = jax.jit(lambda *leaves: leaves)

    def placed(leaves: Sequence[Any]) -> tuple[list[Any], list[tuple[Any, ...]]]:
        are_there = all(isinstance(leaf, jax.Array) for leaf in leaves)
        own = list(leaves if are_there else to_device(*leaves))
        own = [raw(leaf) for leaf in own] if has_keys else own
        return own, [(leaf.shape, leaf.dtype) for leaf in own]

    _, expected = placed(leaves)

    def run(*given: Any) -> Any:
        leaves, tree = jax.tree.flatten(given)
        own, kinds = placed(leaves)
        if (tree, kinds) != (inputs, expected):
            example = f"{shapes_of(arguments)} as {inputs}"
            raise TypeError(f"{name}: expected {example}; got {shapes_of(given)} as {tree}")
        try:
            results = executable.execute_sharded(own).disassemble_into_single_device_arrays()
        except TypeError as error:
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                is_compiled = "a compiled module; call it outside jax.jit, jax.grad and jax.vmap"
                raise TypeError(f"{name}: {is_compiled}") from error
            raise
        return jax.tree.unflatten(outputs, [arrays[0] for arrays in results])

    return run
