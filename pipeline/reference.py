"""Write docs/reference/command_line.md: all commands with their options.

Run `.venv/bin/python -m pipeline.reference` after a change of a command or an option.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from common.files import write_text
from common.pages import render_page
from common.settings import ROOT
from pipeline.__main__ import VARIABLES, app

PAGE = ROOT / "docs" / "reference" / "command_line.md"
COMMON = ("--help", "--debug")
EXAMPLE = re.compile(r"Example: (.+)")


def page() -> str:
    """Return the text of the page."""
    template = Path(__file__).with_name("command_line.md.j2")
    commands = dict(_commands(typer.main.get_command(app)))
    return render_page(template, variables=VARIABLES, commands=commands)


def _commands(group: Any, *words: str) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *words, name)
            continue
        paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help))
        texts = [" ".join(text.split()) for text in paragraphs if not EXAMPLE.search(text)]
        context = typer.Context(command)
        options = [
            [" ".join(text.split()).replace("|", "\\|") for text in option.get_help_record(context)]
            for option in command.params
            if option.opts[0] not in COMMON
        ]
        examples = EXAMPLE.findall(command.help)
        yield (
            " ".join((*words, name)),
            {"texts": texts, "examples": examples, "options": options},
        )


if __name__ == "__main__":
    write_text(PAGE, page())
