"""Searches, clocks, visits, figures, and a worker process that may crash or hang."""

import gc
import platform
import re
import signal
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kendalltau

from autotune.measure.program import Loaded
from autotune.measure.search import genetic_search, random_search
from autotune.measure.timing import (
    MAX_RUNS,
    MIN_RUNS,
    Clock,
    Visit,
    figures,
    time_visit,
)
from autotune.measure.worker import (
    INSTRUCTIONS_PER_REGION,
    _Server,
    one_line,
    open_device,
    worker_environment,
)
from common.errors import PipelineError
from common.settings import how_to_install
from data.hlo.choices import Choices, Space, draw_choices
from tests.autotune.fakes import SpinProgram, SpinSource

N_OPTIONS = np.array([3, 3, 3, 5, 2, 2, 1, 4])
GROUPS = np.array([7, 7, 7, 1, 2, 2, 3, 4])


class FakeClock:
    """A clock that runs advance by the given durations."""

    def __init__(self, durations_ns: list[int]) -> None:
        self.now, self._durations = 0, iter(durations_ns)

    def run(self) -> None:
        self.now += next(self._durations)

    @property
    def clock(self) -> Clock:
        return Clock("fake", lambda: self.now)


@pytest.mark.parametrize(
    ("durations_ns", "budget_ns", "is_median", "visit"),
    [
        ([50, 20, 30, 90], 100, False, Visit(20, 3)),  # the shortest counts
        ([50, 20, 30, 90], 100, True, Visit(30, 3)),
        ([10] * 20, 95, False, Visit(10, 10)),
        ([1000] * 20, 95, False, Visit(1000, MIN_RUNS)),
        ([0] * (MAX_RUNS + 1), 10**9, False, Visit(1, MAX_RUNS)),
    ],
)
def test_runs_continue_until_the_budget_is_spent_within_bounds(
    durations_ns: list[int], budget_ns: int, is_median: bool, visit: Visit
) -> None:
    fake = FakeClock(durations_ns)
    assert time_visit(fake.run, fake.clock, budget_ns=budget_ns, is_median=is_median) == visit


def test_figures_agree_with_scipy() -> None:
    rng = np.random.default_rng(0)
    true_ns = rng.integers(10_000, 20_000, 80)
    rounds_ns = np.stack([true_ns + rng.integers(0, 3_000, 80) for _ in range(4)])
    found = figures(rounds_ns, np.arange(80)[::-1])
    odd, even = np.rint(rounds_ns[[1, 3]].mean(axis=0)), rounds_ns[2]
    assert found["repeat_tau"] == pytest.approx(kendalltau(odd, even).statistic)
    alike = figures(rounds_ns, np.arange(80) % 10)
    halves = [half.reshape(8, 10).mean(axis=0) for half in (odd, even)]
    assert alike["repeat_tau"] == pytest.approx(kendalltau(*halves).statistic)
    assert (found["n_modules"], alike["n_modules"]) == (80, 10)
    runtime_ns = np.rint(np.median(rounds_ns, axis=0))
    assert found["spread"] == runtime_ns.max() / runtime_ns.min()
    ratios = even / odd
    assert found["aa_ratio"] == np.median(ratios)
    relative = sorted(abs(int(a) - int(b)) / a for a, b in zip(odd, even, strict=True))
    assert found["relative_noise"] == pytest.approx((relative[39] + relative[40]) / 2)


def test_without_jax_the_command_that_installs_it_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    install = re.escape(how_to_install("collect"))
    with pytest.raises(PipelineError, match=rf"^jax cannot be imported .*; {install}$"):
        open_device(None)


def test_an_error_is_one_line_without_frames() -> None:
    def fails() -> None:
        raise ValueError("of the inner\nfunction")

    try:
        fails()
    except ValueError:
        long = f"calling back: {traceback.format_exc()}"
    assert one_line(long) == "calling back: ValueError: of the inner function"
    assert one_line(ValueError("")) == "ValueError"
    assert len(one_line("word " * 200)) <= 400


