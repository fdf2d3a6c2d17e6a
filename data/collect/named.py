"""Objects of users' own modules, named "package.module:name"."""

import importlib
import os
import sys

from common.errors import PipelineError
from data.collect.measuring.worker import one_line


def named_object(name: str) -> object:
    """Import the module before the colon and return what it holds under the name after it.

    Modules in the working folder are found too.

    Raises:
        PipelineError: the module fails to import, or holds no such name; one line.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise PipelineError(f"--program {name}: expected package.module:name")
    if os.getcwd() not in sys.path:  # noqa: PTH109 (sys.path holds strings)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        reason = one_line(f"{type(error).__name__}: {error}")
        raise PipelineError(f"--program {name}: cannot be imported: {reason}") from error
    if not hasattr(module, attribute):
        raise PipelineError(f"--program {name}: {module_name} holds no '{attribute}'")
    found: object = getattr(module, attribute)
    return found
