"""A model trained on all layout collections first, from which each collection's own one begins."""

from collections.abc import Sequence
from pathlib import Path

from data.tree import GraphFile
from models.config.recipe import Recipe
from models.training.jobs import SharedModel

SHARED_FOLDER = "layout-shared"


def shared_steps(recipe: Recipe, model: str) -> int:
    """Return for how many steps the collections' models are trained as one; 0 = each by itself."""
    training = recipe.training_of(model)
    return training.shared_steps if training else 0


def shared_model(
    recipe: Recipe, model: str, seed: int, files: Sequence[GraphFile], folder: Path
) -> SharedModel | None:
    """Return the model that `model` begins from, in its own folder below `folder`.

    Args:
        files: train graphs of all layout collections.

    Returns:
        None where the recipe trains each collection's model by itself.
    """
    if shared_steps(recipe, model) == 0:
        return None
    return SharedModel(files, folder / f"{model}-seed{seed}")


def recipe_of_shared(recipe: Recipe, model: str) -> Recipe:
    """Return the recipe by which the shared model is trained: its steps are the shared ones."""
    config = getattr(recipe, model)
    steps = {"steps": config.training.shared_steps, "shared_steps": 0}
    training = config.training.model_copy(update=steps)
    return recipe.model_copy(update={model: config.model_copy(update={"training": training})})
