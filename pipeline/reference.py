"""Write docs/reference/command_line.md: all commands with their options.

Run `.venv/bin/python -m pipeline.reference` after a change of a command or an option.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from common.files import write_text
from common.settings import ROOT
from pipeline.__main__ import app

PAGE = ROOT / "docs" / "reference" / "command_line.md"
COMMON = ("--help", "--debug")
VALUES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER"}
EXAMPLE = re.compile(r"Example: (.+)")
HEADER = """# Command line

This page lists each command with its arguments, options, defaults and an example.

`fast-or-slow COMMAND --help` prints the same text. `python -m pipeline COMMAND` is the same
command. Each command has two more options: `--help`, and `--debug`, which prints a traceback after
an error. The exit codes are in [errors](errors.md)."""


def page() -> str:
    """Return the text of the page."""
    entries = list(_commands(typer.main.get_command(app)))
    rows = [f"| [`{name}`](#{_anchor(name)}) | {_texts(command)[0]} |" for name, command in entries]
    lines = [HEADER, "", "| command | purpose |", "|---|---|", *rows]
    for name, command in entries:
        purpose, *more = _texts(command)
        lines += ["", f"## {name}", "", purpose, *(line for text in more for line in ("", text))]
        lines += ["", "```", *EXAMPLE.findall(command.help), "```", "", *_options(command)]
    return "\n".join(lines) + "\n"


def _commands(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *words, name)
        else:
            yield " ".join((*words, name)), command


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _texts(command: Any) -> list[str]:
    """Return the paragraphs of a command's help, without the example."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help))
    return [" ".join(text.split()) for text in paragraphs if not EXAMPLE.search(text)]


def _options(command: Any) -> list[str]:
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in command.params:
        if option.opts[0] not in COMMON:
            meaning, _, default = option.help.partition(" Default: ")
            cells = _name(option, command), default.removesuffix(".") or _default(option), meaning
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _name(option: Any, command: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.name.upper()}{' ...' * (option.nargs < 0)}`"
    value = (
        ""
        if option.is_flag
        else option.metavar or _type(option.display_type(typer.Context(command)))
    )
    names = f"{', '.join(option.opts)} {value}".strip()
    return f"`{names}`" if not option.secondary_opts else f"`{names}`, `{option.secondary_opts[0]}`"


def _type(shown: str) -> str:
    """Return the placeholder of a type, for example INTEGER for <int range>."""
    name = re.sub(r"[<>\]]|list\[| range", "", shown)
    return VALUES.get(name, name if "|" in name else name.upper())


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.param_type_name != "argument" and option.is_flag:
        return "" if option.secondary_opts and option.default is None else "off"
    return f"`{option.default}`" if option.default not in (None, "") else ""


if __name__ == "__main__":
    write_text(PAGE, page())
