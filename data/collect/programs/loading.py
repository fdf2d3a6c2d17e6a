"""Find a program by its name in the catalogue, or a user's own function by module and name.

A user's function is given as `package.module:function`; its example arguments come from the
function beside it that is called `FUNCTION_arguments`, or else `example_arguments`. That takes no
argument and returns a tuple of arrays (or lists and dicts of arrays); weights belong among them.
`FAMILY` and `SOURCE` ("xla" or "nlp") in the module name its family and collection; they default
to the module's last name and "xla".
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast, get_args

from common.errors import PipelineError
from data.collect.layouts.module import ProgramSource, Source
from data.collect.measuring.worker import one_line
from data.collect.programs.catalogue import catalogue


def named_object(name: str) -> object:
    """Import the module before the colon and return what it holds under the name after it.

    Modules in the working folder are found too.

    Raises:
        PipelineError: the module fails to import, or holds no such name; one line.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise PipelineError(f"--program {name}: expected package.module:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or be a script
        reason = one_line(f"{type(error).__name__}: {error}")
        raise PipelineError(f"--program {name}: cannot be imported: {reason}") from error
    if not hasattr(module, attribute):
        raise PipelineError(f"--program {name}: {module_name} holds no '{attribute}'")
    found: object = getattr(module, attribute)
    return found


def load_program(name: str) -> ProgramSource:
    """Return the catalogue's program `name`, or the user's own "module:function".

    Raises:
        PipelineError: there is no such program, module or function, or no example arguments.
    """
    if ":" in name:
        return _load_function(name)
    programs = {program.name: program for program in catalogue()}
    if name not in programs:
        raise PipelineError(
            f"program '{name}': not in the catalogue; known: {', '.join(programs)}; "
            "or give your own as package.module:function"
        )
    return programs[name]


def _load_function(name: str) -> ProgramSource:
    function = named_object(name)
    module_name, function_name = name.split(":", 1)
    module = sys.modules[module_name]
    if not callable(function):
        raise PipelineError(f"--program {name}: is a {type(function).__name__}, no function")
    beside = (f"{function_name}_arguments", "example_arguments")
    arguments = next((getattr(module, a) for a in beside if hasattr(module, a)), None)
    if not callable(arguments):
        raise PipelineError(
            f"--program {name}: {module_name} has no {beside[0]}() nor {beside[1]}(); "
            "expected one that returns the tuple of example arguments"
        )
    source = getattr(module, "SOURCE", "xla")
    if source not in get_args(Source):
        raise PipelineError(f"--program {name}: SOURCE is {source!r}; expected 'xla' or 'nlp'")
    return ProgramSource(
        name=f"{module_name}.{function_name}",  # dots kept: a.b:c is not a_b:c
        family=str(getattr(module, "FAMILY", module_name.rsplit(".", 1)[-1])),
        source=cast(Source, source),
        build=partial(_build, name, function, arguments),
    )


def _build(
    name: str, function: Callable[..., object], arguments: Callable[[], object]
) -> tuple[Callable[..., object], tuple[object, ...]]:
    made = arguments()
    if not isinstance(made, tuple):
        raise PipelineError(
            f"--program {name}: its example arguments are a {type(made).__name__}; expected a tuple"
        )
    return function, made
