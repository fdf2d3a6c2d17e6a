"""Tuning on a tiny synthetic tree: budget, resuming, failures, and files it must not read."""

import errno
import json
import shutil
import signal
from dataclasses import asdict
from pathlib import Path

import optuna
import pytest

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import time_limit
from models.config.recipe import load_recipe
from models.run_folder import flat, is_done
from pipeline.tuning.tune import TuneResult
from tests.pipeline.tuning.conftest import (
    DIVERGES,
    LEARNING_RATE,
    PARAMETERS,
    SPACE,
    outcome,
    search,
    small_recipe,
    space_over,
)
from tests.support.command_line import call, stderr_of


def files_below(folder: Path) -> dict[str, float]:
    return {str(p): p.stat().st_mtime for p in folder.rglob("report.json")}


def test_the_baseline_comes_first_and_the_best_trial_wins(
    searched: tuple[Path, TuneResult],
) -> None:
    folder, result = searched
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert [trial.is_baseline for trial in result.trials] == [True, False, False]
    own = dict(flat(small_recipe().model_dump(mode="json")))
    assert result.trials[0].params == {key: own[key] for key in SPACE.parameters}
    assert result.baseline_value == result.trials[0].value
    assert result.best.value == max(trial.value or -2 for trial in result.trials)
    assert len({trial.params[LEARNING_RATE] for trial in result.trials}) == 3
    assert len({trial.value for trial in result.trials}) > 1
    history = json.loads((folder / "out" / "trials.json").read_text())
    assert history == list(asdict(result)["trials"])
    for number in range(3):
        trial = folder / "out" / "trials" / str(number)
        assert is_done(trial) and is_done(trial / "fold-0") and is_done(trial / "fold-1")
    assert is_done(folder / "out")


def test_a_smaller_budget_first_ends_as_one_call_and_reads_no_valid_or_test_file(
    tiny_tree: Path,
    searched: tuple[Path, TuneResult],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_tree, damaged)
    for file in damaged.rglob("*.npz"):
        if file.parent.name != "train":
            file.write_bytes(b"no archive")
    first = search(damaged, tmp_path, trials=1)
    assert len(first.trials) == 1 and first.best.is_baseline
    configs = first.best.params["cross_config_sage.configs_per_step"]
    told = f"configs_per_step={configs}  training.learning_rate=0.0001"
    assert f"trial 0: {first.best.value:.4f}  {told}" in caplog.messages
    resumed = search(damaged, tmp_path, trials=3)
    assert outcome(resumed) == outcome(searched[1])
    before = files_below(tmp_path)
    again = search(damaged, tmp_path, trials=3)
    assert outcome(again) == outcome(resumed) and files_below(tmp_path) == before


