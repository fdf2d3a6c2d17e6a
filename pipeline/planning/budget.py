"""Pack trainings into sessions and weeks of a GPU that is lent by the hour, such as Kaggle's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX_SESSIONS = 10_000
SLACK_HOURS = 1e-9


@dataclass(frozen=True)
class Budget:
    """What is lent.

    Attributes:
        gpu_hours: in a week.
        session_hours: of one session, after which it is killed.
        weeks: how many.
    """

    gpu_hours: float
    session_hours: float
    weeks: int


@dataclass(frozen=True)
class Task:
    """A training, or the ranking with all models: it may go on in another session.

    Attributes:
        collection: whose kernel it is part of; a session holds tasks of one collection.
        name: of the model and seed.
        hours: on the GPU.
    """

    collection: str
    name: str
    hours: float


@dataclass
class Session:
    """One session: what it does, in order.

    Attributes:
        week: from 1.
        collection: whose.
        start_hours: before the first task: packing the graphs.
        parts: (task's name, hours).
    """

    week: int
    collection: str
    start_hours: float
    parts: list[tuple[str, float]] = field(default_factory=list)

    @property
    def hours(self) -> float:
        """Return how long it takes."""
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
        """Return for how long a session can still go on."""
        if session is None:
            return 0.0
        of_week = self.budget.gpu_hours - self.used[session.week]
        return min(self.budget.session_hours - session.hours, of_week)

    def begin(self, collection: str, start_hours: float) -> Session | None:
        """Begin a session in the first week that has room for more than its start.

        It comes after those so far: what ranks with all models waits for their trainings.
        """
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
