"""Every key of a recipe on one page, docs/reference/recipes.md, which this module writes."""

import inspect
import json
import re
from typing import Any

from pydantic.fields import FieldInfo

from common.files import write_text
from common.settings import ROOT, FrozenConfig
from models.config.networks import TrainingConfig
from models.config.recipe import Recipe

PAGE = ROOT / "docs" / "reference" / "recipes.md"
BOUNDS = {
    **{"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="},
    "multipleOf": "a multiple of",
}
KINDS = {
    **{"string": "text", "integer": "whole number", "number": "number"},
    **{"boolean": "true or false", "array": "a list", "object": "a table"},
}
HEADER = """# Recipes

Written by `.venv/bin/python -m models.config.reference` from the classes that check recipes.

A recipe is one TOML file; `configs/` has those that come with the project, and
`--set features.prune=hops-2` changes a key for one call. What a recipe leaves out has the default
below. An unknown key, or a value that does not fit, is refused with what was expected. Models of
one's own have a table of their own: [Add a model](../guides/add_a_model.md)."""


def page() -> str:
    lines = [HEADER, "", "## The recipe itself", "", *_table(Recipe)]
    for name, field in Recipe.model_fields.items():
        if _is_table(field):
            config = field.default
            lines += ["", f"## [{name}]", "", _summary(type(config)), "", *_table(type(config))]
            if "training" in type(config).model_fields:
                lines += ["", f"and [{name}.training](#training)."]
    text = "Each network has a table of these, such as `[cross_config_sage.training]`."
    lines += ["", "## training", "", _summary(TrainingConfig), text, "", *_table(TrainingConfig)]
    return "\n".join(lines) + "\n"


def _is_table(field: FieldInfo) -> bool:
    return isinstance(field.default, FrozenConfig)


def _table(config: type[FrozenConfig]) -> list[str]:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, schema in config.model_json_schema()["properties"].items():
        if not _is_table(config.model_fields[name]):
            default = json.dumps(schema["default"])
            cells = (f"`{name}`", _values(schema), f"`{default}`", _told(config, name))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _summary(config: type[FrozenConfig]) -> str:
    return (inspect.getdoc(config) or "").split("\n\n")[0].replace("\n", " ")


def _told(config: type[FrozenConfig], name: str) -> str:
    for one in config.__mro__:
        text = one.__dict__.get("__doc__") or ""
        _, _, attributes = inspect.cleandoc(text).partition("Attributes:\n")
        for entry in re.split(r"\n    (?=\S)", "\n" + attributes):
            names, _, meaning = entry.partition(": ")
            if name in names.split(", "):
                return re.sub(r"\s+", " ", meaning).strip()
    raise ValueError(f"{config.__name__} does not say what `{name}` means")


def _values(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return ", ".join(map(_values, schema["anyOf"]))
    if given := schema.get("enum") or [schema[key] for key in ("const",) if key in schema]:
        return ", ".join(map(json.dumps, given))
    bounds = [f"{sign} {schema[key]}" for key, sign in BOUNDS.items() if key in schema]
    return " ".join([KINDS[schema["type"]], ", ".join(bounds)]).strip()


if __name__ == "__main__":
    write_text(PAGE, page())
