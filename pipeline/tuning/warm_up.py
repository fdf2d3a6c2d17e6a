"""A training that nobody reads, so that the clock of the first one that counts runs true.

The first training of a process imports libraries, starts threads and fills their caches.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from data.read import read_graph
from data.tree import GraphFile
from models.config.recipe import Recipe
from models.train import load_model, train_model
from models.training.jobs import TrainJob
from pipeline.tuning.space import Value, with_values

STEPS = 2  # forward, backward, and once more with what the first one allocated
GRAPHS_PER_FOLD = 2


def warm_up(recipe: Recipe, model: str, folds: Sequence[Sequence[GraphFile]]) -> None:
    """Train `model` for a moment on a few graphs of each fold, and rank one.

    A recipe that cannot be trained is not told of here: its trial does that.
    """
    files = [file for fold in folds for file in fold[:GRAPHS_PER_FOLD]]
    with TemporaryDirectory() as folder, suppress(Exception):
        run_dir = Path(folder) / "run"
        job = TrainJob(model, shortened(recipe, model), files, recipe.seeds[0], run_dir)
        train_model(job, files[0].collection, resume=False)
        load_model(run_dir).score(read_graph(files[0]))


def shortened(recipe: Recipe, model: str) -> Recipe:
    """Return the recipe with as little training of `model` as there can be."""
    table = recipe.model_dump(mode="json")
    least: dict[str, Value] = {"early_stop": 0, "shared_steps": 0, "steps": STEPS, "rounds": STEPS}
    training = table[model].get("training", {})
    own = {f"{model}.{key}": value for key, value in least.items() if key in table[model]}
    own |= {f"{model}.training.{key}": value for key, value in least.items() if key in training}
    return Recipe.from_table(with_values(table, own), source="warm-up")
