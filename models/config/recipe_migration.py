"""Runs whose configuration was written before the recipe had all of today's keys."""

from collections.abc import Mapping
from typing import Any

from models.config.recipe import Recipe

Table = Mapping[str, Any]


def with_new_keys(config: Table, today: Table) -> dict[str, Any]:
    """Return a run's configuration with the recipe keys that came after it, at their defaults.

    The default of a key that is added must be what was done before there was the key; then a run
    without it is the same run. Nothing but the recipe is filled in, and what `today` lacks stays.
    (`accelerator` says where to compute: what was begun on the CPU may go on on a GPU.)

    Args:
        config: what decided an older run; its recipe under "recipe".
        today: what decides the run that is to go on with it.
    """
    if "recipe" not in config or "recipe" not in today:
        return dict(config)
    defaults = Recipe().model_dump(mode="json")
    return {**config, "recipe": _filled(config["recipe"], today["recipe"], defaults)}


def _filled(older: Any, today: Any, default: Any) -> Any:
    """Add to `older` each key that `today` has and `default` gives a value for."""
    if not all(isinstance(table, Mapping) for table in (older, today, default)):
        return older
    own = {key: _filled(older[key], today.get(key), default.get(key)) for key in older}
    return own | {key: default[key] for key in today if key in default and key not in older}
