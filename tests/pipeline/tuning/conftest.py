"""One small search that several tests look at or go on with, and a PostgreSQL server."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.tuning.result import TuneResult
from tests.pipeline.tuning.small_study import search

UNPRIVILEGED = "postgres"  # Debian's; the server refuses to run as root
STARTS_IN_S = 30


@pytest.fixture(scope="session")
def searched(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    """A folder with a study of three trials; copy it before going on with it."""
    folder = tmp_path_factory.mktemp("searched")
    return folder, search(tiny_tree, folder, trials=3)


@pytest.fixture
def server() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """An empty database's URL and its server, which may be ended; skip without PostgreSQL."""
    psycopg = pytest.importorskip("psycopg", reason="needs psycopg, see requirements-dev.txt")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
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
    data, log = folder / "data", (folder / "log").open("w")
    init = [programs[-1], "-D", data, "-U", "tuner", "--auth=trust", "--no-sync"]
    subprocess.run(init, check=True, stdout=log, stderr=log, cwd=folder, **identity)
    command = [programs[-1].with_name("postgres"), "-D", data, "-k", folder, "-F"]
    server = subprocess.Popen(
        [*command, "-c", "listen_addresses="], stdout=log, stderr=log, cwd=folder, **identity
    )
    try:
        deadline = time.monotonic() + STARTS_IN_S
        while True:
            try:
                psycopg.connect(f"host={folder} user=tuner dbname=postgres").close()
                break
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield f"postgresql+psycopg://tuner@/postgres?host={folder}", server
    finally:
        server.send_signal(signal.SIGINT)  # at once; SIGTERM would wait for all connections to end
        server.wait()
        log.close()
        shutil.rmtree(folder)
