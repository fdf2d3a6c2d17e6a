"""Keys of a recipe that differ by collection, as in [collection."layout:xla:random".tgraph]."""

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from data.tree import COLLECTIONS
from models.config.kinds import LayoutModelName, TileModelName

Tables = Mapping[str, Mapping[str, Any]]


def check_collections(tables: Tables, named: Iterable[str], *, together: bool) -> None:
    """Raise a ValueError for a wrong name of a collection or table. Keys are not checked."""
    kinds = {collection.name: collection.kind for collection in COLLECTIONS}
    for name, table in tables.items():
        key = f'collection."{name}"'
        if name not in kinds:
            raise ValueError(f"{key}: no such collection; expected {', '.join(kinds)}")
        if together and kinds[name] == "layout":
            raise ValueError(f"{key}: layout.together trains one model on all layouts; drop one")
        models = get_args(LayoutModelName if kinds[name] == "layout" else TileModelName)
        names = ("features", *models, *named)
        for unknown in table.keys() - {*names}:
            raise ValueError(f"{key}.{unknown}: cannot differ here; expected {', '.join(names)}")


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested tables with some values replaced."""
    result = dict(table)
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def has_key(table: Any, key: str) -> bool:
    """Return whether nested tables have a value for a dotted key."""
    for part in key.split("."):
        if not isinstance(table, Mapping) or part not in table:
            return False
        table = table[part]
    return True
