"""Write docs/reference/recipes.md: a table of all recipe keys.

Run `.venv/bin/python -m models.config.reference` after a change of a key or its description.
"""

import inspect
import json
import re
from typing import Any

from pydantic.fields import FieldInfo

from common.files import write_text
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
HEADER = """# Recipe keys

This page lists each key of a recipe, with its values, default and meaning.

A recipe is a TOML file with the settings of a run. `configs/` contains the recipes of the project,
for example `cpu.toml`. A recipe needs only the keys that differ from their defaults:

```toml
seeds = [0, 1, 2]

[cross_config_sage.training]
steps = 800
```

`--set KEY=VALUE` changes a key in one command, for example `--set features.prune=hops-2`. The
key of a table has its name in front, as in `--set cross_config_sage.training.steps=800`. An
unknown key or a wrong value is an error, and the message lists the allowed values. A whole number
is below 2147483648, and no text or boolean is read as a number.
[Custom models](../guides/add_a_model.md) have a table of their own."""


def page() -> str:
    lines = [HEADER, "", "## Keys outside tables", "", *_table(Recipe)]
    for name, field in Recipe.model_fields.items():
        if _is_table(field) and type(field.default).model_fields:
            config = field.default
            lines += ["", f"## [{name}]", "", _summary(type(config)), "", *_table(type(config))]
            if "training" in type(config).model_fields:
                lines += ["", f"The keys of `[{name}.training]` are [below](#training)."]
    text = "Each network has such a table, for example `[cross_config_sage.training]`."
    lines += ["", "## training", "", _summary(TrainingConfig), text, "", *_table(TrainingConfig)]
    return "\n".join(lines) + "\n"


def _is_table(field: FieldInfo) -> bool:
    return isinstance(field.default, FrozenConfig)


def _table(config: type[FrozenConfig]) -> list[str]:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, schema in config.model_json_schema()["properties"].items():
        if not _is_table(config.model_fields[name]):
            default = json.dumps(schema["default"])
            cells = (f"`{name}`", _values(schema), f"`{default}`", _meaning(config, name))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _summary(config: type[FrozenConfig]) -> str:
    return (inspect.getdoc(config) or "").split("\n\n")[0].replace("\n", " ")


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
