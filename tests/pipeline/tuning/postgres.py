"""A PostgreSQL server for the time of a test: a folder of its own, no network, no password."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

UNPRIVILEGED = "postgres"  # Debian's; the server refuses to run as root
STARTS_IN_S = 30


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of an empty database; skip the test where there is no PostgreSQL."""
    with postgres_server() as (url, _):
        yield url


@contextmanager
def postgres_server() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Yield an empty database's URL and its server, which may be ended; skip without PostgreSQL."""
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
        _wait_for(lambda: psycopg.connect(f"host={folder} user=tuner dbname=postgres").close())
        yield f"postgresql+psycopg://tuner@/postgres?host={folder}", server
    finally:
        server.send_signal(signal.SIGINT)  # at once; SIGTERM would wait for all connections to end
        server.wait()
        log.close()
        shutil.rmtree(folder)


def _wait_for(connect: Any) -> None:
    import psycopg

    deadline = time.monotonic() + STARTS_IN_S
    while True:
        try:
            connect()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
