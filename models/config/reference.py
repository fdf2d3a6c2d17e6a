"""Write docs/reference/recipes.md: a table of all recipe keys.

Run `.venv/bin/python -m models.config.reference` after a change of a key or its description.
"""

import inspect
import json
import re
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from common.files import write_text
from common.pages import render_page
from common.settings import ROOT, FrozenConfig
from models.config.networks import MAX_INT, TrainingConfig
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


def page() -> str:
    parts = [
        {"name": name, "has_training": "training" in fields, **_facts(type(field.default))}
        for name, field in Recipe.model_fields.items()
        if _is_table(field) and (fields := type(field.default).model_fields)
    ]
    facts = {"table": _rows(Recipe), "parts": parts, "training": _facts(TrainingConfig)}
    return render_page(Path(__file__).with_name("recipes.md.j2"), **facts)


def _is_table(field: FieldInfo) -> bool:
    return isinstance(field.default, FrozenConfig)


def _facts(config: type[FrozenConfig]) -> dict[str, Any]:
    summary = (inspect.getdoc(config) or "").split("\n\n")[0].replace("\n", " ")
    return {"summary": summary, "table": _rows(config)}


def _rows(config: type[FrozenConfig]) -> list[list[str]]:
    rows = []
    for name, schema in config.model_json_schema()["properties"].items():
        if not _is_table(config.model_fields[name]):
            default = json.dumps(schema["default"])
            cells = (f"`{name}`", _values(schema), f"`{default}`", _meaning(config, name))
            rows.append([cell.replace("|", "\\|") for cell in cells])
    return rows


def _meaning(config: type[FrozenConfig], name: str) -> str:
    for parent in config.__mro__:
        text = parent.__dict__.get("__doc__") or ""
        _, _, attributes = inspect.cleandoc(text).partition("Attributes:\n")
        for entry in re.split(r"\n    (?=\S)", "\n" + attributes):
            names, _, meaning = entry.partition(": ")
            if name in names.split(", "):
                text = re.sub(r"\s+", " ", meaning).strip()
                return re.sub(r"docs/reference/(\w+\.md)", r"[\1](\1)", text)
    raise ValueError(f"{config.__name__}: no description of `{name}` under Attributes")


def _values(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return ", ".join(map(_values, schema["anyOf"]))
    if choices := schema.get("enum") or [schema[key] for key in ("const",) if key in schema]:
        return ", ".join(map(json.dumps, choices))
    limits = {sign: schema[key] for key, sign in BOUNDS.items() if key in schema}
    bounds = [f"{sign} {limit}" for sign, limit in limits.items() if limit != MAX_INT]
    return " ".join([KINDS[schema["type"]], ", ".join(bounds)]).strip()


if __name__ == "__main__":
    write_text(PAGE, page())
