"""The tables [layout] and [tile] of a recipe: the models that rank each kind of configs."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from common.settings import FrozenConfig
from models.config.custom import short_name
from models.config.networks import each_once

LayoutModelName = Literal[
    "cross_config_sage",
    "segment_sage",
    "tgraph",
    "baseline_gcn",
    "layout_boosting",
    "layout_linear",
    "config_columns_boosting",
]
TileModelName = Literal[
    "late_fusion_sage", "early_fusion_sage", "tile_boosting", "tile_linear", "tile_baseline"
]


def _called_apart(models: tuple[str, ...]) -> tuple[str, ...]:
    each_once(tuple(map(short_name, models)))
    return models


ModelNames = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_called_apart)]


class LayoutConfig(FrozenConfig):
    """The models that rank layout configs.

    Attributes:
        models: Names of the models, for example ["cross_config_sage", "layout_boosting"]. A custom
            model is named by its class, for example "my_pkg.gat:Gat". To use a model twice, give
            the second one a name of your own and a table with the key `model`, for example
            `[sage_nodes]` with `model = "cross_config_sage"`.
        together: Train one model on the train graphs of all layout collections. If false, each
            collection has its own model.
    """

    models: ModelNames = ("cross_config_sage", "layout_boosting")
    together: bool = False


class TileConfig(FrozenConfig):
    """The models that rank tile configs.

    Attributes:
        models: Names of the models, for example ["late_fusion_sage", "tile_boosting"]. Custom
            models are named as in `layout.models`. "tile_baseline" is the order by the fewest tile
            steps. It needs no training and has no table of its own.
    """

    models: ModelNames = ("late_fusion_sage", "tile_boosting")
