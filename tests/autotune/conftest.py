"""Workers that start at once."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def short_look_at_cores() -> Iterator[None]:
    """Watch the cores for .05 s before a worker is pinned to the idlest one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.measure.worker.LOAD_SAMPLE_S", 0.05)
        yield
