"""Fit a recipe into sessions and weeks of a GPU that is lent by the hour, such as Kaggle's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import PipelineError
from models.config.recipe import Recipe
from pipeline.planning.costs import is_network

MAX_SESSIONS = 10_000
SLACK_HOURS = 1e-9


@dataclass(frozen=True)
class Budget:
    """What is lent: hours of a GPU in each of some weeks, in sessions of so many hours at most."""

    gpu_hours: float
    session_hours: float
    weeks: int


@dataclass(frozen=True)
class Task:
    """A training, or the ranking with all models: it may go on in another session.

    Attributes:
        collection: whose kernel it is part of; a session holds tasks of one collection.
        hours: on the GPU.
    """

    collection: str
    name: str
    hours: float


@dataclass
class Session:
    """One session of a week (from 1): it packs the graphs, then does parts of (task, hours)."""

    week: int
    collection: str
    start_hours: float
    parts: list[tuple[str, float]] = field(default_factory=list)

    @property
    def hours(self) -> float:
        """How long it takes."""
        return self.start_hours + sum(hours for _, hours in self.parts)


def pack(
    tasks: Sequence[Task], budget: Budget, *, start_hours: Mapping[str, float]
) -> list[Session] | None:
    """Put tasks into sessions, in the order given, and these into weeks; None if they do not fit.

    Tasks of one collection share sessions, one after the other; what a session cannot end is gone
    on with in the next. No session is longer than `session_hours`, no week has more than
    `gpu_hours` of them. A week's last hours are used by a shorter session.

    Args:
        start_hours: by collection, at the start of each of its sessions.
    """
    packing = _Packing(budget)
    for collection in dict.fromkeys(task.collection for task in tasks):
        start = start_hours.get(collection, 0.0)
        session: Session | None = None
        for task in (task for task in tasks if task.collection == collection):
            left = task.hours
            while left > SLACK_HOURS:
                room = packing.room(session)
                if session is None or room <= SLACK_HOURS:
                    session = packing.begin(collection, start)
                    if session is None:
                        return None
                    continue
                taken = min(left, room)
                session.parts.append((task.name, taken))
                packing.used[session.week] = packing.used[session.week] + taken
                left -= taken
    return packing.sessions


@dataclass
class _Packing:
    """Sessions so far, and the hours that each week has used."""

    budget: Budget
    sessions: list[Session] = field(default_factory=list)
    used: dict[int, float] = field(default_factory=lambda: {1: 0.0})

    def room(self, session: Session | None) -> float:
        if session is None:
            return 0.0
        of_week = self.budget.gpu_hours - self.used[session.week]
        return min(self.budget.session_hours - session.hours, of_week)

    def begin(self, collection: str, start_hours: float) -> Session | None:
        """Begin a session in the first week that has room for more than its start, after all."""
        if len(self.sessions) >= MAX_SESSIONS:
            return None
        latest = self.sessions[-1].week if self.sessions else 1
        for week in range(latest, min(latest + 1, self.budget.weeks) + 1):  # a new week has all
            used = self.used.setdefault(week, 0.0)
            room = min(self.budget.session_hours, self.budget.gpu_hours - used) - start_hours
            if room > SLACK_HOURS:
                session = Session(week, collection, start_hours)
                self.sessions.append(session)
                self.used[week] = used + start_hours
                return session
        return None


@dataclass(frozen=True)
class Fitted:
    """What is left of a recipe, what was dropped in which order, and when what is trained."""

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
        kind: [model for model in recipe.models_of(kind) if is_network(recipe, model)]
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
