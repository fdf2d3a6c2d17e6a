"""Sessions and weeks: packed by hand, and never overfull."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.budget import Budget, Task, pack

HOURS = st.floats(0.1, 30)
TASKS = st.lists(
    st.builds(Task, st.sampled_from(["a", "b"]), st.uuids().map(str), HOURS), min_size=1, max_size=8
)
BUDGETS = st.builds(
    Budget, st.floats(1, 40), st.floats(1, 13), st.integers(1, 4), st.integers(1, 3)
)
STARTS = st.dictionaries(st.sampled_from(["a", "b"]), st.floats(0, 1))


def test_by_hand() -> None:
    tasks = [Task("a", "one", 5), Task("a", "two", 8), Task("b", "three", 4)]
    sessions = pack(tasks, Budget(14, 10, 2), start_hours={"a": 1})
    assert sessions is not None
    assert [(s.week, s.collection, s.lanes) for s in sessions] == [
        (1, "a", [[("one", 5), ("two", 4)]]),  # 1 hour of start, and 9 of the 10
        (1, "a", [[("two", 3)]]),  # what is left of the week's 14: 4 hours
        (2, "a", [[("two", 1)]]),
        (2, "b", [[("three", 4)]]),
    ]
    assert [session.hours for session in sessions] == [10, 4, 2, 4]


def test_cards_work_side_by_side_and_none_shares_a_task() -> None:
    tasks = [Task("a", "one", 8), Task("a", "two", 5), Task("a", "three", 4)]
    sessions = pack(tasks, Budget(30, 20, 1, 2), start_hours={"a": 1})
    assert sessions is not None
    assert [(s.hours, s.lanes) for s in sessions] == [
        (10, [[("one", 8)], [("two", 5), ("three", 4)]])
    ]
    sessions = pack(tasks, Budget(30, 7, 1, 2), start_hours={"a": 1})
    assert sessions is not None
    assert [(s.hours, s.lanes) for s in sessions] == [
        (7, [[("one", 6)], [("two", 5), ("three", 1)]]),
        (4, [[("one", 2)], [("three", 3)]]),
    ]


def test_nothing_fits_where_a_session_is_all_start() -> None:
    assert pack([Task("a", "one", 1)], Budget(30, 2, 9), start_hours={"a": 2}) is None


@given(TASKS, BUDGETS, STARTS)
def test_no_session_and_no_week_is_overfull_and_nothing_is_lost(
    tasks: list[Task], budget: Budget, start_hours: dict[str, float]
) -> None:
    sessions = pack(tasks, budget, start_hours=start_hours)
    if sessions is None:
        return
    weeks: dict[int, float] = defaultdict(float)
    done: dict[str, float] = defaultdict(float)
    for session in sessions:
        assert session.hours <= budget.session_hours + 1e-6
        assert session.start_hours == start_hours.get(session.collection, 0)
        weeks[session.week] += session.hours
        parts = [part for lane in session.lanes for part in lane]
        assert len({name for name, _ in parts}) == len(parts)  # on one card at a time
        for name, hours in parts:
            done[name] += hours
    assert set(weeks) <= set(range(1, budget.weeks + 1))
    assert max(weeks.values()) <= budget.gpu_hours + 1e-6
    assert [session.week for session in sessions] == sorted(session.week for session in sessions)
    for task in tasks:
        assert abs(done[task.name] - task.hours) < 1e-6
