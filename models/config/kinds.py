"""The models of a recipe by kind of configs: the tables [layout], [tile] and [collection].

A table such as [collection."layout:xla:random".tgraph] has keys that differ in one collection.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from common.errors import one_of
from common.settings import FrozenConfig
from data.tree import COLLECTIONS
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


Tables = Mapping[str, Mapping[str, Any]]
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


def check_collections(tables: Tables, models: Iterable[str], *, together: bool) -> None:
    """Raise a ValueError for a wrong name of a collection or table. Keys are not checked."""
    kinds = {collection.name: collection.kind for collection in COLLECTIONS}
    for name, table in tables.items():
        key = f'collection."{name}"'
        if name not in kinds:
            raise ValueError(f"{key}: no such collection; expected {one_of(name, kinds)}")
        if together and kinds[name] == "layout":
            raise ValueError(f"{key}: layout.together trains one model on all layouts; drop one")
        built_in = get_args(LayoutModelName if kinds[name] == "layout" else TileModelName)
        names = ("features", *built_in, *models)
        for unknown in table.keys() - {*names}:
            expectation = f"expected {one_of(unknown, names)}"
            raise ValueError(f"{key}.{unknown}: cannot differ here; {expectation}")


def merge(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested tables with some values replaced."""
    result = dict(table)
    for key, value in changes.items():
        old = result.get(key)
        is_table = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merge(old, value) if is_table else value  # type: ignore[arg-type]
    return result


def has_key(table: Any, key: str) -> bool:
    """Return whether nested tables have a value for a dotted key."""
    for part in key.split("."):
        if not isinstance(table, Mapping) or part not in table:
            return False
        table = table[part]
    return True
