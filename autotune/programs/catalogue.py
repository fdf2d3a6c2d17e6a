"""The programs that can be measured: the sample's in programs.tsv, functions and files of a user.

A family is one architecture, a function in another module of this folder. It may have several
depths, batch sizes and training steps, all in one split. `configs` is the number of configs to
measure for each search. Families with 80 configs got their split by a random draw, before any of
them was measured.

A user's function is named as `package.module:function`. The function `FUNCTION_arguments` of the
same module, or else `example_arguments`, returns the tuple of its example arguments: arrays, or
lists and dicts of arrays, weights included. `FAMILY` and `SOURCE` ("xla" or "nlp") in the module
name the family and the collection. Their defaults are the module's last name and "xla".
"""

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, Literal, cast, get_args

from autotune.measure.worker import error_line
from common.errors import PipelineError, UsageError
from data.hlo.files import split_choice
from data.hlo.programs import ENDINGS
from models.config.custom import imported

Source = Literal["xla", "nlp"]
Build = Callable[[], tuple[Callable[..., object], tuple[object, ...]]]
TABLE = Path(__file__).with_name("programs.tsv")


@dataclass(frozen=True)
class ProgramInputs:
    """The arguments of a user's program.

    Attributes:
        static: Positions of the arguments of a function that are no arrays, from 0. The function
            is traced for their values.
        arguments: npz file with the arguments of a file's program. None draws them.
        batch: The symbolic size of a `jax.export` artifact. None if it has none.
    """

    static: tuple[int, ...] = ()
    arguments: Path | None = None
    seed: int = 0
    batch: int | None = None


NO_INPUTS = ProgramInputs()


@dataclass(frozen=True)
class ProgramSource:
    """A JAX program before it is compiled.

    Attributes:
        name: Unique name. It becomes a file name.
        family: Name of the architecture without its sizes.
        source: "nlp" for transformers, "xla" for all other programs.
        build: Function that returns a function of arrays and the tuple of its example arguments.
            Weights are arguments, so the compiler cannot fold them. All calls return the same.
        module: Function that returns the HloModuleProto of the file. None for a function.
        redraw: Function that draws other arguments. None if the arguments are not drawn.
    """

    name: str
    family: str
    source: Source
    build: Build
    module: Callable[[], Any] | None = None
    redraw: Callable[[], tuple[object, ...]] | None = None


@cache
def rows() -> list[dict[str, str]]:
    """Return the rows of programs.tsv, by source and family."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def _build(row: dict[str, str]) -> tuple[Callable[..., object], tuple[object, ...]]:
    from autotune.programs import convolutional, dense, layers, scientific, texts, transformers

    modules = (convolutional, dense, scientific, texts, transformers)
    make = next(getattr(m, row["family"]) for m in modules if hasattr(m, row["family"]))
    sizes = [int(row[key]) for key in ("batch", "depth") if row[key]]
    network, arguments = layers.build_network(make, *sizes)
    return layers.training_step(network, arguments) if row["training"] else (network, arguments)


def catalogue() -> list[ProgramSource]:
    """Return the sample's programs, by source and family."""
    return [
        ProgramSource(
            row["program"], row["family"], cast(Source, row["source"]), partial(_build, row)
        )
        for row in rows()
    ]


def is_file(name: str) -> bool:
    """Return whether a program is a file, or looks like one, for example "step.mlir"."""
    path, _ = split_choice(Path(name))
    is_path = path.exists() or len(path.parts) > 1 or path.suffix in ENDINGS
    return is_path and all(name != row["program"] for row in rows())


def load_function(name: str, static: tuple[int, ...] = ()) -> ProgramSource:
    """Return a user's function "module:function". The module may be in the working folder."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    function = imported(name, "--program", "function")
    if not callable(function):
        raise UsageError(f"--program {name}: is a {type(function).__name__}; expected a function")
    module_name, function_name = name.split(":", 1)
    module = sys.modules[module_name]
    choices = (f"{function_name}_arguments", "example_arguments")
    arguments_name = next((name for name in choices if hasattr(module, name)), choices[0])
    arguments = getattr(module, arguments_name, None)
    if not callable(arguments):
        raise PipelineError(
            f"--program {name}: {module_name} has no {choices[0]}() nor {choices[1]}(); "
            f"expected one that returns the tuple of example arguments"
        )
    source = getattr(module, "SOURCE", "xla")
    if source not in get_args(Source):
        raise PipelineError(f"--program {name}: SOURCE is {source!r}; expected 'xla' or 'nlp'")

    def build() -> tuple[Callable[..., object], tuple[object, ...]]:
        try:
            example = arguments()
        except (Exception, SystemExit) as error:
            reason = f"--program {name}: {arguments_name}() fails: {error_line(error)}"
            raise PipelineError(reason) from error
        if not isinstance(example, tuple):
            reason = f"its example arguments are a {type(example).__name__}; expected a tuple"
            raise PipelineError(f"--program {name}: {reason}")
        return bind_static(function, example, static) if static else (function, example)

    return ProgramSource(
        # With an underscore a.b:c and a_b:c would have the same name.
        name=f"{module_name}.{function_name}",
        family=str(getattr(module, "FAMILY", module_name.rsplit(".", 1)[-1])),
        source=cast(Source, source),
        build=build,
    )


def bind_static(
    function: Callable[..., object], arguments: tuple[object, ...], static: tuple[int, ...]
) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Return a function of the other arguments, and these arguments."""
    for place in static:
        if not 0 <= place < len(arguments):
            raise UsageError(f"--static {place}: expected 0 to {len(arguments) - 1}")
        try:
            hash(arguments[place])
        except TypeError as error:
            reason = f"--static {place}: {error}; expected a value that Python can hash"
            raise UsageError(reason) from error

    @wraps(function)
    def with_static(*arrays: object) -> object:
        next_arrays = iter(arrays)
        values = (value if i in static else next(next_arrays) for i, value in enumerate(arguments))
        return function(*values)

    return with_static, tuple(value for i, value in enumerate(arguments) if i not in static)
