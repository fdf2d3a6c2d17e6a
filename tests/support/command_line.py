"""Run the command line in this process, and Python in a new process."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import typer
from typer.testing import CliRunner

from common.settings import ROOT
from pipeline.__main__ import app
from pipeline.cli.console import STAGE_PREFIX


def call(*arguments: object, expect: int = 0) -> str:
    """Run a command in this process and return its output without the lines of stages.

    With --json, return only standard output.
    """
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == expect, result.output
    return result.stdout if "--json" in arguments else without_stages(result.output)


def stderr_of(*arguments: object, expect: int = 0) -> list[str]:
    """Run a command in this process; return the lines on standard error, stages among them."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == expect, result.output
    return result.stderr.splitlines()


def parse(line: str) -> None:
    """Let the command line take its arguments, and run nothing.

    Raises:
        LookupError: no such command.
        Exception: of typer; no such option, or one that is missing.
    """
    command = typer.main.get_command(app)
    words = shlex.split(line.split(" > ", maxsplit=1)[0])
    while (commands := getattr(command, "commands", None)) and not words[0].startswith("-"):
        command = commands[words.pop(0)]
    command.make_context("pipeline", words)


def python_in(folder: Path, *words: str) -> str:
    """Run Python with the packages of the project in a folder, and return its output."""
    return run_in(folder, sys.executable, *words)


def run_in(folder: Path, *command: str) -> str:
    """Run a command in a folder that can import the packages, and return its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_stages(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if not line.startswith(STAGE_PREFIX))
