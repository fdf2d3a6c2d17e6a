"""A program of a file as a JAX function: HLO or StableHLO of any framework.

The function takes the parameters of the entry computation by position, and returns a list. Tuples
are flattened. Layouts of the entry and donated arguments are not part of it.

Arguments are drawn as by XLA's MakeFakeArguments: small floats, mostly positive. If the outputs are
then not all finite, for example because of a negative variance, positive numbers are drawn.
"""

import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.measure.worker import one_line
from autotune.programs.catalogue import (
    NO_INPUTS,
    ProgramInputs,
    ProgramSource,
    catalogue,
    is_file,
    load_function,
)
from autotune.programs.compiled import export_flat, with_module
from common.errors import PipelineError, UsageError
from common.files import missing_path
from data.hlo.files import EXPECTED, choose, split_choice
from data.hlo.parse import check_jaxlib, jaxlib_function
from data.hlo.programs import program_name, read_programs

# Operations that wait for the host.
HOST = ("infeed", "outfeed", "send", "recv", "send-done", "recv-done")
# Limits of floats and integers, for the first draw and for the second.
SIGNED, POSITIVE = (-0.1, 0.2, 8), (0.01, 0.2, 2)


class Array(NamedTuple):
    """Shape and type of a parameter or result."""

    shape: tuple[int, ...]
    dtype: Any

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def load_program(name: str, inputs: ProgramInputs = NO_INPUTS) -> ProgramSource:
    """Return a program of the catalogue, a user's function or the program of a file.

    Args:
        name: Name in the catalogue, "module:function", FILE or FILE#MODULE.
    """
    if inputs.batch is not None and not is_file(name):
        raise UsageError(f"--batch: {name} is no file; expected a jax.export artifact")
    if inputs.static and (is_file(name) or ":" not in name):
        raise UsageError(f"--static: {name} has only arrays; expected package.module:function")
    if inputs.arguments and not is_file(name):
        raise UsageError(f"--arguments: {name} is no file; expected FILE or FILE#MODULE")
    if is_file(name):
        return file_program(name, inputs)
    if ":" in name:
        return load_function(name.replace(".py:", ":"), inputs.static)
    programs = {program.name: program for program in catalogue()}
    if name not in programs:
        raise PipelineError(
            f"program '{name}': not in the catalogue, which `collect --list` prints, and no file; "
            "or give your own as package.module:function"
        )
    return programs[name]


def file_program(name: str, inputs: ProgramInputs) -> ProgramSource:
    """Return the program of FILE or FILE#MODULE. The file is read when the program is built."""
    path, module_name = split_choice(Path(name))
    if not path.exists():
        raise PipelineError(f"--program {missing_path(path, EXPECTED)}")
    stem, read = program_name(path), cache(lambda: read_module(name, inputs.batch))

    def build() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        module, parameters, results = read()
        if inputs.arguments is not None:
            arguments = load_arguments(inputs.arguments, parameters)
        else:
            arguments = draw_arguments(parameters, SIGNED, inputs.seed)
        return as_function(name, module, parameters, results), arguments

    def redraw() -> tuple[Any, ...]:
        return draw_arguments(read()[1], POSITIVE, inputs.seed)

    unique = f"{stem}_{module_name}" if module_name else stem
    again = None if inputs.arguments else redraw
    return ProgramSource(unique, stem, "xla", build, lambda: read()[0], again)


def read_module(name: str, batch: int | None = None) -> tuple[Any, list[Array], list[Array]]:
    """Read a module that can run without its host."""
    check_jaxlib(name)
    programs = read_programs(Path(name), batch=batch)
    stem = program_name(split_choice(Path(name))[0])
    names = [(program.name.removeprefix(f"{stem}_"),) for program in programs]
    program = programs[choose(Path(name), names, None)]
    if program.left_out:
        fault = f"is not read completely: {program.left_out}; expected a module that can run"
        how = "--xla_dump_hlo_as_proto writes it, and --xla_dump_large_constants writes constants"
        raise PipelineError(f"{program.source}: {fault}; {how}")
    for computation in program.module.computations:
        for op in computation.instructions:
            target = op.custom_call_target
            if op.opcode in HOST or "callback" in target:
                fault = f"instruction '{op.name}' calls the host ({target or op.opcode})"
                advice = "expected a program that runs without Python or a host"
                raise PipelineError(f"{program.source}: {fault}; {advice}")
    return program.module, *_signature(program.module, program.source)


