"""The command line, called in this process."""

from typer.testing import CliRunner

from pipeline import app


def call(*arguments: object, expect: int = 0) -> str:
    """Run a command in this process; return what it printed, with --json standard output alone."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == expect, result.output
    return result.stdout if "--json" in arguments else result.output
