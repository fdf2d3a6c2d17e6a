"""Items made ahead come in order, errors arrive where they are asked for, and no thread is left."""

import threading
import time
from collections.abc import Iterator

import pytest

from data.ahead import MAX_WAITING, ahead


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def counting(n_items: int, made: list[int]) -> Iterator[int]:
    """Yield 0, 1, …, and note each as it is made."""
    for number in range(n_items):
        made.append(number)
        yield number


@pytest.mark.parametrize("n_items", [0, 1, 2, 3, 500])
def test_all_items_come_in_order(n_items: int) -> None:
    assert list(ahead(range(n_items))) == list(range(n_items))


def test_what_looks_like_an_end_is_an_item() -> None:
    items = [None, StopIteration(), ValueError("an item"), 0, ()]
    assert list(ahead(items)) == items


def test_items_are_made_by_another_thread_before_they_are_asked_for() -> None:
    makers = []

    def items() -> Iterator[int]:
        makers.append(threading.current_thread())
        yield 0

    assert list(ahead(items())) == [0]
    assert makers[0] is not threading.current_thread()


def test_no_more_than_a_few_are_made_before_they_are_asked_for() -> None:
    made: list[int] = []
    numbers = ahead(counting(100, made))
    assert made == []  # nothing begins before the first is asked for
    next(numbers)
    deadline = time.monotonic() + 5
    while len(made) < 2 + MAX_WAITING and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == list(range(2 + MAX_WAITING))  # one asked for, some waiting, one in hand
    numbers.close()  # type: ignore[attr-defined]


class OwnError(Exception):
    """An error with more than a message."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(f"{name} {number}")
        self.number = number


@pytest.mark.parametrize(
    "error",
    [OwnError(3, "own"), MemoryError(), KeyboardInterrupt(), SystemExit(2), OSError(28, "")],
)
@pytest.mark.parametrize("n_before", [0, 1, 5])
def test_an_error_comes_as_it_is_after_the_items_before_it(
    error: BaseException, n_before: int
) -> None:
    def items() -> Iterator[int]:
        yield from range(n_before)
        raise error

    seen = []
    with pytest.raises(type(error)) as caught:
        for item in ahead(items()):
            seen.append(item)
    assert caught.value is error
    assert seen == list(range(n_before))


def test_an_error_of_the_iterable_itself_is_raised() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(ahead(5))  # type: ignore[arg-type]


def test_closing_early_ends_the_thread_and_closes_the_source() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.append(True)

    numbers = ahead(items())
    assert [next(numbers) for _ in range(3)] == [0, 1, 2]
    numbers.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_an_error_of_the_one_who_asks_ends_the_thread() -> None:
    made: list[int] = []
    with pytest.raises(OwnError):
        for number in ahead(counting(10**9, made)):
            if number == 4:
                raise OwnError(number, "asking")
    n_made = len(made)
    assert n_made <= 5 + MAX_WAITING + 1
    time.sleep(0.05)
    assert len(made) == n_made


def test_an_iterator_that_is_dropped_ends_its_thread() -> None:
    numbers = ahead(range(10**9))
    assert next(numbers) == 0
    del numbers
