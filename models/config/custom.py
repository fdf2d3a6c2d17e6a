"""Custom models: where their class is, and which of them may be imported.

A recipe names a custom model by its class: "my_pkg.gat:Gat". The import of that module runs its
code, so nothing that comes with a run folder may cause it: `Recipe.from_table` imports the custom
models that its caller trusts by name, and `imported` refuses modules in run folders.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from inspect import getfile, isabstract
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from common.errors import PipelineError, UsageError
from common.files import checksum_of
from common.settings import RUN_CONFIG, FrozenConfig, read_toml
from models.config.networks import LayoutGnnConfig, TileGnnConfig

PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
CONFIGS: dict[str, type[FrozenConfig]] = {"layout": LayoutGnnConfig, "tile": TileGnnConfig}
BASES = {"layout": "models.layout.network:LayoutNetwork", "tile": "models.tile.network:TileNetwork"}


class UncheckedConfig(FrozenConfig):
    """The table of a custom model that is not imported: any keys."""

    model_config = ConfigDict(extra="allow")


def is_own(model: str) -> bool:
    return PLACE.fullmatch(model) is not None


def short_name(model: str) -> str:
    """Return what a model is called: of "my_pkg.gat:Gat" it is "gat", other names stay."""
    return model.partition(":")[0].rpartition(".")[2]


def own_models(table: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """Return the custom models that a recipe's table lists for configs of `kind`."""
    match table.get(kind):
        case {"models": [*entries]}:
            own = (entry for entry in entries if isinstance(entry, str) and is_own(entry))
            return tuple(dict.fromkeys(own))
    return ()


def imported(place: str) -> Any:
    """Return the class at `place`, "package.module:Class", and run its module's code for that.

    Raises:
        UsageError: The module is in a run folder or cannot be imported, or it has no such class.
    """
    module, _, name = place.partition(":")
    try:
        for part in accumulate(module.split("."), "{}.{}".format):
            _refuse_run_folder(place, find_spec(part))  # runs the code of the packages above alone
        found = vars(import_module(module))
    except UsageError:
        raise
    except Exception as error:  # a user's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"model '{place}': cannot be imported: {reason}; expected "
            "'package.module:Class', found from the working folder or PYTHONPATH"
        ) from error
    if name not in found:
        own = (key for key, value in found.items() if getattr(value, "__module__", None) == module)
        has = ", ".join(own) or "none of its own"
        raise UsageError(f"model '{place}': module '{module}' has no class '{name}'; it has {has}")
    return found[name]


def _refuse_run_folder(place: str, spec: ModuleSpec | None) -> None:
    for location in (spec.origin, *(spec.submodule_search_locations or ())) if spec else ():
        if location and (folder := run_folder_of(Path(location))):
            raise UsageError(
                f"model '{place}': {location} is in the run folder {folder}; expected a module "
                "outside of run folders; if you know its code, copy it to a folder of your own"
            )


def custom_class(place: str, kind: str) -> Any:
    """Import the class of a custom model that the user trusts.

    Args:
        place: The class as "package.module:Class".
        kind: The configs that the model ranks: "layout" or "tile".

    Returns:
        The class, a network with a `Config`.

    Raises:
        UsageError: As `imported`, or the class is no network for configs of `kind`.
    """
    network = imported(place)
    if not (isinstance(network, type) and issubclass(network, imported(BASES[kind]))):
        base = BASES[kind].replace(":", ".")
        raise UsageError(f"model '{place}': ranks no {kind} configs; expected a subclass of {base}")
    if isabstract(network):
        raise UsageError(f"model '{place}': has no forward; expected one that scores its configs")
    config = getattr(network, "Config", None)
    if not (isinstance(config, type) and issubclass(config, CONFIGS[kind])):
        base = f"models.config.networks.{CONFIGS[kind].__name__}"
        raise UsageError(f"model '{place}': its Config is {config}; expected a subclass of {base}")
    return network


def run_folder_of(path: Path) -> Path | None:
    """Return the run folder that a path is in, by its links' names or targets, or None."""
    places = path.absolute(), path.resolve()
    for folder in dict.fromkeys(above for place in places for above in (place, *place.parents)):
        try:
            if (folder / RUN_CONFIG).is_file() and "recipe" in read_toml(folder / RUN_CONFIG):
                return folder
        except (PipelineError, OSError):
            return folder  # damaged, or not ours to read
    return None


def source_of(network: Any) -> dict[str, str]:
    """Return the checksum of the file that a class stands in, by the file's name."""
    path = Path(getfile(network))
    return {path.name: checksum_of(path.read_bytes())}
