"""Fit a recipe into sessions and weeks of a GPU that is lent by the hour, such as Kaggle's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from models.config.recipe import Recipe
from pipeline.planning.costs import is_network

MAX_SESSIONS = 10_000
SLACK_HOURS = 1e-9

Lane = list[tuple[str, float]]  # what one card does, task by task, in hours


@dataclass(frozen=True)
class Budget:
    """What is lent: hours in each of some weeks, in sessions of so many hours at most.

    Attributes:
        n_cards: that each session has; an hour of a session is one hour, with several as with one.
    """

    gpu_hours: float
    session_hours: float
    weeks: int
    n_cards: int = 1


@dataclass(frozen=True)
class Task:
    """A training, or a part of the ranking with all models: it may go on in another session.

    Attributes:
        collection: whose kernel it is part of; a session holds tasks of one collection.
        hours: on one card; several do not share a task.
    """

    collection: str
    name: str
    hours: float


@dataclass(frozen=True)
class Session:
    """One session of a week (from 1): it packs the graphs; then its cards work side by side."""

    week: int
    collection: str
    start_hours: float
    lanes: list[Lane]

    @property
    def hours(self) -> float:
        """How long it takes: until the last card is done."""
        return self.start_hours + max(map(_hours, self.lanes))


def _hours(lane: Lane) -> float:
    return sum(hours for _, hours in lane)


def pack(
    tasks: Sequence[Task], budget: Budget, *, start_hours: Mapping[str, float]
) -> list[Session] | None:
    """Put tasks into sessions, in the order given, and these into weeks; None if they do not fit.

    Tasks of one collection share sessions; each begins on the card that is free first, and what a
    session cannot end is gone on with in the next. No session is longer than `session_hours`, no
    week has more than `gpu_hours` of them. A week's last hours are used by a shorter session.

    Args:
        start_hours: by collection, at the start of each of its sessions.
    """
    sessions, week, used = list[Session](), 1, 0.0
    for collection in dict.fromkeys(task.collection for task in tasks):
        start = start_hours.get(collection, 0.0)
        left = [t for t in tasks if t.collection == collection and t.hours > SLACK_HOURS]
        while left:
            room = min(budget.session_hours, budget.gpu_hours - used) - start
            if room <= SLACK_HOURS:  # a new week has all
                week, used = week + 1, 0.0
                room = min(budget.session_hours, budget.gpu_hours) - start
            if room <= SLACK_HOURS or week > budget.weeks or len(sessions) == MAX_SESSIONS:
                return None
            lanes: list[Lane] = [[] for _ in range(budget.n_cards)]
            left = _fill(lanes, left, room)
            sessions.append(Session(week, collection, start, lanes))
            used += sessions[-1].hours
    return sessions


def _fill(lanes: Sequence[Lane], tasks: Sequence[Task], room: float) -> list[Task]:
    """Give tasks to cards that have `room` hours each; return what is left of them."""
    left = []
    for task in tasks:
        lane = min(lanes, key=_hours)
        taken = min(task.hours, room - _hours(lane))
        if taken > SLACK_HOURS:
            lane.append((task.name, taken))
            task = replace(task, hours=task.hours - taken)  # noqa: PLW2901
        if task.hours > SLACK_HOURS:
            left.append(task)
    return left


@dataclass(frozen=True)
class Fitted:
    """What is left of a recipe, what was dropped in which order, and when what is trained."""

    recipe: Recipe
    dropped: list[str]
    sessions: list[Session]


def reductions(recipe: Recipe) -> Iterator[tuple[list[str], Recipe]]:
    """Yield a recipe, and then ever smaller ones, each with all that was dropped in which order.

    First seeds go, the last first, until two are left; then networks, the last named of the kind
    that has most, until each kind has one; then the second seed. What needs no GPU stays.
    """
    dropped: list[str] = []
    yield dropped, recipe
    while True:
        smaller = None if len(recipe.seeds) > 2 else _without_last_network(recipe)
        if smaller is None and len(recipe.seeds) == 1:
            return
        *kept, last = recipe.seeds
        fewer = f"seed {last}", recipe.model_copy(update={"seeds": tuple(kept)})
        text, recipe = smaller or fewer
        dropped = [*dropped, text]
        yield dropped, recipe


def _without_last_network(recipe: Recipe) -> tuple[str, Recipe] | None:
    networks = {
        kind: [model for model in recipe.models_of(kind) if is_network(recipe, model)]
        for kind in ("layout", "tile")
    }
    kind = max(networks, key=lambda name: len(networks[name]))
    if len(networks[kind]) < 2:
        return None
    last = networks[kind][-1]
    models = tuple(model for model in recipe.models_of(kind) if model != last)
    table = getattr(recipe, kind).model_copy(update={"models": models})
    return last, recipe.model_copy(update={kind: table})
