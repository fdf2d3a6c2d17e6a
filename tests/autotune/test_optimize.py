"""`optimize` on programs of known runtimes: screening, verifying, confirming, resuming, files."""

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure.journal import whole_rounds
from autotune.measure.program import Decisions
from autotune.measure.worker import GRACE_S
from autotune.optimize.candidate import (
    N_PROCESSES,
    Comparison,
    OptimizeCandidate,
    Ratio,
    Setting,
    Status,
    Times,
    pool_ratios,
    setting_text,
)
from autotune.optimize.optimize import OptimizeResult, _distinct, optimize
from autotune.optimize.session import OptimizeSession, TooFewMinutes
from autotune.optimize.write import APPLY, BEST, all_cores_text, summary_lines, write_result
from common.errors import OutOfTime, PipelineError, UsageError
from common.machine import granted
from data.hlo.compiler_options import EXTRA
from tests.autotune.fakes import ALL_BUT_DEFAULT, DEFAULT_STEPS, STEP_NS, SpinSource, spin_request
from tests.support.command_line import stderr_of

REVERSED = SpinSource(crashes=1, refuses=2, is_reversed=True)
REQUEST = spin_request(REVERSED, n_candidates=16)
# The folder of a call, and its result.
Call = tuple[Path, OptimizeResult]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """A program whose later options are faster; some of them crash or are refused."""
    out = tmp_path_factory.mktemp("whole")
    return out, optimize(REQUEST, out)


def test_faster_setting_is_confirmed_and_written(whole: Call) -> None:
    out, result = whole
    assert result.is_faster and result.best and result.best.status is Status.FASTER
    assert result.measured.ratio.value < 0.6
    assert result.measured.same.value == pytest.approx(1, abs=0.1)
    assert len({c.setting for c in result.candidates}) == len(result.candidates)
    failed = {c.setting[0]: c.failure for c in result.candidates if c.status is Status.FAILED}
    assert failed.keys() == {1, 2}
    assert "Check failed" in failed[1] and "not supported" in failed[2]
    content = write_result(result, out)
    assert json.loads((out / BEST).read_text()) == content
    labels = [line.split()[0] for line in summary_lines(result, out)]
    labels = [label for label in labels if label != "confirmed"]
    assert labels == ["faster", "by", "itself", "tried", "use", "or"]
    assert content["best_ms"] == pytest.approx(content["default_ms"] * content["ratio"])
    assert content["ci95"][0] <= content["ratio"] <= content["ci95"][1] < 1
    if granted()[0] > 1:
        assert content["on_all_cores"]["ratio"] < 0.7
        assert (content["looks"], content["on_all_cores"]["looks"]) == (1, 1)


def test_candidates_that_all_fail_are_an_error(tmp_path: Path) -> None:
    request = spin_request(SpinSource(refuses=ALL_BUT_DEFAULT), n_candidates=4)
    fault = "mine:step: all [23] candidates but the default failed: ValueError: layout is not"
    with pytest.raises(PipelineError, match=fault):
        optimize(request, tmp_path)


def without(whole: Call, out: Path, pattern: str) -> Path:
    """Copy the folder of a call that was killed before it wrote some journals."""
    shutil.copytree(whole[0], out, dirs_exist_ok=True)
    for path in (out / "journal").glob(pattern):
        path.unlink()
    return out


