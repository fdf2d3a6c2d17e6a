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
from pipeline.__main__ import VARIABLES, app

PAGE = ROOT / "docs" / "reference" / "command_line.md"
COMMON = ("--help", "--debug")
EXAMPLE = re.compile(r"Example: (.+)")
HEADER = """# Command line

This page lists each command with its arguments, options, defaults and an example.

`fast-or-slow COMMAND --help` prints the same text. `python -m pipeline COMMAND` is the same
command. Each command has two more options: `--help` or `-h`, and `--debug`, which prints a
traceback after an error. `fast-or-slow --version` prints the version and the revision of the code.
`fast-or-slow --install-completion` lets your shell complete commands and options with the tab key.
The exit codes are in [errors](errors.md)."""


def page() -> str:
    """Return the text of the page."""
    entries = list(_commands(typer.main.get_command(app)))
    rows = [
        f"| [`{name}`](#{name.replace(' ', '-')}) | {_texts(command)[0]} |"
        for name, command in entries
    ]
    variables = [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
    lines = [HEADER, "", "| variable | meaning |", "|---|---|", *variables]
    lines += ["", "| command | purpose |", "|---|---|", *rows]
    for name, command in entries:
        purpose, *texts = _texts(command)
        lines += ["", f"## {name}", "", purpose, *(line for text in texts for line in ("", text))]
        lines += ["", "```", *EXAMPLE.findall(command.help), "```", "", *_options(command)]
    return "\n".join(lines) + "\n"


def _commands(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *words, name)
        else:
            yield " ".join((*words, name)), command


def _texts(command: Any) -> list[str]:
    """Return the paragraphs of a command's help, without the example."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help))
    return [" ".join(text.split()) for text in paragraphs if not EXAMPLE.search(text)]


def _options(command: Any) -> list[str]:
    """Return a table with the texts of `--help`."""
    rows = ["| option | meaning |", "|---|---|"]
    for option in command.params:
        if option.opts[0] not in COMMON:
            texts = option.get_help_record(typer.Context(command))
            name, meaning = (" ".join(text.split()).replace("|", "\\|") for text in texts)
            rows.append(f"| `{name}` | {meaning} |")
    return rows


if __name__ == "__main__":
    write_text(PAGE, page())
