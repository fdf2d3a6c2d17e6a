"""The whole recipe: audit, train, predict, blend, submission, report, for every collection found.

Each stage writes whole files into the run's folder and skips what is there already, so a run that
was killed goes on where it stopped and ends as if it had not been.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from data.atomic import TEMPORARY, sweep
from data.audit import AuditRow, audit
from data.errors import PipelineError
from data.fingerprint import fingerprint
from data.packing.open_tree import prepare_tree
from data.tree import (
    COLLECTIONS,
    LAYOUT_COLLECTIONS,
    SPLITS,
    Collection,
    GraphFile,
    find_graphs,
    missing_parts,
)
from ensembles.costs import Costs, read_costs, write_costs
from ensembles.members import members_of
from ensembles.predict_stage import predict_and_blend
from ensembles.ranking import submission_rows
from ensembles.report import build_report, write_report
from ensembles.revisions import note_revision, revision
from ensembles.sources import Source, choose_source
from ensembles.trained_models import take_models
from models.jobs import Progress, TrainJob
from models.recipe import Recipe
from models.run_folder import CONFIG, alone_in, begin, mark_done
from models.shared_training import SHARED_FOLDER, shared_model
from models.train import check_device, train_model
from models.train_set import Unusable, split_usable
from submissions.check import check_submission
from submissions.write import write_submission

SUBMISSION = {"test": "submission.csv", "valid": "submission-valid.csv"}


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


@dataclass
class RunState:
    """What the stages of one run share."""

    recipe: Recipe
    out: Path
    files: list[GraphFile]
    progress: Progress | None
    deadline: float | None = None
    splits: tuple[str, ...] = SPLITS
    usable: dict[str, list[GraphFile]] = field(default_factory=dict)
    unusable: list[Unusable] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)

    def of(self, collection: Collection, split: str) -> list[GraphFile]:
        """Return a collection's files of one split."""
        return [f for f in self.files if f.collection == collection and f.split == split]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage, and keep what it took."""
        with self.costs.stage(name):
            yield
        write_costs(self.out, self.costs)

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Tell the progress that something without steps is done meanwhile."""
        if self.progress:
            self.progress(what, 0, 1)
        yield
        if self.progress:
            self.progress(what, 1, 1)


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
    files = find_graphs(data_dir, splits=splits)
    checking = Costs()
    with checking.stage("prepare and audit"):
        rows = _audit(files, data_dir, store, progress, say)
    bad = [row for row in rows if row.error]
    if bad and not skip_bad:
        raise PipelineError(_name_bad(bad))
    good = [row.file for row in rows if not row.error]
    sources = [file for file, row in zip(files, rows, strict=True) if not row.error]
    if not good:
        raise PipelineError(f"{data_dir}: no good file is left; see `audit`")
    for row in bad:
        say(f"left out: {row.error}")
    config = {"data": fingerprint(sources), "recipe": recipe.model_dump(mode="json")}
    begin(out, config, resume=resume)
    with alone_in(out):
        _go_on(out, say)
        costs = read_costs(out)
        costs.add(checking)
        state = RunState(recipe, out, good, progress, deadline, splits, costs=costs)
        if models is None:
            _choose_sources(state, say)
            _train(state)
        else:
            _take_models(state, models)
        return _rank_and_report(state, data_dir, rows, say)


def _go_on(out: Path, say: Callable[[str], None]) -> None:
    """Remove what a killed call left half-written, and tell a change of the code."""
    sweep(out / "scores", f"**/{TEMPORARY}")
    sweep(out / "models", f"*/{TEMPORARY}")
    now = revision()
    earlier = [name for name in note_revision(out, now) if name != now]
    if earlier:
        say(f"{out}: begun under revision {earlier[0]}, goes on under {now}; what is done is kept")


def _audit(
    files: Sequence[GraphFile],
    data_dir: Path,
    store: Path | None,
    progress: Progress | None,
    say: Callable[[str], None],
) -> list[AuditRow]:
    """Pack and check every file; what is damaged in the store alone is packed anew, once."""
    prepared = prepare_tree(files, data_dir, store=store, progress=progress)
    rows = audit(files, prepared=prepared, progress=progress)
    spoilt = [
        entry.stored.path
        for entry, row in zip(prepared, rows, strict=True)
        if row.error and entry.stored and str(entry.stored.path) in row.error
    ]
    if not spoilt:
        return rows
    for path in spoilt:
        say(f"{path}: damaged in the store; packed anew")
        path.unlink(missing_ok=True)
    prepared = prepare_tree(files, data_dir, store=store, progress=progress)
    return audit(files, prepared=prepared, progress=progress)


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
    report |= state.costs.rounded()
    with state.told("write the report"):
        page = write_report(state.out, report)
    mark_done(state.out, [state.out / CONFIG])
    return RunResult(submissions["test"], report, page)


def _name_bad(bad: Sequence[AuditRow]) -> str:
    more = f" (and {len(bad) - 1} more bad files; `audit` lists them)" if len(bad) > 1 else ""
    return f"{bad[0].error}{more}; mend or remove, or pass --skip-bad"


def _choose_sources(state: RunState, say: Callable[[str], None]) -> None:
    """Find out which collections can be learned from, and who ranks those that cannot."""
    for collection in COLLECTIONS:
        train = state.of(collection, "train")
        usable, unusable = split_usable(train)
        state.unusable += unusable
        if usable:
            state.usable[collection.name] = usable
        else:
            listed = "; ".join(f"{graph.file.name}: {graph.reason}" for graph in unusable[:3])
            state.reasons[collection.name] = (
                f"no train graph to learn from ({listed})" if unusable else "no train split"
            )
    for collection in COLLECTIONS:
        if not any(state.of(collection, split) for split in SUBMISSION):
            continue
        source = choose_source(collection, state.usable, state.reasons)
        state.sources[collection.name] = source
        if source.reason:
            taken = source.collection.name if source.collection else "a heuristic"
            say(f"{collection.name}: {source.reason}; ranked by {taken}")


def _take_models(state: RunState, models: Path) -> None:
    """Let every collection be ranked by its own models, trained elsewhere."""
    present = {file.collection for file in state.files}
    named = [collection for collection in COLLECTIONS if collection in present]
    take_models(models, state.recipe, named, state.out)
    state.sources |= {collection.name: Source(collection) for collection in named}


def _train(state: RunState) -> None:
    layout = [file for c in LAYOUT_COLLECTIONS for file in state.usable.get(c.name, [])]
    shared_folder = state.out / "models" / SHARED_FOLDER
    needed = {s.collection.name: s.collection for s in state.sources.values() if s.collection}
    for collection in needed.values():
        for member in members_of(state.recipe, collection, state.out):
            job = TrainJob(
                model=member.model,
                recipe=state.recipe,
                files=state.usable[collection.name],
                seed=member.seed,
                run_dir=member.folder,
                progress=state.progress,
                deadline=state.deadline,
                shared=shared_model(state.recipe, member.model, member.seed, layout, shared_folder),
            )
            with state.stage(f"train {collection.name} {member.name}"):
                train_model(job, collection, resume=True)


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
