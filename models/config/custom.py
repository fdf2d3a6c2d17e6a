"""Models with a name of the recipe's: a second use of a built-in model, or a custom model.

A recipe names a custom model by its class: "my_pkg.gat:Gat". The import of that module runs its
code, so a run folder alone must not cause it. `Recipe.from_table` imports only the custom models
that its caller trusts by name.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from inspect import getfile, isabstract
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from common.errors import UsageError
from common.files import checksum_of
from common.settings import FrozenConfig
from models.config.networks import LayoutGnnConfig, ModelConfig, TileGnnConfig

PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
CONFIGS: dict[str, type[FrozenConfig]] = {"layout": LayoutGnnConfig, "tile": TileGnnConfig}
BASES = {"layout": "models.layout.network:LayoutNetwork", "tile": "models.tile.network:TileNetwork"}


class UncheckedConfig(ModelConfig):
    """The table of a custom model that is not imported: any keys."""

    model_config = ConfigDict(extra="allow")


def is_own(model: str) -> bool:
    return PLACE.fullmatch(model) is not None


def short_name(model: str) -> str:
    """Return the short name of a model, for example "gat" for "my_pkg.gat:Gat"."""
    return model.partition(":")[0].rpartition(".")[2]


def named_models(table: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the models that a recipe names, each with the kind of its configs.

    A custom model in a list has the name of its module. A table with the key `model` gives its name
    to a built-in or custom model.

    Returns:
        The model, for example "my_pkg.gat:Gat" or "tgraph", and "layout" or "tile", by name.
    """
    kinds: dict[str, str] = {}
    for kind in CONFIGS:
        match table.get(kind):
            case {"models": [*entries]}:
                kinds |= {entry: kind for entry in entries if isinstance(entry, str)}
    names: dict[str, tuple[str, str]] = {}
    for name, part in table.items():
        match part:
            case {"model": str(model)}:
                names[name] = model, kinds.get(name, "layout")
    return names | {short_name(entry): (entry, kinds[entry]) for entry in kinds if is_own(entry)}


def imported(place: str, subject: str = "model", kind: str = "class") -> Any:
    """Import a class or function "package.module:name", which runs the code of its module."""
    module, _, name = place.partition(":")
    try:
        members = vars(import_module(module))
    # A user's module may raise anything, or be a script.
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"{subject} '{place}': cannot be imported: {reason}; expected a {kind} as "
            "package.module:name, found from the working folder or PYTHONPATH"
        ) from error
    if name not in members:
        names = (k for k, value in members.items() if getattr(value, "__module__", "") == module)
        has = ", ".join(names) or "none of its own"
        raise UsageError(
            f"{subject} '{place}': module '{module}' has no {kind} '{name}'; it has {has}"
        )
    return members[name]


def custom_network(place: str, kind: str) -> Any:
    """Import the network "package.module:Class" of a custom model that the user trusts."""
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


def source_of(network: Any) -> dict[str, str]:
    """Return the checksum of the file of a class, by the file's name."""
    path = Path(getfile(network))
    return {path.name: checksum_of(path.read_bytes())}
