"""Models of one's own, named in a recipe by where their class stands: "my_pkg.gat:Gat".

The module's last part, `gat`, is what the model is called everywhere else: its table in the recipe,
its folders, its weight in the blend.
"""

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from common.checksums import checksum_of
from common.errors import PipelineError, UsageError
from common.settings import FrozenConfig
from models.config.networks import LayoutGnnConfig, TileGnnConfig

PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
CONFIGS: dict[str, type[FrozenConfig]] = {"layout": LayoutGnnConfig, "tile": TileGnnConfig}
BASES = {"layout": "models.layout.network:LayoutNetwork", "tile": "models.tile.network:TileNetwork"}


def is_own(model: str) -> bool:
    return PLACE.fullmatch(model) is not None


def short_name(model: str) -> str:
    """Return what a model is called: of "my_pkg.gat:Gat" it is "gat", other names stay."""
    return model.partition(":")[0].rpartition(".")[2]


def imported(place: str) -> Any:
    """Return the class at `place`, "package.module:Class".

    Raises:
        UsageError: there is none, or its module cannot be imported.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UsageError(
            f"model '{place}': cannot be imported: {error}; expected 'package.module:Class', found "
            "from the working folder or PYTHONPATH"
        ) from error


def source_of(place: str) -> dict[str, str]:
    """Return the checksum of the file that the class at `place` stands in, by the file's name."""
    path = Path(inspect.getfile(imported(place)))
    return {path.name: checksum_of(path.read_bytes())}


def checked(place: str) -> Any:
    """Return the network at `place`, with a `forward` whose faults name it.

    It raises PipelineError where the class's own fails, or gives not one score for each config.
    """
    import torch  # by the class, so at hand already

    network = imported(place)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        inputs, *distinct = (*args, *kwargs.values())
        try:
            scores = network.forward(self, *args, **kwargs)
        except (PipelineError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise PipelineError(
                f"model '{place}': in forward: {reason}; --debug shows where"
            ) from error
        expected = (len(distinct[0] if distinct else inputs.config_kernel),)
        returned = tuple(getattr(scores, "shape", ()))
        if returned != expected:
            raise PipelineError(
                f"model '{place}': forward returned {returned}, expected {expected}"
            )
        return scores

    return type(network.__name__, (network,), {"forward": forward})


def own_config(place: str, kind: str) -> type[FrozenConfig]:
    """Return what the table of one's own model may hold: its class's `Config`.

    Raises:
        UsageError: as `imported`, or it is no network for configs of `kind` ("layout" or "tile").
    """
    network = imported(place)
    if not (isinstance(network, type) and issubclass(network, imported(BASES[kind]))):
        base = BASES[kind].replace(":", ".")
        raise UsageError(f"model '{place}': ranks no {kind} configs; expected a subclass of {base}")
    config = getattr(network, "Config", None)
    if not (isinstance(config, type) and issubclass(config, CONFIGS[kind])):
        base = f"models.config.networks.{CONFIGS[kind].__name__}"
        raise UsageError(f"model '{place}': its Config is {config}; expected a subclass of {base}")
    return config
