"""The search for something faster, on subjects of known runtimes."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure.search import Search, Visitor, run_search
from autotune.measure.worker import Description, Told
from autotune.optimize.confirm import (
    N_PROCESSES,
    SEARCH,
    Ask,
    Call,
    Candidate,
    Contestant,
    Pool,
    Ratio,
    paired_ratio,
    pooled,
    rounds_of,
    told_text,
)
from autotune.optimize.optimize import (
    Optimized,
    chosen_finalists,
    distinct,
    n_affordable,
    next_to_confirm,
    optimize,
    screening_s,
    shared_by,
    simplest_of_best,
    simplified,
)
from autotune.optimize.ranker import pick_tiles
from autotune.optimize.write import (
    APPLY,
    BEST,
    PAGE,
    all_cores_text,
    apply_text,
    as_json,
    confirmed_text,
    halves_text,
    sources_text,
    tried_text,
    verdict_text,
    write_result,
)
from common.errors import OutOfTime, PipelineError, UsageError
from common.machine import granted
from common.progress import log, time_limit
from common.settings import ROOT
from data.graph_store.stored_graph import read_tile
from data.tree import find_graphs
from tests.autotune.fakes import STEP_NS, SpinSource, SpinSubject
from tests.support.browser import needs_browser, used
from tests.support.command_line import call, stderr_of

REVERSED = 17  # steps of the default where later options are faster


@dataclass(frozen=True)
class Spinning:
    """Opens `source`; with `is_reversed` the default is the slowest and not the fastest."""

    source: SpinSource = field(default_factory=SpinSource)
    is_reversed: bool = False
    usual: tuple[int, int] | None = None
    space: str = "layouts"

    def __call__(self, *_: object) -> "Decided":
        return Decided(self)


class Decided(SpinSubject):
    def __init__(self, asked: Spinning) -> None:
        super().__init__(asked.source)
        self._is_reversed = asked.is_reversed
        self._usual = np.array(asked.usual) if asked.usual else None
        self._space = asked.space

    def describe(self) -> Description:
        return replace(super().describe(), spaces={self._space: 2}, usual=self._usual)

    def tell(self, choice: NDArray[np.int64]) -> Told:
        return Told({"options": {"first": int(choice[0])}}) if choice[0] else Told({})

    def steps(self, choice: NDArray[np.int64]) -> int:
        first, second = choice.tolist()
        return REVERSED - 4 * first - second if self._is_reversed else super().steps(choice)


def ask(opened: Spinning | None = None, **more: object) -> Ask:
    given: dict[str, Any] = {"spaces": ("layouts",), "n_candidates": 12, "n_rounds": 8} | more
    return Ask("mine:step", **given, open_decided=opened or Spinning())


ASKED = ask(Spinning(SpinSource(crashes=1, refuses=2), is_reversed=True), n_candidates=16)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Optimized]:
    """A program whose later options are faster, but for some that crash or are refused."""
    out = tmp_path_factory.mktemp("whole")
    return out, optimize(ASKED, out)


def test_what_is_faster_is_found_and_confirmed(whole: tuple[Path, Optimized]) -> None:
    out, found = whole
    assert found.is_faster
    assert found.measured.ratio.value < 0.6
    assert found.measured.same.value == pytest.approx(1, abs=0.1)
    assert len({c.choice for c in found.candidates}) == len(found.candidates)
    failed = {c.choice[0]: (c.reason, c.ratio) for c in found.candidates if c.reason}
    assert failed.keys() == {1, 2} and {ratio for _, ratio in failed.values()} == {np.inf}
    assert "Check failed" in failed[1][0] and "not supported" in failed[2][0]
    result = write_result(found, out)
    assert json.loads((out / BEST).read_text()) == result
    assert result["best_ms"] == pytest.approx(result["default_ms"] * result["ratio"])
    assert result["ci95"][0] <= result["ratio"] <= result["ci95"][1] < 1
    if granted()[0] > 1:
        assert result["on_all_cores"]["ratio"] < 0.7  # the same spinning, by the wall clock
        assert (result["looks"], result["on_all_cores"]["looks"]) == (1, 1)  # counted apart
    assert "of the default's" in (out / PAGE).read_text()


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400])
def test_its_page_is_drawn_and_fits_the_window(
    width: int, whole: tuple[Path, Optimized], tmp_path: Path
) -> None:
    write_result(whole[1], tmp_path)
    assert used(tmp_path / PAGE, width)["plots"] == 2


def without(whole: tuple[Path, Optimized], out: Path, pattern: str) -> Path:
    """Copy the folder of a call that was killed before it measured some."""
    shutil.copytree(whole[0], out, dirs_exist_ok=True)
    for path in (out / "journal").glob(pattern):
        path.unlink()
    return out


@pytest.mark.skipif(granted()[0] == 1, reason="has one core")
@pytest.mark.parametrize(
    "case",
    [
        ("all-cores-*-[2-4].jsonl", "undecided whether it is a loss on all cores", 4, True),
        ("all-cores-*.jsonl", "undecided whether it is a loss on all cores", 4, True),
        ("[ca]*.jsonl", "not confirmed in the time; the same command goes on", 1, False),
        ("[ca]*-[2-4].jsonl", "not confirmed in the time; the same command goes on", 1, True),
        ("confirm-*-[34].jsonl", "", 2, False),
    ],
)
def test_what_there_was_no_time_for_is_told_and_not_called_faster(
    case: tuple[str, str, int, bool],
    whole: tuple[Path, Optimized],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing, why_not, n_processes, is_half = case
    out = without(whole, tmp_path, missing)
    with monkeypatch.context() as patched:
        patched.setattr("autotune.optimize.optimize.n_affordable", lambda _: 4)  # as it was
        found = optimize(ASKED, out, minutes=0.0)
    assert found.why_not.startswith(why_not) and found.is_faster == (not why_not)
    (out / APPLY).touch()  # of an earlier call
    result = write_result(found, out)
    assert (result["best_ms"] is None, result["processes"]) == (bool(why_not), n_processes)
    assert (out / APPLY).exists() == found.is_faster
    page = (out / PAGE).read_text()
    assert ("confirmed 1</td>" in page) == (n_processes > 1)
    assert page.count("is half confirmed; the same command goes on") == is_half
    assert [told.startswith("first=3 is half") for told in halves_text(found)] == [True] * is_half
    if why_not:
        assert result["candidates"]["unconfirmed"] == len(found.waiting) > 1
        assert "verified candidates were not confirmed; the same command" in verdict_text(found)
    if n_processes == N_PROCESSES:
        pretend(monkeypatch, lambda choice, number: 0.6)
        assert optimize(ASKED, out).is_faster  # it goes on


@pytest.mark.skipif(granted()[0] == 1, reason="has one core")
def test_processes_are_added_while_it_is_undecided_and_there_is_time(
    whole: tuple[Path, Optimized],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    def is_undecided(one: Contestant) -> bool:
        return one.together is None or one.together.n_processes < 2 * N_PROCESSES

    monkeypatch.setattr(Contestant, "is_undecided", property(is_undecided))
    pretend(monkeypatch, lambda choice, number: 0.6)
    best = optimize(ASKED, without(whole, tmp_path, "all-cores-*")).best
    assert best and best.together and best.together.n_processes == 2 * N_PROCESSES
    assert best.together.n_looks == 2
    assert (
        caplog.messages.count("all-cores-median: first=3, beside the default, in fresh processes")
        == 2
    )


def pretend(
    monkeypatch: pytest.MonkeyPatch, on_all_cores: Callable[[tuple[int, ...], int], float]
) -> None:
    """Measure nothing in fresh processes: on one thread it is as `Decided`, on all cores as given.

    The latter is of a choice, in the process of that number.
    """

    def measured(
        call: Call,
        name: str,
        choices: NDArray[np.int64],
        n_rounds: tuple[int, int],
        *_: float,
        said: str,
    ) -> tuple[list[int], NDArray[np.float64]]:
        journal, number = call.journal(name), int(name[-1], 16)
        if said:
            log.info(said)
        for turn in range(1, 1 + n_rounds[1]):
            for config, choice in enumerate(map(tuple, choices.tolist())):
                ratio = (REVERSED - 4 * choice[0] - choice[1]) / REVERSED
                if name.startswith("all-cores"):
                    ratio = on_all_cores(choice, number) if any(choice) else 1.0
                own = {"runtime_ns": round(1e6 * ratio), "n_runs": 1, "is_stopped": False}
                journal.add(config, choice, round=turn, **own)
        return rounds_of(journal, len(choices))

    monkeypatch.setattr("autotune.optimize.confirm.measured", measured)
    monkeypatch.setattr("autotune.optimize.optimize.measured", measured)
    monkeypatch.setattr(Call, "is_checked", True)


@pytest.mark.parametrize(("spread", "n_processes"), [(0.0, 4), (0.2, 8)])
def test_what_loses_on_all_cores_makes_way_for_what_lacks_its_decisions(
    spread: float,
    n_processes: int,
    whole: tuple[Path, Optimized],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that decides the first gene loses there, surely or, where processes differ, maybe."""

    def on_all_cores(choice: tuple[int, ...], number: int) -> float:
        return 1.1 + spread * (-1) ** number if choice[0] else 0.9

    pretend(monkeypatch, on_all_cores)
    found = optimize(ASKED, without(whole, tmp_path, "[cav]*.jsonl"), minutes=1.0)
    best, *lost = found.contestants
    assert found.is_faster and best.candidate.choice[0] == 0 and len(lost) in (1, 2)
    for one in lost:
        assert one.candidate.choice[0] == 3 and one.why_not and one.together
        assert one.together.n_processes == n_processes
        assert ": a loss (first=3" in confirmed_text(one) or spread
    write_result(found, tmp_path)
    page = (tmp_path / PAGE).read_text()
    assert all(f"on all cores {n}</td>" in page for n in range(1, 2 + len(lost)))


