"""The stored best settings of `optimize`: reuse, another machine, and files of others."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.optimize.candidate import Status
from autotune.optimize.optimize import OptimizeResult, optimize
from autotune.optimize.session import OptimizeSession, TooFewMinutes
from autotune.optimize.stored import fingerprint, start_of
from autotune.optimize.write import summary_lines
from common.errors import UsageError
from tests.autotune.fakes import SpinSource, spin_request
from tests.autotune.test_optimize import simulate

# The last options are the fastest. A search by chance with four candidates misses them.
SOURCE = SpinSource(is_reversed=True, usual=(3, 3))
REQUEST = spin_request(SOURCE, n_candidates=4)
BLIND = replace(REQUEST, search="genetic")
BEST = (3, 3)
Call = Callable[..., OptimizeResult]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Call:
    """Run `optimize` in a new folder with fresh processes that are simulated."""
    simulate(monkeypatch, lambda setting, number: 0.6)
    caplog.set_level("INFO")

    def run(out: str, request: Any = BLIND, **more: Any) -> OptimizeResult:
        caplog.clear()
        return optimize(request, tmp_path / out, cache=tmp_path / "cache", **more)

    return run


@pytest.fixture
def stored(call: Call, tmp_path: Path) -> Path:
    assert (best := call("first", REQUEST).best) and best.setting == BEST
    (path,) = (tmp_path / "cache").iterdir()
    return path


def test_next_call_confirms_the_stored_setting_first_and_searches_from_it(
    call: Call, stored: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = call("next")
    assert result.is_faster and result.best and result.best.setting == BEST
    assert [c.source for c in result.candidates][:2] == ["default", "stored"]
    (note,) = [line for line in caplog.messages if str(stored) in line]
    assert note.endswith("of an earlier call, 0.12 of the default's time; --fresh ignores it")
    lines = [line.split(":")[0] for line in caplog.messages]
    assert lines.index("confirm") < lines.index("verify")
    assert "stored" not in {c.source for c in call("fresh", is_fresh=True).candidates}


def test_search_that_cannot_start_from_a_setting_still_confirms_it(
    call: Call, stored: Path
) -> None:
    result = call("next", replace(BLIND, search="random", n_candidates=2))
    assert result.is_faster and result.best and result.best.setting == BEST
    assert [c.source for c in result.candidates if c.setting == BEST] == ["stored"]


def test_stored_setting_of_a_slow_program_is_given_out_again(
    call: Call, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is over after one process, so nothing is verified."""
    measure = OptimizeSession.measure

    def measure_once(session: OptimizeSession, name: str, *more: Any) -> tuple[list[int], Any]:
        is_first = name.startswith("confirm") and name.endswith("-1")
        return measure(session, name, *more) if is_first else ([], np.zeros((0, 3), np.int64))

    monkeypatch.setattr(OptimizeSession, "measure", measure_once)
    result = call("next")
    assert not result.is_faster and result.best and result.best.setting == BEST
    assert result.best.is_probable and result.measured.n_processes == 1 and stored.exists()
    with pytest.raises(TooFewMinutes, match="no candidate was verified"):
        call("fresh", is_fresh=True)


def test_search_resumes_with_the_start_of_its_first_call(
    call: Call, stored: Path, tmp_path: Path
) -> None:
    first = call("next")
    stored.unlink()
    again = call("next")
    assert [c.setting for c in again.candidates] == [c.setting for c in first.candidates]
    with pytest.raises(
        UsageError, match=r"begun with start \[3, 3\], not None; give another --out"
    ):
        call("next", is_fresh=True)
    call("none", is_fresh=True)
    content = stored.read_text()
    assert "stored" not in {c.source for c in call("none").candidates}
    assert stored.read_text() == content


def test_fresh_call_keeps_a_better_stored_result(call: Call, stored: Path) -> None:
    content = stored.read_text()
    slower = spin_request(replace(SOURCE, usual=(1, 1)), n_candidates=2)
    worse = call("fresh", slower, is_fresh=True).best
    assert worse and worse.setting != BEST and worse.status is Status.FASTER
    assert stored.read_text() == content
    stored.unlink()
    call("new", slower, is_fresh=True)
    assert tuple(json.loads(stored.read_text())["setting"]) == worse.setting


def test_setting_that_is_no_longer_faster_is_removed(
    call: Call, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch, lambda setting, number: 1.2)
    assert not call("next").is_faster and not stored.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"setting": [9, 9]}, "another program, machine or setting"),
        ({"setting": [0, 0]}, "another program, machine or setting"),
        ({"setting": [3, 3, 0]}, "another program, machine or setting"),
        ({"setting": [3, -1]}, "key 'setting[1]' is -1"),
        ({"setting": "3,3"}, "key 'setting' is '3,3'"),
        ({"decisions": {"options": {"first": 2}}}, "another program, machine or setting"),
        ({"program": {"function": "other"}}, "another program, machine or setting"),
        ({"ratio": float("nan")}, "key 'ratio' is"),
        ({"code": "import os"}, "unknown key 'code'"),
        ("[" * 100_000, "maximum recursion depth"),
        ("nonsense", "Expecting value"),
        (" " * (1 << 22) + "{}", "Expecting"),
    ],
)
def test_file_of_others_is_ignored_in_one_line(
    change: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    program: Any = SOURCE()  # in place of its worker
    session = OptimizeSession(BLIND, tmp_path, program, program.describe())
    content = {"program": fingerprint(session), "setting": BEST, "ratio": 0.1}
    content |= {"decisions": {"options": {"first": 3}}}
    path = tmp_path / "stored.json"
    path.write_text(json.dumps(content))
    assert start_of(session, path) == BEST
    path.write_text(change if isinstance(change, str) else json.dumps(content | change))
    assert start_of(session, path) is None
    note = caplog.messages[-1]
    assert note.startswith(f"note: {path}: is ignored: ") and reason in note and "\n" not in note


def test_cache_that_cannot_be_written_is_a_note(
    call: Call, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").touch()
    assert call("first", REQUEST).is_faster
    assert any("note: the result is not stored: " in line for line in caplog.messages)
    assert [*summary_lines(call("first", REQUEST), tmp_path)]
