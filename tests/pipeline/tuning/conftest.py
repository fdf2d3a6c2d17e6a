"""One small search that several tests look at or go on with."""

from pathlib import Path

import pytest

from pipeline.tuning.result import TuneResult
from tests.pipeline.tuning.small_study import search


@pytest.fixture(scope="session")
def searched(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    """A folder with a study of three trials; copy it before going on with it."""
    folder = tmp_path_factory.mktemp("searched")
    return folder, search(tiny_tree, folder, trials=3)
