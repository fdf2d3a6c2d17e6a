"""A study that takes moments, a finished search of it, and a PostgreSQL server."""

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

from models.config.recipe import Recipe, load_recipe
from pipeline.tuning.space import SearchSpace, space_from_table, with_values
from pipeline.tuning.tune import TuneResult, tune

UNPRIVILEGED = "postgres"  # Debian's; the server refuses to run as root
LEARNING_RATE = "cross_config_sage.training.learning_rate"


def small_recipe(**values: Any) -> Recipe:
    """The smoke recipe with a yet smaller layout model that learns too slowly to win."""
    table = load_recipe("smoke").model_dump(mode="json")
    small = {"cross_config_sage.hidden": 8, "cross_config_sage.opcode_width": 4, "threads": 1}
    values = {**small, LEARNING_RATE: 1e-4, **values}
    return Recipe.from_table(with_values(table, values), source="test")


def space_over(
    parameters: dict[str, Any],
    *,
    collection: str = "layout:xla:random",
    model: str = "cross_config_sage",
    recipe: Recipe | None = None,
    **study_keys: Any,
) -> SearchSpace:
    study = {"collection": collection, "model": model, **study_keys}
    return space_from_table({"study": study, **parameters}, recipe, source="search space test")


PARAMETERS = {
    "cross_config_sage.configs_per_step": {"choices": [8, 16]},
    LEARNING_RATE: {"low": 1e-4, "high": 1e-1, "log": True},
}
SPACE = space_over(PARAMETERS)
DIVERGES = space_over({LEARNING_RATE: {"choices": [1e30]}})


def search(
    data: Path, folder: Path, *, trials: int, space: SearchSpace = SPACE, **options: Any
) -> TuneResult:
    recipe = options.pop("recipe", small_recipe())
    storage = options.pop("storage", folder / "journal.log")
    return tune(recipe, space, data, storage=storage, trials=trials, out=folder / "out", **options)


def outcome(result: TuneResult) -> list[tuple[Any, ...]]:
    return [(t.number, t.state, t.value, t.params) for t in result.trials]


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