@pytest.mark.skipif(sys.platform != "linux", reason="uses prctl and /proc")
def test_worker_has_one_core_and_ends_when_its_parent_is_killed() -> None:
    code = (
        "import os, time; from autotune.measure.worker import Session\n"
        "from tests.autotune.fakes import SpinSource\n"
        "session = Session(SpinSource(), timeout_s=5); session.describe()\n"
        "worker = session._process.pid\n"
        "print(worker, len(os.sched_getaffinity(worker)), flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker, n_cores = map(int, parent.stdout.readline().split())
    assert n_cores == 1
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    status = Path(f"/proc/{worker}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the worker outlives its parent")


def evolve(
    n_configs: int,
    runtime_ns: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    seed: int = 0,
    **more: Any,
) -> NDArray[np.int64]:
    """Drive the genetic search with known runtimes; all its settings (c, g)."""
    rng = np.random.default_rng(seed)
    search = genetic_search(Space(N_OPTIONS, GROUPS), n_configs, rng, **more)
    batches = [next(search)]
    try:
        while True:
            batches.append(search.send(runtime_ns(batches[-1])))
    except StopIteration:
        return np.concatenate(batches)


def distance_ns(settings: NDArray[np.int64]) -> NDArray[np.float64]:
    """Runtimes that are lowest where every knob takes its last option."""
    return 100.0 + np.abs(settings - (N_OPTIONS - 1)).sum(axis=1)


def is_legal(settings: NDArray[np.int64]) -> bool:
    return bool(((settings >= 0) & (settings < N_OPTIONS)).all())


def test_random_search_starts_with_the_default_and_varies_shares_and_groups() -> None:
    rng = np.random.default_rng(0)
    settings = next(random_search(Space(N_OPTIONS, GROUPS), 400, rng))
    assert settings.shape == (400, 8) and not settings[0].any() and is_legal(settings)
    assert (settings.max(axis=0) == N_OPTIONS - 1).all()
    group = settings[:, :3]
    alike = (group == group[:, :1]).all(axis=1)
    assert (alike & group.any(axis=1)).mean() > 0.15 and (~alike).mean() > 0.15
    unequal = Space(np.array([2, 9]), np.zeros(2, np.int64))  # options of one group
    assert next(random_search(unequal, 200, rng)).max(axis=0).tolist() == [1, 8]
    settings = next(random_search(Space(np.full(50, 4), np.arange(50)), 300, rng))
    share = (settings > 0).mean(axis=1)
    assert (share < 0.2).mean() > 0.1 and (share > 0.5).mean() > 0.1
    assert 260 <= len(np.unique(settings, axis=0)) < 300  # some are repeated


def test_genetic_search_starts_at_the_default_is_legal_improves_and_can_be_replayed() -> None:
    settings = evolve(200, distance_ns)
    assert settings.shape == (200, 8) and not settings[0].any() and is_legal(settings)
    runtime_ns = distance_ns(settings)
    assert runtime_ns[-50:].mean() < runtime_ns[:50].mean() - 2
    assert runtime_ns.min() == 100.0
    assert np.array_equal(settings, evolve(200, distance_ns))
    assert not np.array_equal(settings, evolve(200, distance_ns, seed=1))


def test_genetic_search_breeds_from_no_config_that_failed() -> None:
    def only_the_default_runs(settings: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(settings.any(axis=1), np.inf, 1.0)

    settings = evolve(150, only_the_default_runs)
    # Children of the default alone differ from it in few knobs; a pool of failures drifts away.
    assert (settings > 0).sum(axis=1).mean() < 2.5


def test_a_guide_picks_the_children_that_are_measured() -> None:
    """One that knows the runtimes but for noise leads to the best in a fraction of the visits."""

    def by_guess(settings: NDArray[np.int64]) -> NDArray[np.int64]:
        noise = np.random.default_rng(len(settings)).normal(scale=2, size=len(settings))
        return np.argsort(distance_ns(settings) + noise)

    plain = [distance_ns(evolve(49, distance_ns, seed)).min() for seed in range(10)]
    guided = [evolve(49, distance_ns, seed, guide=by_guess) for seed in range(10)]
    assert np.mean([distance_ns(own).min() for own in guided]) < np.mean(plain) - 1
    assert all(is_legal(own) and len(np.unique(own, axis=0)) == 49 for own in guided)
    # A search with a larger budget begins with the same settings.
    longer = evolve(60, distance_ns, guide=by_guess)
    assert np.array_equal(longer[:49], guided[0])


@pytest.mark.parametrize(
    ("n_options", "wanted", "found"), [([3, 2], 10**9, range(7)), ([4] * 9, 50, [50])]
)
def test_drawn_settings_are_distinct_and_as_many_as_there_are(
    n_options: list[int], wanted: int, found: Sequence[int]
) -> None:
    """A thousand million draws of a small space would take days."""
    space = Space(np.array(n_options), np.arange(len(n_options)))
    settings = draw_choices(space, wanted, np.random.default_rng(0))
    assert len({tuple(row) for row in settings.tolist()}) == len(settings)
    assert len(settings) in found
    assert not settings[0].any()
    assert (settings < space.n_options).all()


class _Trace:
    def __init__(self) -> None:
        self.owner = self


def test_worker_frees_traces_and_keeps_few_large_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker measures without garbage collections, so it must collect after each compilation."""
    traces: list[weakref.ref[_Trace]] = []
    load = SpinProgram.load

    def load_with_trace(self: SpinProgram, setting: Choices) -> Loaded:
        traces.append(weakref.ref(_Trace()))
        return load(self, setting)

    monkeypatch.setattr(SpinProgram, "load", load_with_trace)
    # Opening a fake program changes this.
    monkeypatch.setattr("autotune.measure.worker.VISIT_BUDGET_NS", 0)
    (tmp_path / "regions").write_text("1000\n")
    monkeypatch.setattr("autotune.measure.worker.MAX_REGIONS", tmp_path / "regions")
    settings = [np.array(setting) for setting in ([0, 0], [0, 1], [0, 0])]
    gc.disable()
    try:
        for n_nodes, n_loads in ((3, 2), (1000 * INSTRUCTIONS_PER_REGION, 3)):
            traces.clear()
            server = _Server()
            server.open((SpinSource(n_nodes=n_nodes), False))
            for setting in settings:
                server.visit(setting)
            assert len(traces) == n_loads
            assert all(trace() is None for trace in traces)
    finally:
        gc.enable()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems have other settings")
def test_a_run_in_the_worker_does_not_fault_its_buffers_in_again() -> None:
    program = """
import resource
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytes(b"1" * 40_000_000)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(after - before)
"""
    environment = worker_environment("", on_all_cores=False)
    output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    # The buffer has about 10,000 pages.
    assert int(output) < 1_000
