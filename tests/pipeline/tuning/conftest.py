"""One small search that several tests look at or go on with, and a PostgreSQL server."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.tuning.result import TuneResult
from tests.pipeline.tuning.small_study import search

UNPRIVILEGED = "postgres"  # Debian's; the server refuses to run as root


@pytest.fixture(scope="session")
def searched(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    """A folder with a study of three trials; copy it before going on with it."""
    folder = tmp_path_factory.mktemp("searched")
    return folder, search(tiny_tree, folder, trials=3)


@pytest.fixture
def server() -> Iterator[tuple[str, Callable[[], None]]]:
    """An empty database's URL, and what ends its server at once; skip without PostgreSQL."""
    pytest.importorskip("psycopg", reason="needs psycopg, see requirements-dev.txt")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not programs:
        pytest.skip("needs the Debian package postgresql")
    # Not pytest's own folder: others may not enter it, and a socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        try:
            shutil.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
        except LookupError:
            pytest.skip(f"as root, needs the user {UNPRIVILEGED}: PostgreSQL refuses root")
        identity = {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}

    def control(action: str, *words: str) -> None:
        command = [programs[-1], "-D", folder / "data", action, *words]
        with (folder / "log").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, cwd=folder, **identity)

    try:
        control("init", "-o", "-U tuner --auth=trust --no-sync")
        control("start", "-o", f"-k {folder} -F -c listen_addresses=")
        yield (
            f"postgresql+psycopg://tuner@/postgres?host={folder}",
            partial(control, "stop", "-m", "immediate"),
        )
    finally:
        with suppress(subprocess.CalledProcessError):  # it has ended already
            control("stop", "-m", "immediate")
        shutil.rmtree(folder)
