"""The tables [layout] and [tile] of a recipe: the models that rank each kind of configs."""

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from common.settings import FrozenConfig
from models.config.custom import is_own, short_name

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


def each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Raise a ValueError if a value occurs twice, else return the values."""
    if len(set(values)) != len(values):
        raise ValueError("expected each entry once")
    return values


def _known_model(kind: str, known: tuple[str, ...]) -> AfterValidator:
    def check(model: str) -> str:
        if model not in known and not is_own(model):
            raise ValueError(
                f"ranks no {kind} configs; expected {', '.join(known)}, or a model of your own as "
                "'package.module:Class'"
            )
        return model

    return AfterValidator(check)


def _called_apart(models: tuple[str, ...]) -> tuple[str, ...]:
    each_once(tuple(map(short_name, models)))
    return models


class LayoutConfig(FrozenConfig):
    """The models that rank layout configs.

    Attributes:
        models: Names of the models, for example ["cross_config_sage", "layout_boosting"]. A custom
            model is named by its class, for example "my_pkg.gat:Gat".
        together: Train one model on the train graphs of all layout collections. If false, each
            collection has its own model.
    """

    models: Annotated[
        tuple[Annotated[str, _known_model("layout", get_args(LayoutModelName))], ...],
        Field(min_length=1),
        AfterValidator(_called_apart),
    ] = ("cross_config_sage", "layout_boosting")
    together: bool = False


class TileConfig(FrozenConfig):
    """The models that rank tile configs.

    Attributes:
        models: Names of the models, for example ["late_fusion_sage", "tile_boosting"]. Custom
            models are named as in `layout.models`. "tile_baseline" is the order by the fewest tile
            steps. It needs no training and has no table of its own.
    """

    models: Annotated[
        tuple[Annotated[str, _known_model("tile", get_args(TileModelName))], ...],
        Field(min_length=1),
        AfterValidator(_called_apart),
    ] = ("late_fusion_sage", "tile_boosting")