def _signature(module: Any, source: str) -> tuple[list[Array], list[Array]]:
    def arrays(shape: Any) -> list[Array]:
        if shape.is_tuple():
            return [array for part in shape.tuple_shapes() for array in arrays(part)]
        dtype = np.dtype(shape.numpy_dtype())
        if dtype.kind == "O":
            raise TypeError(f"the type {shape}")
        return [Array(tuple(shape.dimensions()), dtype)]

    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    if any(any(op.shape.is_dynamic_dimension) for op in entry.instructions):
        raise PipelineError(f"{source}: has sizes that are unknown until it runs; expected others")
    computation = jaxlib_function("XlaComputation", source)
    try:
        signature = computation(module.SerializeToString()).program_shape()
        parameters = [array for shape in signature.parameter_shapes() for array in arrays(shape)]
        return parameters, arrays(signature.result_shape())
    except Exception as error:
        fault = f"has a parameter or result that is no array: {one_line(error)}"
        raise PipelineError(f"{source}: {fault}; expected arrays") from error


def as_function(
    name: str, module: Any, parameters: list[Array], results: list[Array]
) -> Callable[..., Any]:
    """Return a JAX function that computes a module."""
    import jax

    if any(array.dtype.itemsize == 8 for array in (*parameters, *results)):
        jax.config.update("jax_enable_x64", True)

    def zeros(*_: Any) -> list[Any]:
        return [jax.numpy.zeros(*array) for array in results]

    example = [jax.ShapeDtypeStruct(*array) for array in parameters]
    export = export_flat(name, zeros, example)
    call: Callable[..., Any] = with_module(name, export, module.SerializeToString()).call
    return call


def draw_arguments(
    parameters: list[Array], limits: tuple[float, float, int], seed: int
) -> tuple[NDArray[Any], ...]:
    """Draw arguments. Equal seeds give equal arguments.

    Args:
        limits: Smallest and largest float, and number of distinct integers from 0.
    """
    import jax.numpy as jnp

    low, high, n_integers = limits
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        if dtype.kind == "b":
            return rng.random(shape) < 0.5
        if jnp.issubdtype(dtype, jnp.integer):
            n = min(n_integers, int(jnp.iinfo(dtype).max) + 1)
            return rng.integers(0, n, shape).astype(dtype)
        values = rng.uniform(low, high, shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return (values + 1j * rng.uniform(low, high, shape)).astype(dtype)
        return values.astype(dtype)

    return tuple(draw(*parameter) for parameter in parameters)


def load_arguments(path: Path, parameters: list[Array]) -> tuple[NDArray[Any], ...]:
    """Read arguments from an npz file: one array for each parameter, in their order.

    Types that NumPy lacks, for example bfloat16, are stored as bytes of the same size.
    """
    try:
        with np.load(path) as file:
            arrays = list(dict(file).items())
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError) as error:
        fault = f"cannot be read: {one_line(error)}"
        raise PipelineError(f"--arguments {path}: {fault}; expected an npz file") from error
    if len(arrays) != len(parameters):
        fault = f"{len(arrays)} arrays; expected {len(parameters)}, one for each parameter"
        raise UsageError(f"--arguments {path}: has {fault}")
    arguments = []
    for (key, content), parameter in zip(arrays, parameters, strict=True):
        is_bytes = content.dtype.kind == "V" and content.dtype.itemsize == parameter.dtype.itemsize
        array = content.view(parameter.dtype) if is_bytes else content
        actual = Array(array.shape, array.dtype)
        if actual != parameter:
            raise UsageError(f"--arguments {path}: {key} is {actual}; expected {parameter}")
        arguments.append(array)
    return tuple(arguments)
