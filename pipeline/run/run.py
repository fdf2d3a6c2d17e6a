"""The whole recipe: audit, train, predict, blend, submission, report, for every collection found.

Each stage writes whole files into the run's folder and skips what is there already, so a run that
was killed goes on where it stopped and ends as if it had not been.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from common.atomic import TEMPORARY, sweep
from common.errors import PipelineError
from common.git import revision
from common.locks import alone_in
from data.audit.rows import AuditRow
from data.tree import COLLECTIONS, SPLITS, Collection, missing_parts
from ensembles.sources import Source
from ensembles.trained_models import take_models
from models.config.recipe import Recipe
from models.run_folder import CONFIG, begin, mark_done
from models.train import check_device
from models.training.jobs import Progress
from pipeline.run.costs import read_costs
from pipeline.run.data import check_data
from pipeline.run.predict import predict_and_blend
from pipeline.run.report import build_report, write_report
from pipeline.run.revisions import note_revision
from pipeline.run.shards import Shard, dealt, shard_costs, working_as
from pipeline.run.state import SUBMISSION, RunState
from pipeline.run.training import choose_sources, train, trainings_of
from submissions.check import check_submission
from submissions.write import submission_rows, write_submission


@dataclass(frozen=True)
class RunResult:
    """What a run leaves.

    Attributes:
        submission: the test split's file; None if the data has no test split.
        report: report.json's content.
        report_page: the HTML page.
    """

    submission: Path | None
    report: dict[str, Any]
    report_page: Path


def run(
    data_dir: Path,
    out: Path,
    recipe: Recipe,
    *,
    resume: bool,
    skip_bad: bool = False,
    store: Path | None = None,
    models: Path | None = None,
    deadline: float | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> RunResult:
    """Run a recipe on all that `data_dir` holds.

    Args:
        data_dir: the folder that holds npz/.
        out: the run's folder.
        recipe: what to do.
        resume: go on with a folder that was begun with the same recipe and data.
        store: where packed graphs are kept; None for the default place.
        models: holds run folders of trained models, at any depth: they are copied into the run,
            nothing is trained, and the train split is not read. None = train.
        deadline: of time.monotonic(), when training and predicting stop; None = never.
        skip_bad: leave damaged files out, named in the report, instead of stopping.
        progress: told how far a stage is.
        say: told, in words, what was left out and which fallbacks were taken.

    Raises:
        UsageError: `out` holds another run, or there is no GPU as the recipe asks for.
        PipelineError: damaged files, no usable data, a full disk, or `models` lacks one of the
            recipe's.
        OutOfTime: the deadline is over; resumed, it goes on where it stopped.
    """
    for model in (*recipe.layout.models, *recipe.tile.models):
        check_device(recipe, model)
    splits = SPLITS if models is None else tuple(SUBMISSION)
    checked = check_data(
        data_dir, recipe, splits, store=store, skip_bad=skip_bad, progress=progress, say=say
    )
    begin(out, checked.config, resume=resume)
    with alone_in(out):
        _go_on(out, say)
        costs = read_costs(out)
        costs.add(checked.costs)
        state = RunState(recipe, out, checked.files, progress, deadline, splits, costs=costs)
        if models is None:
            choose_sources(state, say)
            train(state, trainings_of(state))
        else:
            _take_models(state, models, say)
        return _rank_and_report(state, data_dir, checked.rows, say)


def run_shard(
    data_dir: Path,
    out: Path,
    recipe: Recipe,
    shard: Shard,
    *,
    skip_bad: bool = False,
    store: Path | None = None,
    deadline: float | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Train a shard of a recipe's models, and go on with it where it was stopped.

    Other shards may work in the same `out` at once. When all have ended, `run` with `resume` finds
    everything trained, and does the rest.

    Args:
        shard: which of the trainings, see pipeline.run.shards.
        data_dir, out, recipe, skip_bad, store, deadline, progress, say: as of `run`.

    Returns:
        The trained models' folders.

    Raises:
        UsageError, PipelineError, OutOfTime: as `run`; or a whole run, or the very same shard, is
            at work in `out`.
    """
    for model in (*recipe.layout.models, *recipe.tile.models):
        check_device(recipe, model)
    checked = check_data(
        data_dir, recipe, SPLITS, store=store, skip_bad=skip_bad, progress=progress, say=say
    )
    begin(out, checked.config, resume=True)
    with working_as(shard, out):
        name = shard.costs_name
        costs = read_costs(out, name=name)
        costs.add(checked.costs)
        state = RunState(
            recipe, out, checked.files, progress, deadline, costs=costs, costs_name=name
        )
        choose_sources(state, say)
        mine = dealt(trainings_of(state), shard, recipe=recipe, usable=state.usable)
        train(state, mine)
    return [member.folder for _, member in mine]


def _go_on(out: Path, say: Callable[[str], None]) -> None:
    """Remove what a killed call left half-written, and tell a change of the code."""
    sweep(out / "scores", f"**/{TEMPORARY}")
    sweep(out / "models", f"*/{TEMPORARY}")
    now = revision()
    earlier = [name for name in note_revision(out, now) if name != now]
    if earlier:
        say(f"{out}: begun under revision {earlier[0]}, goes on under {now}; what is done is kept")


def _rank_and_report(
    state: RunState, data_dir: Path, rows: Sequence[AuditRow], say: Callable[[str], None]
) -> RunResult:
    """Do all that comes after the training."""
    bad = [row for row in rows if row.error]
    missing = missing_parts([row.file for row in rows], splits=state.splits)
    if missing:
        say(f"missing in {data_dir}, skipped: {', '.join(missing)}")
    blended = predict_and_blend(state, SUBMISSION, say)
    with state.told("write and check submissions"):
        submissions = {split: _submit(state, blended[split], split, rows) for split in SUBMISSION}
    for row in bad:
        if row.file.split == "test":
            say(
                f"{SUBMISSION['test']} has no row for {row.file.submission_id}: its file is damaged"
            )
    with state.stage("score"), state.told("score the valid split"):
        report = build_report(state, data_dir, rows)
    report |= shard_costs(state.out, state.costs).rounded()
    with state.told("write the report"):
        page = write_report(state.out, report)
    mark_done(state.out, [state.out / CONFIG])
    return RunResult(submissions["test"], report, page)


def _take_models(state: RunState, models: Path, say: Callable[[str], None]) -> None:
    """Let every collection be ranked by its own models, trained elsewhere."""
    present = {file.collection for file in state.files}
    named = [collection for collection in COLLECTIONS if collection in present]
    take_models(models, state.recipe, named, state.out, say=say)
    state.sources |= {collection.name: Source(collection) for collection in named}


def _submit(
    state: RunState,
    blended: Sequence[tuple[Collection, pl.DataFrame]],
    split: str,
    rows: Sequence[AuditRow],
) -> Path | None:
    """Write a split's submission and check it against the files it answers."""
    if not blended:
        return None
    path = state.out / SUBMISSION[split]
    write_submission(path, submission_rows(blended))
    expected = {
        row.file.submission_id: row.n_configs
        for row in rows
        if row.file.split == split and not row.error
    }
    problems = check_submission(path, expected)
    if problems:
        raise PipelineError(f"{path}: {problems[0]}")
    return path
