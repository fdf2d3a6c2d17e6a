"""What to leave out of a recipe so that it fits into a budget, the least loss first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from common.errors import PipelineError
from models.config.recipe import Recipe
from pipeline.planning.budget import Session
from pipeline.planning.stage_costs import NETWORKS


@dataclass(frozen=True)
class Fitted:
    """A recipe that fits.

    Attributes:
        recipe: what is left.
        dropped: what was left out, in the order in which it was.
        sessions: when what is trained.
    """

    recipe: Recipe
    dropped: list[str]
    sessions: list[Session]


def reductions(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Yield ever smaller recipes, each with what it lacks of the one before.

    First seeds go, the last first, until two are left; then networks, the last named of the kind
    that has most, until each kind has one; then the second seed. What needs no GPU stays.
    """
    while len(recipe.seeds) > 2:
        recipe, text = _without_last_seed(recipe)
        yield text, recipe
    while True:
        smaller = _without_last_network(recipe)
        if smaller is None:
            break
        recipe, text = smaller
        yield text, recipe
    while len(recipe.seeds) > 1:
        recipe, text = _without_last_seed(recipe)
        yield text, recipe


def _without_last_seed(recipe: Recipe) -> tuple[Recipe, str]:
    *kept, last = recipe.seeds
    return recipe.model_copy(update={"seeds": tuple(kept)}), f"seed {last}"


def _without_last_network(recipe: Recipe) -> tuple[Recipe, str] | None:
    networks = {
        kind: [model for model in recipe.models_of(kind) if model in NETWORKS]
        for kind in ("layout", "tile")
    }
    kind = max(networks, key=lambda name: len(networks[name]))
    if len(networks[kind]) < 2:
        return None
    last = networks[kind][-1]
    models = tuple(model for model in recipe.models_of(kind) if model != last)
    table = getattr(recipe, kind).model_copy(update={"models": models})
    return recipe.model_copy(update={kind: table}), last


def fit_budget(recipe: Recipe, sessions_of: Callable[[Recipe], list[Session] | None]) -> Fitted:
    """Return the largest reduction of a recipe that can be packed.

    Args:
        sessions_of: packs all that a recipe trains; None where it does not fit.

    Raises:
        PipelineError: not even one seed of one network fits.
    """
    dropped: list[str] = []
    sessions = sessions_of(recipe)
    for text, smaller in reductions(recipe):
        if sessions is not None:
            break
        recipe, sessions = smaller, sessions_of(smaller)
        dropped.append(text)
    if sessions is None:
        raise PipelineError(
            f"recipe {recipe.name}: does not fit the budget even with one seed of one network of "
            "each kind; expected more --gpu-hours, --session-hours or --weeks, or fewer "
            "training.steps"
        )
    return Fitted(recipe, dropped, sessions)
