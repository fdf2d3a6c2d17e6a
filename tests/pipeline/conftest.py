"""One finished run that the tests of several commands read."""

from pathlib import Path

import pytest

from tests.support.command_line import call


@pytest.fixture(scope="session")
def smoke_run(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the smoke recipe on the tiny tree; read it, never write to it."""
    out = tmp_path_factory.mktemp("run") / "smoke"
    call("run", "--recipe", "smoke", "--data", tiny_tree, "--out", out)
    return out
