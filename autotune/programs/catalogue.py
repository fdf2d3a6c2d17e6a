"""The programs that can be measured: the sample's, in programs.tsv, and a user's own functions.

A family is one architecture, by its name in a module beside this one; its depths, batch sizes and
training steps are siblings, and all of them lie in one split: those of 80 `configs`, which tell how
many to measure for each search, were put there by a draw, before any of them was measured.

A user's function is given as `package.module:function`; its example arguments come from the
function beside it that is called `FUNCTION_arguments`, or else `example_arguments`. That takes no
argument and returns a tuple of arrays (or lists and dicts of arrays); weights belong among them.
`FAMILY` and `SOURCE` ("xla" or "nlp") in the module name its family and collection; they default
to the module's last name and "xla".
"""

import csv
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, cast, get_args

from autotune.measure.worker import error_line
from common.errors import PipelineError, UsageError

Source = Literal["xla", "nlp"]
Build = Callable[[], tuple[Callable[..., object], tuple[object, ...]]]
MAX_TOLD = 200  # characters of what a module holds
TABLE = Path(__file__).with_name("programs.tsv")
KERNELS = "a TileKernel is of --space tiles, in collect of --kind tile"


@dataclass(frozen=True)
class ProgramSource:
    """A JAX program before anything is compiled."""

    name: str  # unique; becomes a file name
    family: str  # the architecture without its sizes; folds and splits keep families together
    source: Source  # "nlp" of transformers, "xla" of all others
    # Returns a function of arrays and the tuple of its example arguments. Weights are arguments, so
    # that the compiler cannot fold them; equal calls give equal arguments.
    build: Build


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
    network, arguments = layers.drawn(make, *sizes)
    return layers.training_step(network, arguments) if row["training"] else (network, arguments)


def catalogue() -> list[ProgramSource]:
    """Return the sample's programs, by source and family."""
    return [
        ProgramSource(
            row["program"], row["family"], cast(Source, row["source"]), partial(_build, row)
        )
        for row in rows()
    ]


def load_program(name: str) -> ProgramSource:
    """Return a program of the catalogue, or the user's own "module:function", if there is one."""
    if ":" in name:
        return _load_function(name)
    programs = {program.name: program for program in catalogue()}
    if name not in programs:
        raise PipelineError(
            f"program '{name}': not in the catalogue, which `collect --list` prints; "
            "or give your own as package.module:function"
        )
    return programs[name]


def named_object(name: str) -> Any:
    """Import the module before the colon; return what it holds under the name after it.

    Modules in the working folder are found too. PipelineError: one line, why it cannot.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or be a script
        reason = error_line(error)
        expected = "expected package.module:function, found from the working folder or PYTHONPATH"
        raise PipelineError(
            f"--program {name}: cannot be imported: {reason}; {expected}"
        ) from error
    if not hasattr(module, attribute):
        own = (k for k, v in vars(module).items() if getattr(v, "__module__", None) == module_name)
        has = shorten(", ".join(own) or "none of its own", MAX_TOLD, placeholder=" …")
        raise PipelineError(f"--program {name}: {module_name} holds no '{attribute}'; it has {has}")
    return getattr(module, attribute)


def _load_function(name: str) -> ProgramSource:
    function = named_object(name)
    if not callable(function):
        raise UsageError(
            f"--program {name}: is a {type(function).__name__}; expected a function; {KERNELS}"
        )
    module_name, function_name = name.split(":", 1)
    module = sys.modules[module_name]
    beside = (f"{function_name}_arguments", "example_arguments")
    found = [name for name in beside if hasattr(module, name)]
    arguments = getattr(module, found[0]) if found else None
    if not callable(arguments):
        raise PipelineError(
            f"--program {name}: {module_name} has no {beside[0]}() nor {beside[1]}(); "
            f"expected one that returns the tuple of example arguments; {KERNELS}"
        )
    source = getattr(module, "SOURCE", "xla")
    if source not in get_args(Source):
        raise PipelineError(f"--program {name}: SOURCE is {source!r}; expected 'xla' or 'nlp'")

    def build() -> tuple[Callable[..., object], tuple[object, ...]]:
        try:
            made = arguments()
        except (Exception, SystemExit) as error:
            reason = f"--program {name}: {found[0]}() fails: {error_line(error)}"
            raise PipelineError(reason) from error
        if not isinstance(made, tuple):
            reason = f"its example arguments are a {type(made).__name__}; expected a tuple"
            raise PipelineError(f"--program {name}: {reason}")
        return function, made

    return ProgramSource(
        name=f"{module_name}.{function_name}",  # dots kept: a.b:c is not a_b:c
        family=str(getattr(module, "FAMILY", module_name.rsplit(".", 1)[-1])),
        source=cast(Source, source),
        build=build,
    )