@pytest.mark.skipif(granted()[0] == 1, reason="has one core")
@pytest.mark.parametrize(
    "case",
    [
        ("all-cores-*.jsonl", "undecided whether it is a loss on all cores", 4),
        ("[ca]*-[2-4].jsonl", "not confirmed in the time; the same command resumes", 1),
        ("confirm-*-[34].jsonl", "", 2),
    ],
)
def test_interrupted_call_reports_its_state_and_resumes(
    case: tuple[str, str, int], whole: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, why_not, n_processes = case
    out = without(whole, tmp_path, missing)
    with monkeypatch.context() as patched:
        patched.setattr("autotune.optimize.optimize._n_affordable", lambda _: 4)
        patched.setattr("autotune.measure.worker.GRACE_S", 60.0)
        result = optimize(REQUEST, out, minutes=0.0)
    assert result.why_not.startswith(why_not) and result.is_faster == (not why_not)
    content = write_result(result, out)
    assert (content["best_ms"] is None, content["processes"]) == (bool(why_not), n_processes)
    assert content["is_probable"] == bool(why_not) and content["decisions"]
    header = (out / APPLY).read_text().splitlines()[0]
    labels = [line.split()[0] for line in summary_lines(result, out)]
    if why_not:
        assert "mine:step: probably 0." in header and why_not in header
        assert not re.search("faster|verified", header)
        assert labels == ["default", "probable", "by", "itself", "tried", "try", "or"]
        assert content["xla_flags"] in [*summary_lines(result, out)][-1]
    simulate(monkeypatch, lambda setting, number: 0.6)
    assert optimize(REQUEST, out).is_faster


def simulate(
    monkeypatch: pytest.MonkeyPatch, on_all_cores: Callable[[Setting, int], float]
) -> None:
    """Simulate fresh processes: on one thread as `Decided`, on all cores by a function.

    The function gets a setting and the number of the process.
    """

    def measure(
        session: OptimizeSession, name: str, settings: Times, n_rounds: tuple[int, int], _: float
    ) -> tuple[list[int], Times]:
        journal, number = session.journal(name), int(name[-1], 16)
        for turn in range(1, 1 + n_rounds[1]):
            for config, setting in enumerate(map(tuple, settings.tolist())):
                ratio = (DEFAULT_STEPS - 4 * setting[0] - setting[1]) / DEFAULT_STEPS
                if name.startswith("all-cores"):
                    ratio = on_all_cores(setting, number) if any(setting) else 1.0
                journal.add(config, setting, round=turn, runtime_ns=round(1e6 * ratio), n_runs=1)
        return whole_rounds(journal, len(settings))

    monkeypatch.setattr(OptimizeSession, "measure", measure)
    monkeypatch.setattr(OptimizeSession, "needs_all_cores", True)


@pytest.mark.parametrize(("spread", "n_processes"), [(0.0, 4), (0.2, 8)])
def test_loss_on_all_cores_makes_way_for_a_candidate_without_its_decisions(
    spread: float,
    n_processes: int,
    whole: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that decides the first knob loses, surely or, if processes differ, maybe."""

    def on_all_cores(setting: Setting, number: int) -> float:
        return 1.1 + spread * (-1) ** number if setting[0] else 0.9

    simulate(monkeypatch, on_all_cores)
    result = optimize(REQUEST, without(whole, tmp_path, "[cav]*.jsonl"), minutes=1.0)
    best, *lost = result.confirmed
    assert result.is_faster and best.setting[0] == 0 and lost
    for candidate in lost:
        assert candidate.setting[0] == 3 and candidate.why_not and candidate.together
        assert candidate.together.n_processes == n_processes
        assert candidate.together.n_looks >= n_processes // N_PROCESSES
        assert all_cores_text(candidate).endswith(": a loss") or spread


def test_candidate_fails_if_xla_flags_lead_to_other_code(
    whole: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of a fresh process with flags is that of the setting, or another one."""
    simulate(monkeypatch, lambda setting, number: 0.6)
    describe = OptimizeSession.describe

    def with_extra(session: OptimizeSession, setting: Setting) -> Decisions:
        extra = {"options": {EXTRA: "fast"}} if any(setting) else {}
        return describe(session, setting)._replace(decisions=extra)

    monkeypatch.setattr(OptimizeSession, "describe", with_extra)
    out = without(whole, tmp_path / "same", "[cav]*.jsonl")
    result = optimize(REQUEST, out)
    assert result.is_faster
    line = "first       import apply.py before JAX makes an array: it sets XLA_FLAGS=--xla_backend"
    assert any(text.startswith(line) for text in summary_lines(result, out))
    monkeypatch.setattr(OptimizeSession, "code", lambda session, setting: str(setting))
    out = without(whole, tmp_path / "other", "[cav]*.jsonl")
    result = optimize(REQUEST, out)
    assert not result.is_faster and not result.usable
    failed = [c for c in result.candidates if c.alone and c.status is Status.FAILED]
    assert failed and not any(c.is_probable for c in failed)


def test_limit_before_candidates_are_described_names_the_minutes(
    whole: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object) -> None:
        raise OutOfTime("the worker was stopped")

    monkeypatch.setattr(OptimizeSession, "measured", measured)
    out = without(whole, tmp_path, "[ca]*.jsonl")
    with pytest.raises(TooFewMinutes, match=r"no candidate was verified in .*--minutes \d+ or"):
        optimize(REQUEST, out)


def test_no_time_to_verify_is_an_error(
    whole: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.measure.worker.GRACE_S", 60.0)
    out = without(whole, tmp_path, "[cav]*.jsonl")
    with pytest.raises(TooFewMinutes, match=r"no candidate was verified in .*--minutes \d+ or"):
        optimize(REQUEST, out, minutes=0.0)


def test_a_call_that_measured_only_the_default_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_search(*_: object) -> None:
        raise OutOfTime("the search")

    monkeypatch.setattr("autotune.optimize.optimize.run_search", run_search)
    with pytest.raises(TooFewMinutes, match=r"no candidate was verified in .*--minutes \d+ or"):
        optimize(REQUEST, tmp_path)


@pytest.mark.parametrize(
    ("spin", "minutes"),
    [
        (SpinSource(opens_s=30), 0.02),
        (SpinSource(hangs=0), 0.05),
        (SpinSource(hangs=1), 0.05),
        (SpinSource(is_reversed=True, opens_s=1.0, loads_s=1.0), 0.2),
    ],
)
def test_slow_program_ends_in_time(spin: SpinSource, minutes: float, tmp_path: Path) -> None:
    start = time.monotonic()
    with suppress(TooFewMinutes):
        optimize(spin_request(spin), tmp_path, minutes=minutes)
    assert time.monotonic() - start < 60 * minutes + GRACE_S + 8  # on a loaded machine


@pytest.mark.parametrize(
    ("spin", "problem"),
    [(SpinSource(opens_s=30), "compiled"), (SpinSource(hangs=0), "measured")],
)
def test_limit_before_the_default_ran_names_the_minutes_and_the_command(
    spin: SpinSource, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening takes s seconds or more, so 12 of them are asked for."""
    request, words = spin_request(spin), ["optimize", "--program", "my step:f", "--minutes=0.1"]
    monkeypatch.setattr("autotune.optimize.session.OptimizeRequest", lambda *_, **__: request)
    monkeypatch.setattr("sys.argv", ["fast-or-slow", *words, "--out", str(tmp_path)])
    start = time.monotonic()
    *_, error = stderr_of(*words, "--out", tmp_path, expect=1)
    asked = int(error.split()[-1])
    assert 1 < asked <= math.ceil((time.monotonic() - start) * 12 / 60)
    assert f"mine:step: the default was not {problem} in the 0.1 minutes; expected" in error
    command = f"fast-or-slow optimize --program 'my step:f' --out {tmp_path} --minutes {asked}"
    assert error.endswith(f"--minutes {asked} or more; the same command resumes with it: {command}")


def ratios_of(paths: Iterable[Path], config: int = 2) -> list[float]:
    """Return the median over a process's rounds of a config over the default, slowly."""
    ratios = []
    for path in paths:
        _, *lines = map(json.loads, path.read_text().splitlines())
        ns = {(row["config"], row["round"]): row["runtime_ns"] for row in lines}
        turns = {turn for _, turn in ns}
        ratios.append(float(np.median([ns[config, turn] / ns[0, turn] for turn in turns])))
    return ratios


def test_figures_pool_all_processes_and_a_repeated_call_keeps_them(
    whole: Call, tmp_path: Path
) -> None:
    out, first = without(whole, tmp_path, "none"), whole[1].measured
    before = {path: path.read_bytes() for path in (out / "journal").glob("*.jsonl")}
    processes = sorted(path for path in before if path.name.startswith("confirm"))
    assert len(processes) == N_PROCESSES == first.n_processes
    assert first.n_rounds >= REQUEST.n_rounds
    assert first.ratio == pytest.approx(pool_ratios(ratios_of(processes)))
    assert first.same == pytest.approx(pool_ratios(ratios_of(processes, config=1)))
    assert optimize(REQUEST, out).measured == first
    assert {path: path.read_bytes() for path in (out / "journal").glob("*.jsonl")} == before
    for request, difference in (
        (replace(REQUEST, seed=1), "seed 0, not 1"),
        (replace(REQUEST, run=str(out)), "run"),
        (replace(REQUEST, search="random"), "search portfolio, not random"),
    ):
        with pytest.raises(UsageError, match=f"was begun with {difference}"):
            optimize(request, out)


def test_nothing_faster_is_reported(tmp_path: Path) -> None:
    (tmp_path / APPLY).touch()  # of an earlier call
    result = optimize(spin_request(), tmp_path)
    content = write_result(result, tmp_path)
    assert (content["is_faster"], content["best_ms"]) == (False, None)
    assert content["default_ms"] * 1e6 == pytest.approx(STEP_NS, rel=0.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEST, "journal"]


@pytest.mark.parametrize(
    ("spin", "reason"),
    [
        (SpinSource(refuses=0), "ValueError: layout is not supported; expected it to run$"),
        (SpinSource(hangs=0), "not done after 2 s; .*; give more --timeout-s and another --out"),
    ],
)
def test_default_that_fails_is_an_error(spin: SpinSource, reason: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=f"the default failed: {reason}"):
        optimize(spin_request(spin, timeout_s=2.0), tmp_path)


def test_program_that_changes_between_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="mine:step: is another program when it is traced ag"):
        optimize(spin_request(replace(REVERSED, function=None)), tmp_path)


def test_portfolio_tries_the_menu_and_the_picks_of_a_ranker_that_guides_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []

    def rank(_: object, settings: NDArray[np.int64]) -> NDArray[np.int64]:
        shapes.append(settings.shape)
        return np.argsort(-settings @ (4, 1), kind="stable")

    monkeypatch.setattr("autotune.optimize.strategies._rank_layouts", rank)
    monkeypatch.setattr("autotune.optimize.strategies.N_PICKS", 2)
    simulate(monkeypatch, lambda setting, number: 0.6)
    spin = SpinSource(is_reversed=True, usual=(0, 2))
    request = spin_request(spin, n_candidates=6, run=str(tmp_path))
    result = optimize(request, tmp_path / "portfolio")
    first = [((0, 0), "default"), ((0, 2), "menu"), ((3, 3), "ranker"), ((3, 2), "ranker")]
    assert [(c.setting, c.source) for c in result.candidates[:4]] == first
    bred = {c.setting for c in result.candidates if c.source == "search"}
    assert bred <= {(3, 1), (3, 0), (2, 3)}
    assert shapes[0] == (16, 2) and len(shapes) == 2  # the second are new children
    fewer = optimize(replace(request, n_candidates=3), tmp_path / "portfolio")
    assert [(c.setting, c.source) for c in fewer.candidates[:4]] == first
    ranker = optimize(replace(request, search="ranker"), tmp_path / "ranker")
    assert [(c.setting, c.source) for c in ranker.candidates[:3]] == [first[0], *first[2:]]


@pytest.mark.parametrize("search", ["random", "genetic"])
def test_searches_propose_distinct_settings_and_resume(
    search: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch, lambda setting, number: 0.6)
    source = SpinSource(is_reversed=True, space="options")
    request = spin_request(source, search=search, spaces=("options",))
    result = optimize(request, tmp_path)
    assert result.is_faster and len(result.candidates) > 4
    assert {c.source for c in result.candidates} == {"default", "search"}
    journal = tmp_path / "journal" / "screen.jsonl"
    content = journal.read_bytes()
    journal.write_bytes(content[: len(content) // 2])  # a kill in the middle of a line
    n_lines = journal.read_bytes().count(b"\n")
    again = optimize(request, tmp_path)
    assert journal.read_bytes().splitlines()[:n_lines] == content.splitlines()[:n_lines]
    assert [c.setting for c in again.candidates][:5] == [c.setting for c in result.candidates][:5]


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (("nonsense",), 1, "program 'nonsense': not in the catalogue"),
        (("mlp_b16", "--space", "tiles"), 2, "--space tiles: no such value; known: options, la"),
        (("mlp_b16", "--search", "best"), 2, "--search best: no such value; known: portfolio, ra"),
        (("mlp_b16", "--search", "ranker"), 2, "--search ranker: expected --run RUN"),
        (("mlp_b16", "--search", "go"), 2, "--search go: no such value; known: portfolio, random"),
        (("mlp_b16", "--run", "r"), 2, "models rank only layouts, not options"),
        (
            ("mlp_b16", "--space", "layouts", "--run", "no"),
            1,
            "no: no such file or folder; exp",
        ),
    ],
)
def test_refusal_is_one_line_and_leaves_no_folder(
    options: tuple[str, ...], code: int, line: str, tmp_path: Path
) -> None:
    pytest.importorskip("jax")
    out = tmp_path / "out"
    (error,) = stderr_of("optimize", "--out", out, "--program", *options, expect=code)
    assert line in error and not out.exists()


def test_space_without_decisions_is_reported_and_the_others_are_searched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = optimize(spin_request(spaces=("layouts", "fusion"), n_candidates=2), tmp_path)
    assert list(result.description.knobs) == ["layouts"]
    assert "mine:step has no result that could be kept apart; continues with layouts" in caplog.text


def test_setting_text_has_a_few_layouts_and_only_names_of_many() -> None:
    orders = {"dot": {"input": [1, 0], "kernel": [0, 1]}, "dot.6": {"output": [1, 2, 0]}}
    text = setting_text(
        Decisions({"options": {"fast": True}, "layouts": orders, "kept_apart": ["add"]})
    )
    layouts = "dot input {1,0} kernel {0,1}, dot.6 output {1,2,0}"
    assert text == f"fast=True; layouts: {layouts}; kept apart: add"
    many = {f"dot.{number}": {"output": [1, 0]} for number in range(7)}
    assert setting_text(Decisions({"layouts": many})) == f"layouts: {', '.join(many)}"


SAME = Ratio(1.0, 0.99, 1.01)


def compared(value: float, half: float, same: Ratio = SAME) -> Comparison:
    return Comparison(Ratio(value, value - half, value + half), same, 4, 40, 1.0)


NOISY = compared(0.97, 0.1, Ratio(1.0, 0.8, 1.25))


@pytest.mark.parametrize(
    ("alone", "together", "status", "why_not"),
    [
        (compared(0.5, 0.1), compared(0.8, 0.02), Status.FASTER, ""),
        (compared(0.5, 0.1), compared(0.995, 0.02), Status.FASTER, ""),
        (compared(0.5, 0.1), compared(1.0, 0.3), Status.UNDECIDED, "undecided whether it is a l"),
        (compared(0.5, 0.1), None, Status.UNDECIDED, "undecided whether it is a loss"),
        (compared(0.5, 0.1), compared(1.13, 0.02), Status.LOSS, "on all cores it is a loss"),
        (compared(0.97, 0.02), None, Status.UNDECIDED, "undecided: the confirmed candidate does n"),
        (compared(1.0, 0.01), None, Status.NO_GAIN, "the confirmed candidate does not surely gain"),
        (compared(0.98, 0.004), None, Status.NO_GAIN, "the confirmed candidate does not surely"),
        (
            NOISY,
            None,
            Status.UNDECIDED,
            "undecided: the confirmed candidate does not surely gain 2",
        ),
        (compared(1.04, 0.02), None, Status.SLOWER, "the confirmed candidate is slower"),
    ],
)
def test_status_follows_from_the_measurements(
    alone: Comparison, together: Comparison | None, status: Status, why_not: str
) -> None:
    own = OptimizeCandidate((1,), "menu", alone=alone, together=together)
    assert own.status is status and own.why_not.startswith(why_not)
    assert bool(own.why_not) == (status is not Status.FASTER)
    if alone.gains:
        assert replace(own, together=None, needs_all_cores=False).status is Status.FASTER


@pytest.mark.parametrize(
    ("verified", "alone", "together", "is_probable"),
    [
        (compared(0.5, 0.1), None, None, True),
        (compared(0.5, 0.3), None, None, False),
        (compared(0.5, 0.1, Ratio(1.0, 0.5, 1.5)), None, None, False),
        (compared(0.5, 0.1), compared(0.6, 0.5), None, True),
        (compared(0.5, 0.1), compared(0.8, 0.5), None, False),
        (compared(0.5, 0.1), compared(0.99, 0.01), None, False),
        (compared(0.5, 0.1), compared(0.5, 0.1), None, True),
        (compared(0.5, 0.1), compared(0.5, 0.1), compared(0.9, 0.2), True),
        (compared(0.5, 0.1), compared(0.5, 0.1), compared(1.05, 0.2), False),
        (compared(0.5, 0.1), compared(0.5, 0.1), compared(0.9, 0.02), False),  # faster
    ],
)
def test_gain_is_probable_if_one_interval_is_far_below_1_and_nothing_speaks_against_it(
    verified: Comparison, alone: Comparison | None, together: Comparison | None, is_probable: bool
) -> None:
    own = OptimizeCandidate((1,), "menu", verified=verified, alone=alone, together=together)
    assert own.is_probable == is_probable


def test_candidates_of_equal_code_are_one_and_the_simplest_wins() -> None:
    def code(setting: Setting) -> str:
        return str(setting[:2])  # the last knob changes nothing

    tried = [(0, 0, 1), (1, 0, 1), (1, 0, 0), (2, 0, 1), (3, 1, 0), (2, 1, 0)]
    ordered = [OptimizeCandidate(setting, "menu") for setting in tried]
    found = [c.setting for c in _distinct(ordered, (0, 0, 0), code, 3)]
    assert found == [(1, 0, 0), (2, 0, 1), (3, 1, 0)]


def test_pooled_interval_covers_the_truth_if_processes_differ() -> None:
    """The truth is .9; processes differ by 8 %, rounds of one process by 1 %."""
    rng = np.random.default_rng(0)
    n_covered = 0
    for _ in range(400):
        process = 0.9 * np.exp(0.08 * rng.normal(size=3))
        rounds = process[:, None] * np.exp(0.01 * rng.normal(size=(3, 14)))
        found = pool_ratios([float(np.median(own)) for own in rounds])
        n_covered += found.low <= 0.9 <= found.high
    assert n_covered >= 0.93 * 400
