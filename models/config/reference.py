"""Every key of a recipe on one page: `python -m models.config.reference` writes docs/recipes.md."""

import inspect
import json
import re
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from common.atomic import write_text
from common.settings import ROOT, FrozenConfig
from models.config.networks import TrainingConfig
from models.config.recipe import Recipe

PAGE = ROOT / "docs" / "recipes.md"
BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "a multiple of"}
HEADER = """# Recipes

Written by `python -m models.config.reference` from the classes that check recipes; do not edit.

A recipe is one TOML file; `configs/` has those that come with the project, and
`--set features.prune=hops-2` changes a key for one call. What a recipe leaves out has the default
below. An unknown key, or a value that does not fit, is refused with what was expected. Models of
one's own have a table of their own: [models.md](models.md)."""


def page() -> str:
    """Return the page as Markdown."""
    lines = [HEADER, "", "## The recipe itself", "", *_table(Recipe)]
    for name, field in Recipe.model_fields.items():
        if _is_table(field):
            config = field.default
            lines += ["", f"## [{name}]", "", _summary(type(config)), "", *_table(type(config))]
            if "training" in type(config).model_fields:
                lines += ["", f"and [{name}.training](#training)."]
    return "\n".join([*lines, "", "## training", "", *_training()]) + "\n"


def _training() -> list[str]:
    text = "Each network has a table of these, such as `[cross_config_sage.training]`."
    return [_summary(TrainingConfig), text, "", *_table(TrainingConfig)]


def _is_table(field: FieldInfo) -> bool:
    return isinstance(field.default, FrozenConfig)


def _table(config: type[FrozenConfig]) -> list[str]:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in config.model_fields.items():
        if not _is_table(field):
            cells = (f"`{name}`", _values(field), f"`{_shown(field.default)}`", _told(config, name))
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
            if name in names.split(", ") and not meaning.startswith("as in "):
                return re.sub(r"\s+", " ", meaning).strip()
    raise ValueError(f"{config.__name__} does not say what `{name}` means")


def _values(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(part, bound)}"
        for part in field.metadata
        for bound, sign in BOUNDS.items()
        if getattr(part, bound, None) is not None
    ]
    return " ".join([_type(field.annotation), ", ".join(bounds)]).strip()


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(json.dumps(value) for value in arguments)
    if origin is tuple:
        return "a list"
    if origin is dict:
        return "a table"
    if arguments:  # a union, or something annotated
        return ", ".join(
            _type(part) for part in arguments if isinstance(part, type) or get_args(part)
        )
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return names.get(annotation, "" if annotation is NoneType else str(annotation))


def _shown(default: Any) -> str:
    return json.dumps(list(default) if isinstance(default, tuple) else default)


if __name__ == "__main__":
    write_text(PAGE, page())
