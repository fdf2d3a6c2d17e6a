"""One watcher and one time limit for a command, set at its edge."""

from common.progress import out_of_time, progress, seconds_left, time_limit, watched_by


def test_progress_reaches_the_watcher_of_the_block_alone() -> None:
    told: list[tuple[str, int, int]] = []
    progress("pack", 0, 2)
    with watched_by(lambda *step: told.append(step)):
        progress("pack", 1, 2)
        with watched_by(None):
            progress("inner", 1, 1)
    progress("pack", 2, 2)
    assert told == [("pack", 1, 2)]


def test_earlier_of_two_limits_holds() -> None:
    assert seconds_left() == float("inf")
    assert not out_of_time()
    with time_limit(0.0):
        assert out_of_time()
        with time_limit(5.0):
            assert seconds_left() == 0
    with time_limit(5.0), time_limit(None):
        assert 0 < seconds_left() <= 300
    assert not out_of_time()
