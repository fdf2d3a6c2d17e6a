"""Models that several tests rank with, trained in a moment."""

from pathlib import Path

import pytest

from tests.ensembles.programs import LAYOUTS, TILES
from tests.support.command_line import call


@pytest.fixture(scope="session")
def rankers(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the run folders of a layout network and a linear ranker of tiles."""
    out = tmp_path_factory.mktemp("rankers")
    for collection, model in ((LAYOUTS, "cross_config_sage"), (TILES, "tile_linear")):
        words = ("--collection", collection, "--model", model, "--recipe", "smoke")
        tiles = ("--set", "tile.models=[tile_linear]") if collection == TILES else ()
        call("train", "--data", tiny_tree, *words, *tiles, "--out", out)
    return out
