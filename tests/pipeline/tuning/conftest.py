"""One small search that several tests read or resume, and a PostgreSQL server."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.tuning.tune import TuneResult
from tests.pipeline.tuning.small_study import search

UNPRIVILEGED = "postgres"  # Debian's; the server refuses to run as root


@pytest.fixture(scope="session")
def searched(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    """A folder with a study of three trials; copy it before going on with it."""
    folder = tmp_path_factory.mktemp("searched")
    return folder, search(tiny_tree, folder, trials=3)


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server of the test's own; `control` runs `pg_ctl` with such words."""

    folder: Path
    control: Callable[..., None]

    def url(self, user: str = "tuner", database: str = "postgres") -> str:
        return f"postgresql+psycopg://{user}@/{database}?host={self.folder}"

    def run(self, *statements: str, database: str = "postgres") -> None:
        from psycopg import connect

        name = f"host={self.folder} user=tuner dbname={database}"
        with connect(name, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def stop(self) -> None:
        self.control("stop", "-m", "immediate")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that the test may stop; skip without PostgreSQL."""
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

    server = Server(folder, control)
    try:
        control("init", "-o", "-U tuner --auth=trust --no-sync")
        control("start", "-o", f"-k {folder} -F -c listen_addresses=")
        yield server
    finally:
        with suppress(subprocess.CalledProcessError):  # it has ended already
            server.stop()
        shutil.rmtree(folder)