def test_what_other_processes_verified_stands_beside_the_newest(
    whole: tuple[Path, Optimized], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal of an earlier call, which verified the best beside fewer others."""
    out, (best, *_) = without(whole, tmp_path, "none"), whole[1].finalists
    assert whole[1].earlier(best) == []
    (known,) = (out / "journal").glob("verify-*")
    header = known.read_text().splitlines()[0]
    choice = [*best.candidate.choice]
    rows = {0: ([0, 0], 100), 1: ([0, 0], 100), 2: (choice, 75)}
    own = [
        {"config": config, "round": turn, "runtime_ns": ns, "n_runs": 1, "is_stopped": False}
        | ({"choice": genes} if turn == 1 else {})
        for turn in range(1, 9)
        for config, (genes, ns) in rows.items()
    ]
    earlier = known.with_name("verify-0000000000000000.jsonl")
    earlier.write_text("\n".join([header, *map(json.dumps, own), ""]))
    os.utime(earlier, (0, 0))
    with monkeypatch.context() as patched:
        patched.setattr("autotune.optimize.optimize.n_affordable", lambda _: 4)  # as it was
        found = optimize(ASKED, out, minutes=0.0)
    assert [found.earlier(one) for one in found.finalists] == [
        [(0.75, 0.75, 0.75)] if one.candidate.choice == tuple(choice) else []
        for one in found.finalists
    ]
    assert [one.alone for one in found.finalists] == [one.alone for one in whole[1].finalists]
    write_result(found, out)
    assert ", earlier</td><td>0.750 [0.750, 0.750]</td>" in (out / PAGE).read_text()
    monkeypatch.setattr("autotune.optimize.optimize.optimize", lambda *_, **__: found)
    words = ("optimize", "--program", "mine:step", "--out", out)
    assert re.search(r"decisions.*\n.*\] +0\.750 \[0\.750, 0\.750\] ", call(*words), re.S)
    assert "verified earlier" in call(*words)
    found = replace(found, finalists=[])  # the best waits; what verified it is told all the same
    assert re.search(r"decisions\n\w+ +- +0\.\d+ \[.*\] +first=3\nfaster ", call(*words))


def test_a_line_says_what_is_screened_or_verified_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the time for screening ends; where nothing was faster only the default is."""
    caplog.set_level("INFO")
    n_begun = count(1)

    def stopped(visitor: Visitor, search: Search) -> None:
        run_search(visitor, search)
        if next(n_begun) < 3:
            raise OutOfTime("mine:step")

    monkeypatch.setattr("autotune.optimize.optimize.run_search", stopped)
    optimize(ask(spaces=("layouts", "tiles"), n_candidates=6, n_rounds=2), tmp_path)
    assert next(n_begun) == 4
    assert "verify: nothing but the default and itself, in a fresh process" in caplog.messages
    begun = ("tiles: ", "screen: ", "the time for screening")
    assert [sum(m.startswith(one) for m in caplog.messages) for one in begun] == [1, 1, 1]


def test_a_kernels_tile_is_applied_and_the_default_is_named(
    whole: tuple[Path, Optimized], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, default = Ask("softmax_h8_q128_s128", ("tiles",)), Told({"tile": [64, 96]})
    found = replace(whole[1], ask=asked, spaces=asked.spaces, contestants=[], default_told=default)
    best = whole[1].contestants[0]
    text = apply_text(found, replace(best, told=Told({"tile": [32, 96]})))
    compile(text, "apply.py", "exec")
    assert "\ntile = [32, 96]\n" in text and "step(*operands, *extras)" in text
    monkeypatch.setattr("autotune.optimize.optimize.optimize", lambda *_, **__: found)
    printed = call("optimize", "--program", "mine:kernel", "--space", "tiles", "--out", tmp_path)
    assert "]: the default (tile: 64, 96) over itself\n" in printed
    assert json.loads((tmp_path / BEST).read_text())["default_decisions"] == {"tile": [64, 96]}
    page = (tmp_path / PAGE).read_text()
    assert "<td>tile: 64, 96</td>" in page
    told = "tiles alone; jax.jit(kernel.whole), without a loop, may be faster: time it too"
    assert f"\ncompared    {told}\n" in printed
    assert f"Compared were {told}." in text and f"Compared were {told}." in page
    assert as_json(whole[1])["default_decisions"] == {}


def test_without_time_to_verify_anything_that_is_said(
    whole: tuple[Path, Optimized], tmp_path: Path
) -> None:
    out = without(whole, tmp_path, "[cav]*.jsonl")
    with pytest.raises(PipelineError, match=r"no time to verify anything; .* more --minutes"):
        optimize(ASKED, out, minutes=0.0)


def test_a_pass_without_time_leaves_what_an_earlier_one_verified(
    whole: tuple[Path, Optimized], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = without(whole, tmp_path, "[ca]*.jsonl")
    before = optimize(ASKED, out, minutes=0.0)
    monkeypatch.setattr(
        "autotune.optimize.optimize.chosen_finalists", lambda candidates, _: candidates[-1:]
    )
    after = optimize(ASKED, out, minutes=0.0)  # begins to verify another one
    assert [one.candidate.choice for one in after.finalists] == [
        one.candidate.choice for one in before.finalists
    ]
    assert after.default == before.default and after.best == before.best
    assert after.why_not.startswith("not confirmed in the time")


def test_screening_leaves_the_time_that_confirming_needs() -> None:
    asked = [(60.0, 10.0), (60.0, 40.0), (60.0, 90.0), (0.0, 1.0)]
    assert [screening_s(*given) for given in asked] == pytest.approx([36, 20, 12, 0])


def test_what_was_tried_is_told_by_source_and_why_no_more_was(
    whole: tuple[Path, Optimized],
) -> None:
    tried = [("default", 1.0), ("menu", 0.9), ("ranker", 1.2), ("menu", 0.8), ("ranker", 1.1)]
    candidates = [Candidate((n,), source, ratio) for n, (source, ratio) in enumerate(tried)]
    found = replace(whole[1], candidates=candidates, n_drawn=16)
    assert sources_text(found) == "default 1; menu 2, best 0.800; ranker 2, best 1.100"
    assert as_json(found)["candidates"]["by_source"] == {"default": 1, "menu": 2, "ranker": 2}
    alike = "5 candidates of 16 that were drawn, the others equal to one of them"
    assert tried_text(found) == f"{alike}; so few leave no room for the search"
    bred = Candidate((5,), SEARCH, 1.3)
    assert tried_text(replace(found, candidates=[*candidates[1:], bred])) == alike
    few = replace(found, n_drawn=5)
    assert tried_text(few) == "5 candidates; no more are new"
    assert tried_text(replace(few, is_over=False)) == "5 candidates; no time for more"


SAME = Ratio(1.0, 0.99, 1.01)


def pool(value: float, half: float) -> Pool:
    return Pool(Ratio(value, value - half, value + half), SAME, 4, 40, 1.0)


@pytest.mark.parametrize(
    ("mean", "half", "why_not", "told"),
    [
        (0.8, 0.02, "", "0.990, 1.010] there, by 4 processes"),
        (0.995, 0.02, "", "by 4 processes: no loss there, though no sure gain"),
        (1.0, 0.3, "undecided whether it is a loss", "nor a loss is sure"),  # noise helps nothing
        (0.8, 0.3, "undecided whether it is a loss", ": neither a gain nor a loss is sure"),
        (1.13, 0.02, "on all cores it is a loss", "by 4 processes: a loss"),
    ],
)
def test_what_may_be_a_loss_on_all_cores_is_not_called_faster_and_that_is_said(
    mean: float, half: float, why_not: str, told: str, whole: tuple[Path, Optimized]
) -> None:
    own = Contestant(Candidate((1,), "menu"), Told({}), pool(0.5, 0.1), pool(mean, half), True)
    found = replace(whole[1], contestants=[own])
    assert found.is_faster == (not why_not) and found.why_not.startswith(why_not)
    assert (found.undecided is None) == ("undecided" not in why_not)
    assert all_cores_text(own).endswith(told)
    alone = replace(found, contestants=[replace(own, together=None, is_checked=False)])
    assert alone.is_faster and alone.best and all_cores_text(alone.best) == ""


def test_what_is_not_surely_faster_on_one_thread_is_told(whole: tuple[Path, Optimized]) -> None:
    own = Contestant(Candidate((1,), "menu"), Told({}), pool(0.97, 0.02), None, True)
    assert "does not surely gain 2.0 %, the least that counts; the" in own.why_not
    assert own.is_undecided
    assert not replace(own, alone=pool(1.0, 0.01)).is_undecided
    assert not replace(own, alone=pool(0.98, 0.004)).is_undecided  # about the least that counts
    noisy = pool(0.97, 0.1)._replace(same=Ratio(1.0, 0.8, 1.25))  # hides gains, rules none out
    told = "undecided: what was confirmed does not surely gain 25.0 %, by which the default itself"
    assert replace(own, alone=noisy).why_not.startswith(told)
    assert replace(own, alone=pool(1.04, 0.02)).why_not == "what was confirmed is slower"
    assert replace(whole[1], contestants=[]).why_not == "nothing that was tried was faster"
    begun = replace(whole[1], contestants=[], waiting=[], halves=[Told({})])
    assert verdict_text(begun).startswith("1 verified candidate was not confirmed")
    assert verdict_text(replace(begun, halves=[])).endswith("nothing that was tried was faster")


def ratios_of(paths: Iterable[Path], config: int = 2) -> list[float]:
    """Return the median over a process's rounds of a config over the default, slowly."""
    ratios = []
    for path in paths:
        _, *lines = map(json.loads, path.read_text().splitlines())
        ns = {(row["config"], row["round"]): row["runtime_ns"] for row in lines}
        turns = {turn for _, turn in ns}
        ratios.append(float(np.median([ns[config, turn] / ns[0, turn] for turn in turns])))
    return ratios


def test_a_call_that_is_repeated_adds_processes_and_pools_them_all(
    whole: tuple[Path, Optimized], tmp_path: Path
) -> None:
    """Rounds of one process agree more closely than processes do; a second look is paid for."""
    out, first = without(whole, tmp_path, "none"), whole[1].measured
    known = {path: path.read_bytes() for path in (out / "journal").glob("*.jsonl")}
    of_one = sorted(path for path in known if path.name.startswith("confirm"))
    assert len(of_one) == N_PROCESSES == first.n_processes and first.n_rounds >= ASKED.n_rounds
    assert first.ratio == pytest.approx(pooled(ratios_of(of_one)))
    again = optimize(ASKED, out)
    assert {path: path.read_bytes() for path in known} == known
    assert again.candidates == whole[1].candidates and len(again.contestants) == 1
    both = sorted((out / "journal").glob("confirm-*"))
    assert (again.measured.n_processes, again.measured.n_looks) == (len(both), 2) == (8, 2)
    assert again.measured.ratio == pytest.approx(pooled(ratios_of(both), 2))
    assert again.measured.same == pytest.approx(pooled(ratios_of(both, config=1), 2))
    result = write_result(again, out)
    assert (result["processes"], result["looks"]) == (8, 2)
    assert "by 8 processes" in (out / APPLY).read_text()
    for other, told in (
        (replace(ASKED, seed=1), "seed 0, not 1"),
        (replace(ASKED, run="r"), "run"),
    ):
        with pytest.raises(UsageError, match=f"was begun with {told}"):
            optimize(other, out)


def test_what_was_confirmed_stays_a_contestant_and_is_counted(
    whole: tuple[Path, Optimized], tmp_path: Path
) -> None:
    out = without(whole, tmp_path, "none")
    assert whole[1].best is not None
    best = list(whole[1].best.candidate.choice)
    for path in (out / "journal").glob("confirm-*"):  # as if another had been as fast
        other = path.read_text().replace(json.dumps(best, separators=(",", ":")), "[3,1]")
        path.with_name(f"confirm-other-{path.name[-7]}.jsonl").write_text(other)
    found = optimize(ASKED, out, minutes=0.0)
    assert {one.candidate.choice for one in found.contestants} == {tuple(best), (3, 1)}
    own = pooled(ratios_of((out / "journal").glob("confirm-other-*")), 2)
    assert [one.alone.ratio for one in found.contestants] == [pytest.approx(own)] * 2
    assert found.best and found.best.candidate.choice == tuple(best)  # checked on all cores


def test_a_search_that_is_cut_off_goes_on(
    whole: tuple[Path, Optimized], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda choice, number: 0.6)
    known = (whole[0] / "journal" / "screen.jsonl").read_bytes()
    cut = tmp_path / "journal" / "screen.jsonl"
    cut.parent.mkdir()
    cut.write_bytes(known[: len(known) // 2])  # in the middle of a line
    n_known = known[: len(known) // 2].count(b"\n")
    assert optimize(ASKED, tmp_path).is_faster
    kept = cut.read_bytes().splitlines()
    assert kept[:n_known] == known.splitlines()[:n_known] and len(kept) > n_known


def test_what_is_slower_when_it_is_verified_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Screened once each, some that are slower may look faster."""
    lucky = lambda candidates, _: [c for c in candidates if c.choice in ((2, 0), (3, 0))]  # noqa: E731
    monkeypatch.setattr("autotune.optimize.optimize.chosen_finalists", lucky)
    found = optimize(ask(), tmp_path)
    assert [one.alone.loses for one in found.finalists] == [True, True]
    assert not list((tmp_path / "journal").glob("confirm-*"))
    expected = "nothing is surely faster than the default: what was verified is slower"
    assert (verdict_text(found), halves_text(found)) == (expected, [])
    assert found.measured == min(one.alone for one in found.finalists)


def test_where_nothing_is_faster_it_says_so(tmp_path: Path) -> None:
    found = optimize(ask(), tmp_path)
    result = write_result(found, tmp_path)
    assert not found.is_faster
    assert (result["is_faster"], result["best_ms"]) == (False, None)
    assert result["default_ms"] * 1e6 == pytest.approx(STEP_NS, rel=0.5)
    assert "Nothing is surely faster than the default: " in (tmp_path / PAGE).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEST, "journal", PAGE]


@pytest.mark.parametrize(
    ("refuses", "minutes", "told"),
    [
        (None, 0.0, r"was not measured \(no time\); expected it to run within the time"),
        (0, 10.0, "failed: ValueError: layout is not supported; expected it to run$"),
    ],
)
def test_a_default_that_was_not_measured_is_told(
    refuses: int | None, minutes: float, told: str, tmp_path: Path
) -> None:
    opened = Spinning() if refuses is None else Spinning(SpinSource(refuses=refuses))
    with pytest.raises(PipelineError, match=f"the default {told}"):
        optimize(ask(opened), tmp_path, minutes=minutes)


@dataclass(frozen=True)
class Changing(Spinning):
    """Is another program in each process."""

    def __call__(self, *_: object) -> "Decided":
        return Decided(replace(self, source=replace(self.source, function=str(os.getpid()))))


def test_a_program_that_is_another_one_each_time_is_refused(tmp_path: Path) -> None:
    opened = Changing(is_reversed=True)
    with pytest.raises(PipelineError, match="mine:step: is another program when it is traced ag"):
        optimize(ask(opened), tmp_path)
    with pytest.raises(UsageError, match="was edited since, or differs each time it is traced"):
        optimize(ask(opened), tmp_path)


@dataclass(frozen=True)
class Endless(Spinning):
    def __call__(self, *_: object) -> "Decided":
        time.sleep(60)
        raise AssertionError("is ended before")


def test_a_program_that_is_not_opened_in_the_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.measure.worker.LEAST_OPEN_S", 1.0)
    told = "mine:step: not done after 1 s; expected to trace and compile it by then"
    with pytest.raises(PipelineError, match=told):
        optimize(ask(Endless()), tmp_path, minutes=0.001)


def test_what_is_kept_for_confirming_is_not_kept_from_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Screening gets no time in the first pass; the default is measured all the same."""
    shares = iter([0.0])
    usual = screening_s
    monkeypatch.setattr(
        "autotune.optimize.optimize.screening_s", lambda *given: next(shares, usual(*given))
    )
    found = optimize(ask(n_candidates=6, n_rounds=2), tmp_path)
    assert not any(found.candidates[0].choice) and found.default.default_ms > 0
    assert len(found.candidates) > 1


def test_the_menu_and_a_rankers_picks_are_tried_first_and_it_leads_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The true order, known to the ranker, leads to the best before half of the space is seen."""
    caplog.set_level("INFO")
    seen = []

    def pick(description: Description, configs: NDArray[np.int8]) -> NDArray[np.int64]:
        seen.append(configs.shape)
        return np.argsort(-4 * configs[:, 0, 6] - configs[:, 1, 6], kind="stable")

    monkeypatch.setattr("autotune.optimize.optimize.PICKED", 2)
    pretend(monkeypatch, lambda choice, number: 0.6)
    asked = ask(Spinning(is_reversed=True, usual=(0, 2)), n_candidates=6, run="runs/mine")
    found = optimize(asked, tmp_path, pick=pick)
    assert [(c.choice, c.source) for c in found.candidates[:4]] == [
        ((0, 0), "default"),
        ((0, 2), "menu"),
        ((3, 3), "ranker"),
        ((3, 2), "ranker"),
    ]
    assert {c.choice for c in found.candidates if c.source == "search"} <= {(3, 1), (3, 0), (2, 3)}
    assert seen[0] == (16, 2, 18) and len(seen) == 2  # of children too, those that are new
    assert tried_text(found) == "6 candidates"
    assert not any("leaves out" in message for message in caplog.messages)
    for n in (2, 3):  # which changes nothing of what is known
        fewer = optimize(replace(asked, n_candidates=n), tmp_path, pick=pick, minutes=0.0)
        assert fewer.candidates == found.candidates
    left_out = "leaves out what is tried first: ranker"
    assert f"--candidates 2 {left_out} 2; 4 would try it all" in caplog.messages
    assert f"--candidates 3 {left_out} 1; 4 would try it all" in caplog.messages
    seen.clear()
    tiles = Spinning(is_reversed=True, usual=(0, 2), space="tiles")
    asked = replace(asked, run=None, open_decided=tiles)
    alone = optimize(asked, tmp_path / "alone", pick=pick)
    assert [c.source for c in alone.candidates[2:4]] == ["fewest steps"] * 2
    assert len(seen) == 1  # what learned nothing does not lead the search
    with pytest.raises(UsageError, match="was begun with run fewest steps, not None; give another"):
        optimize(asked, tmp_path / "alone")  # which proposes others
    seen.clear()
    layouts = optimize(replace(asked, open_decided=Spinning()), tmp_path / "layouts", pick=pick)
    assert {c.source for c in layouts.candidates} == {"default", "search"}
    assert not seen  # nor does it know what is no tile


def test_without_a_run_tiles_of_the_fewest_steps_come_first() -> None:
    file = next(
        f for f in find_graphs(ROOT / "data/sample") if f.path.stem == "softmax_h8_q128_s128"
    )
    graph = read_tile(file)
    arrays = {key: getattr(graph, key) for key in ("node_feat", "node_opcode", "edge_index")}
    one_gene = np.array([graph.n_configs]), np.zeros(1, np.int64)
    order = pick_tiles(
        Ask("mine:kernel", ("tiles",)), Description(*one_gene, arrays, {}), graph.config_feat
    )
    assert sorted(order) == list(range(graph.n_configs))
    ordered_ns = graph.runtime_ns[order]
    assert ordered_ns[:5].min() < 1.1 * ordered_ns.min() < ordered_ns[-5:].min()


def test_slow_programs_have_fewer_finalists() -> None:
    with time_limit(6.0):
        assert [n_affordable(ns) for ns in (1e6, 0.5e9, 1e9, 60e9)] == [4, 4, 1, 1]


def test_candidates_of_the_same_code_are_one_and_the_simplest_description_wins() -> None:
    def code(choice: tuple[int, ...]) -> str:
        return str(choice[:2])  # the last gene changes nothing

    tried = [(0, 0, 1), (1, 0, 1), (1, 0, 0), (2, 0, 1), (3, 1, 0), (2, 1, 0)]
    ordered = [Candidate(choice, "menu") for choice in tried]
    found = distinct(ordered, [(0, 0, 0), (3, 1, 1)], code, 3)
    assert [c.choice for c in found] == [(1, 0, 0), (2, 0, 1), (2, 1, 0)]
    assert [simplified(c, code).choice for c in found] == [(1, 0, 0), (2, 0, 0), (2, 1, 0)]


def test_the_simplest_of_equals_is_taken() -> None:
    def verified(*genes: int, value: float) -> Contestant:
        return Contestant(Candidate(genes, "menu"), Told({}), pool(value, 0.01), None, True)

    for wide, simple, expected in (
        (0.5, 0.505, (1, 0, 0)),
        (0.5, 0.6, (1, 1, 1)),
        (0.952, 0.975, (1, 1, 1)),  # the simpler one would not count as faster
    ):
        both = [verified(1, 1, 1, value=wide), verified(1, 0, 0, value=simple)]
        assert simplest_of_best(both, ()).candidate.choice == expected
    both = [verified(1, 1, 1, value=0.5), verified(1, 0, 0, value=0.5)]
    assert simplest_of_best(both, [both[0].candidate]) is both[0]  # no further one to choose from
    suspect = shared_by([Candidate((1, 1, 0), "menu"), Candidate((1, 2, 0), "menu")])
    assert suspect == {(0, 1)} and shared_by([]) == frozenset()
    assert next_to_confirm(both, (), suspect).choice == (1, 0, 0)  # they are all that gain
    both.append(verified(0, 1, 1, value=0.9))
    assert next_to_confirm(both, (), suspect).choice == (0, 1, 1)
    assert next_to_confirm(both, (), shared_by([])).choice == (1, 0, 0)
    both.append(verified(0, 0, 1, value=1.0))
    assert next_to_confirm([both[0], both[-1]], (), suspect).choice == (1, 1, 1)
    assert next_to_confirm(both[-1:], (), suspect) == both[-1].candidate  # its interval holds 1
    slower = verified(0, 0, 1, value=1.03)
    assert next_to_confirm([slower], (), suspect) is None
    assert next_to_confirm([slower], [slower.candidate], suspect) == slower.candidate
    assert next_to_confirm([], (), suspect) is None
    candidates = [Candidate((n, n, n), "search", 0.5 + n / 1000) for n in range(1, 6)]
    simple = Candidate((0, 0, 1), "menu", 0.52)
    chosen = chosen_finalists([*candidates, simple, Candidate((0, 0, 0), "default", 1.0)])
    assert chosen[:2] == [candidates[0], simple] and len(chosen) == 6
    assert chosen_finalists([*candidates, simple], simple.decided)[-2:] == [candidates[0], simple]
    assert chosen_finalists([Candidate((1,), "menu", 1.01)]) == []


def test_the_default_is_never_faster_than_itself() -> None:
    """Of 300 candidates that are the default, in drifting noise, none is called faster."""
    rng = np.random.default_rng(0)
    n_faster = n_truly = 0
    for _ in range(300):
        drift = 1 + 0.3 * np.abs(np.cumsum(rng.normal(size=40))) / 40
        base, same, own = drift * np.exp(0.05 * rng.normal(size=(3, 40)))
        again = paired_ratio(same, base)
        n_faster += Pool(paired_ratio(own, base), again, 4, 40, 1.0).gains
        n_truly += Pool(paired_ratio(0.85 * own, base), again, 4, 40, 1.0).gains
    assert n_faster == 0
    assert n_truly > 290


def test_a_ratio_is_the_median_over_rounds() -> None:
    base = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    ratio = paired_ratio(base * [0.5, 0.5, 0.9, 0.5, 3.0], base)
    assert (ratio.value, ratio.low) == (0.5, 0.5) and 0.5 < ratio.high <= 3.0


def test_an_interval_pooled_holds_where_processes_differ() -> None:
    """The truth is .9; processes differ by 8 % of it, rounds of one process by 1 %."""
    rng = np.random.default_rng(0)
    n_held = n_held_by_rounds = 0
    for _ in range(400):
        process = 0.9 * np.exp(0.08 * rng.normal(size=3))
        rounds = process[:, None] * np.exp(0.01 * rng.normal(size=(3, 14)))
        found = pooled([float(np.median(own)) for own in rounds])
        one = paired_ratio(rounds[0], np.ones(14))
        n_held += found.low <= 0.9 <= found.high
        n_held_by_rounds += one.low <= 0.9 <= one.high
    assert n_held >= 0.93 * 400 > 0.3 * 400 > n_held_by_rounds


@pytest.mark.parametrize(
    ("program", "space", "code", "told"),
    [
        ("nonsense", "options", 1, "program 'nonsense': not in the catalogue"),
        ("nonsense:step", "options", 1, "nonsense"),
        ("mlp_b16", "nonsense", 2, "--space nonsense: no such space; known: options"),
        (
            *("matmul_m128_k256_n512", "options", 2),
            "matmul_m128_k256_n512 is a kernel, of which tiles alone are decided; expected tiles",
        ),
        ("mlp_b16", "tiles", 2, "error: tiles: mlp_b16 is no kernel"),
        ("json:dumps", "tiles", 2, "tiles: json:dumps is no kernel; expected options, layouts, fu"),
        ("json:nonsense", "tiles", 1, "--program json:nonsense: json holds no 'nonsense'"),
        ("nonsense", "tiles", 2, "no such kernel; `collect --list --kind tile` names all"),
        ("json:codecs", "options", 2, "is a module; expected a function; a TileKernel is of --spa"),
    ],
)
def test_what_is_refused_is_one_line_and_leaves_no_folder(
    program: str, space: str, code: int, told: str, tmp_path: Path
) -> None:
    pytest.importorskip("jax")
    words = ("optimize", "--program", program, "--space", space, "--out", tmp_path / "out")
    (line,) = stderr_of(*words, expect=code)
    assert told in line
    assert not (tmp_path / "out").exists()


def test_a_run_is_refused_where_no_space_is_one_that_models_rank(tmp_path: Path) -> None:
    words = ("optimize", "--program", "mlp_b16", "--run", tmp_path, "--out", tmp_path / "out")
    (line,) = stderr_of(*words, expect=2)
    told = "models rank layouts and tiles alone, not options; expected --space with one of these"
    assert told in line and not (tmp_path / "out").exists()


def test_a_space_that_is_left_out_is_told_and_the_others_are_searched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = optimize(ask(spaces=("layouts", "tiles"), n_candidates=2), tmp_path)
    assert found.spaces == ("layouts",)
    assert "tiles: mine:step is no kernel; goes on with layouts" in caplog.text


def test_what_is_decided_is_told_with_its_layouts_or_if_it_is_much_by_name() -> None:
    orders = {"dot": {"input": [1, 0], "kernel": [0, 1]}, "dot.6": {"output": [1, 2, 0]}}
    told = told_text(Told({"options": {"fast": True}, "layouts": orders, "kept_apart": ["add"]}))
    layouts = "dot input {1,0} kernel {0,1}, dot.6 output {1,2,0}"
    assert told == f"fast=True; layouts: {layouts}; kept apart: add"
    many = {f"dot.{number}": {"output": [1, 0]} for number in range(7)}
    assert told_text(Told({"layouts": many})) == f"layouts: {', '.join(many)}"