def test_a_failing_trial_is_recorded_and_the_study_continues(
    tiny_tree: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = search(tiny_tree, tmp_path, trials=2, space=DIVERGES)
    assert [trial.state for trial in result.trials] == ["complete", "fail"]
    assert "the loss or a gradient is" in (result.trials[1].reason or "")
    assert "\n" not in (result.trials[1].reason or "")
    history = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert history[1]["reason"] == result.trials[1].reason and history[1]["value"] is None
    assert result.best.is_baseline and result.best.value == result.baseline_value
    assert caplog.messages[-1].startswith("no trial beat the recipe")
    assert any("is outside the search space" in line for line in caplog.messages)
    failed = next(line for line in caplog.messages if line.startswith("trial 1 failed: "))
    assert failed.endswith("  training.learning_rate=1e+30")
    assert load_recipe(str(result.best_recipe)) == small_recipe()
    assert len(search(tiny_tree, tmp_path, trials=2, space=DIVERGES).trials) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_library_makes_an_error_of_is_no_failure_of_the_trial(
    number: signal.Signals, tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*args: object, **options: object) -> float:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as error:
            raise ValueError("of pydantic") from error
        return 0.0

    monkeypatch.setattr("pipeline.tuning.objective.ranking_score", signalled)
    study = '[study]\ncollection = "layout:xla:random"\nmodel = "layout_linear"\nfolds = 2\n'
    penalty = '["layout_linear.penalty"]\nchoices = [1.0, 2.0]\n'
    (tmp_path / "space.toml").write_text(study + penalty)
    words = ["tune", "--data", tiny_tree, "--recipe", "smoke", "--trials", 2]
    words += ["--set", "layout.models=[layout_linear]", "--out", tmp_path / "out"]
    words += ["--space", tmp_path / "space.toml"]
    told = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    said = stderr_of(*words, expect=128 + number)
    assert said[-1].startswith(f"error: {told}") and "failed" not in "".join(said)
    monkeypatch.undo()
    call(*words)
    trials = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert [trial["state"] for trial in trials] == ["complete"] * 2


@pytest.mark.parametrize("can_note", [True, False])
def test_a_baseline_that_a_full_disk_stops_is_tried_again_where_it_was(
    can_note: bool, tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> float:
        if not can_note:
            backend = optuna.storages.journal.JournalFileBackend
            monkeypatch.setattr(backend, "append_logs", full)
        raise OSError(errno.ENOSPC, "No space left")

    for _ in range(4 if can_note else 1):
        monkeypatch.setattr("pipeline.tuning.objective.ranking_score", full)
        with pytest.raises(OSError, match="No space left"):
            search(tiny_tree, tmp_path, trials=2)
        monkeypatch.undo()
    result = search(tiny_tree, tmp_path, trials=2)
    assert [(t.number, t.state) for t in result.trials] == [(0, "complete"), (1, "complete")]
    assert result.baseline_value == result.trials[0].value is not None
    assert {path.name for path in (tmp_path / "out" / "trials").iterdir()} == {"0", "1"}
    assert optuna.logging.get_verbosity() == optuna.logging.INFO


def test_time_that_is_up_begins_no_trial_and_one_that_it_cuts_short_does_not_count(
    tiny_tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def out_of_time(*args: object, **options: object) -> float:
        raise OutOfTime("out of time")

    with time_limit(0), pytest.raises(PipelineError, match="no trial has ended yet"):
        search(tiny_tree, tmp_path, trials=1)
    assert len(search(tiny_tree, tmp_path, trials=1).trials) == 1
    caplog.set_level("INFO")
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.tuning.objective.ranking_score", out_of_time)
        cut = search(tiny_tree, tmp_path, trials=2)
    assert [t.state for t in cut.trials] == ["complete", "waiting"]
    assert "1 of 2 trials have ended; the same command resumes" in caplog.messages
    assert not is_done(tmp_path / "out")
    renamed = small_recipe(name="renamed")
    result = search(tiny_tree, tmp_path, trials=2, recipe=renamed)
    assert [(t.number, t.state) for t in result.trials] == [(0, "complete"), (1, "complete")]
    assert outcome(result) == outcome(search(tiny_tree, tmp_path / "undisturbed", trials=2))
    assert is_done(tmp_path / "out")


def test_no_success_at_all_is_an_error_that_names_the_reason(
    tiny_tree: Path, tmp_path: Path
) -> None:
    recipe = small_recipe(**{LEARNING_RATE: 1e30})
    with pytest.raises(PipelineError, match=r"none of 2 trials succeeded; .* loss .* is not"):
        search(tiny_tree, tmp_path, trials=2, space=DIVERGES, recipe=recipe)
    assert not (tmp_path / "out" / "best.toml").exists()


def test_another_study_is_refused_in_the_same_folder_and_in_the_same_storage(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    wider = small_recipe(**{"cross_config_sage.layout_width": 2})
    with pytest.raises(UsageError, match=r"recipe\.cross_config_sage\.layout_width = 4, now 2"):
        search(tiny_tree, tmp_path, trials=1, recipe=wider)
    shared, key = tmp_path / "journal.log", "cross_config_sage.configs_per_step"
    for name, table, now in (
        ("fewer", {k: p for k, p in PARAMETERS.items() if k != key}, r" = {.*}, now unset"),
        ("other", PARAMETERS | {key: {"low": 8, "high": 16}}, r"\.choices = \[8, 16\], now unset"),
    ):
        said = rf"with space\.{key}{now}; choose"
        for folder, option in ((tmp_path, "--out"), (tmp_path / name, "--storage")):
            with pytest.raises(UsageError, match=f"{said} another {option}"):
                search(tiny_tree, folder, trials=1, space=space_over(table), storage=shared)
    with pytest.raises(UsageError, match=r"layout_width = 4, now 2; choose another --storage"):
        search(tiny_tree, tmp_path / "wider", trials=1, recipe=wider, storage=shared)
    assert not (tmp_path / "wider" / "out").exists(), "the folder stays free"
    (tmp_path / "run/out").mkdir(parents=True)
    (tmp_path / "run/out/config.toml").write_text('[recipe]\nname = "cpu"\n')
    with pytest.raises(UsageError, match=r"run/out: has a run, not a search"):
        search(tiny_tree, tmp_path / "run", trials=1)


def test_a_refused_storage_leaves_a_search_that_has_ended(
    searched: tuple[Path, TuneResult], tiny_tree: Path, tmp_path: Path
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    other = tmp_path / "notes.txt"
    other.write_text("no journal")
    with pytest.raises(PipelineError, match="not a tuning journal"):
        search(tiny_tree, tmp_path, trials=3, storage=other)
    assert is_done(tmp_path / "out")
