"""The whole recipe: audit, train, predict, blend, submission, report, for every collection.

Each stage writes whole files into the run's folder and skips the files that are there. So a killed
run resumes where it stopped, and ends with the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from common.errors import PipelineError, UsageError
from common.files import TEMPORARY, alone_in, check_writable, sweep
from common.jobs.workers import INLINE, Workers
from common.progress import in_one_step, log
from common.settings import default_store_dir
from data.audit import AuditRow, audit, leaks
from data.graph_store.prepare import prepare
from data.graph_store.stored_graph import fingerprint_of, source_digests
from data.manifest import read_manifest
from data.tree import (
    COLLECTIONS,
    SPLITS,
    Collection,
    GraphFile,
    find_graphs,
    missing_parts,
    name_faults,
    stray_folders,
)
from ensembles.blend import apply_blend, run_blend
from ensembles.choice import choose_in_run, choosing_together
from ensembles.ensemble import Source, unranked
from ensembles.scores import scores_path
from ensembles.trained_models import models_to_take, take_models
from models.config.recipe import Recipe
from models.predict import read_scores, write_scores
from models.run_folder import (
    CONFIG,
    REPORT,
    begin,
    check_free,
    is_done,
    mark_done,
    with_original_name,
)
from models.train import check_packages, sources_of
from models.training.device import log_device
from pipeline.run.jobs import check_left_out, check_starts, n_steps
from pipeline.run.report import build_report, write_report
from pipeline.run.state import SUBMISSION, RunState
from pipeline.run.trackers import logged_to
from submissions.check import check_submission, submission_rows, write_submission
from submissions.run_report import RunReport, read_report


@dataclass(frozen=True)
class Inputs:
    """The graphs that a run reads."""

    data_dir: Path
    collections: Sequence[Collection] = COLLECTIONS
    store: Path | None = None
    skip_bad: bool = False

    def find(self, splits: Sequence[str]) -> list[GraphFile]:
        """Return the files of some splits."""
        files = find_graphs(self.data_dir, collections=self.collections, splits=splits)
        faults = name_faults(files)
        if faults and not self.skip_bad:
            raise PipelineError(f"{faults[0][1]}, or pass --skip-bad")
        return files

    def missing(self, files: Sequence[GraphFile], splits: Sequence[str]) -> list[str]:
        """Return each "collection/split" without a graph."""
        places = tuple(f"{collection.name}/" for collection in self.collections)
        return [part for part in missing_parts(files, splits=splits) if part.startswith(places)]


def run(
    inputs: Inputs,
    out: Path,
    recipe: Recipe,
    *,
    resume: bool,
    models: Path | None = None,
    workers: Workers = INLINE,
    trackers: Sequence[str] = (),
) -> RunReport:
    """Run a recipe and return its report, which does not depend on the workers.

    Args:
        models: Folder with run folders of trained models, at any depth. They are copied into the
            run, nothing is trained, and the train split is not read. None trains.
    """
    workers.check()
    check_packages()
    splits = SPLITS if models is None else tuple(SUBMISSION)
    files = inputs.find(splits)
    recipe, collections = with_original_name(recipe, out), _present(files)
    config: dict[str, Any] = {
        "collections": [collection.name for collection in collections],
        **sources_of(recipe, recipe.all_models),
        "recipe": recipe.model_dump(mode="json"),
    }
    check_free(out, config, resume=resume)
    copies = {} if models is None else models_to_take(models, recipe, collections, out)
    if models is None:
        _check_trainings(recipe, files, inputs.collections)
    if inputs.store and inputs.store.resolve().is_relative_to(out.resolve()):
        raise UsageError(f"--store {inputs.store}: is in --out {out}; expected another folder")
    check_writable(out / CONFIG)
    if models is None:
        workers.prepare(_total_steps(recipe, collections), recipe.n_threads)
    state = RunState(recipe, out, files, config, inputs.missing(files, splits))
    _prepare(state, inputs, workers)
    state.check_graphs()
    begin(out, state.config, resume=resume)
    with alone_in(out), logged_to(trackers, out, state.config["recipe"]):
        state.write_graphs()
        _sweep(out)
        if models is None:
            state.choose_sources()
        else:
            state.sources = {place.name: Source(place) for place in _present(state.files)}
        take_models(copies)
        for event in workers.do(state.jobs(trains=models is None), out).values():
            state.costs.add(event.job.stage, event.cost)
        # Workers that were killed leave temporary files.
        _sweep(out)
        report = _results(state, inputs.data_dir)
        mark_done(out, [out / CONFIG])
    return report


def _check_trainings(
    recipe: Recipe, files: Sequence[GraphFile], collections: Sequence[Collection]
) -> None:
    check_left_out(recipe, files, collections)
    places_of_train = _present([file for file in files if file.split == "train"])
    places = [recipe.learned_as(collection) for collection in places_of_train]
    check_starts(recipe, places, places)


def _total_steps(recipe: Recipe, collections: Sequence[Collection]) -> float:
    return sum(
        n_steps(settings, model) * len(settings.seeds_of(model)) * len(settings.fits(model))
        for collection in collections
        for settings in [recipe.of(collection)]
        for model in settings.models_of(collection.kind)
    )


def _sweep(out: Path) -> None:
    sweep(out / "scores", f"**/{TEMPORARY}")
    sweep(out / "models", f"*/{TEMPORARY}")


def _results(state: RunState, data_dir: Path) -> RunReport:
    """Write the blended scores, the submissions and the report."""
    tables = _blend_all(state)
    with in_one_step("write and check submissions"):
        for split, parts in tables.items():
            if parts:
                _submit(state, parts, split)
    if is_done(state.out) and (state.out / REPORT).exists():
        # This report has the costs of the first call.
        report = read_report(state.out)
    else:
        with state.costs.stage("score"), in_one_step("score the valid split"):
            report = build_report(state, data_dir)
        report = report.changed(**asdict(state.costs))
    with in_one_step("write the report"):
        write_report(state.out, report)
    return report


def _prepare(state: RunState, inputs: Inputs, workers: Workers) -> None:
    """Pack and audit all files, and leave the bad ones out of the state."""
    state.device = log_device(state.recipe)
    for stray in stray_folders(inputs.data_dir):
        log.info(stray)
    if state.missing:
        log.info(f"missing in {inputs.data_dir}, skipped: {', '.join(state.missing)}")
    files = state.files
    with state.costs.stage("prepare and audit"):
        store = inputs.store or default_store_dir(inputs.data_dir)
        entries = prepare(files, store, workers=workers)
        measurements = read_manifest(inputs.data_dir)["graphs"]
        rows = audit(files, prepared=entries, store=store, workers=workers, measured=measurements)
    _check_bad_files([row for row in rows if row.error], inputs)
    for leak in leaks(rows):
        log.info(leak)
    state.rows, state.files = rows, [row.file for row in rows if not row.error]
    if not state.files:
        raise PipelineError(f"{inputs.data_dir}: no good file is left; see `audit`")
    good = [file for file, row in zip(files, rows, strict=True) if not row.error]
    state.digests = source_digests(good)
    state.config = {"data": _fingerprints(state.digests), **state.config}


def _fingerprints(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprint of each split: `run --models` reads no train split."""
    parts = dict[str, dict[str, str]]()
    for place, digest in digests.items():
        parts.setdefault(place.split("/")[1], {})[place] = digest
    return {split: fingerprint_of(part) for split, part in sorted(parts.items())}


def _present(files: Sequence[GraphFile]) -> list[Collection]:
    present = {file.collection for file in files}
    return [collection for collection in COLLECTIONS if collection in present]


def _check_bad_files(bad: Sequence[AuditRow], inputs: Inputs) -> None:
    if bad and not inputs.skip_bad:
        ending = f" (and {len(bad) - 1} more bad files; `audit` lists them)" if len(bad) > 1 else ""
        raise PipelineError(f"{bad[0].error}{ending}; mend or remove, or pass --skip-bad")
    for row in bad:
        log.info(f"left out: {row.error}")
        if row.file.split == "test":
            name = row.file.submission_id
            log.info(f"{SUBMISSION['test']} has no row for {name}: its file is damaged")


def _blend_all(state: RunState) -> dict[str, list[tuple[Collection, pl.DataFrame]]]:
    """Return the blended scores of each collection, by split."""
    results: dict[str, list[tuple[Collection, pl.DataFrame]]] = {split: [] for split in SUBMISSION}
    if state.recipe.blend.choose:
        _choose_all(state, [c for c in state.ranked if state.of(c, "valid")])
    for collection in state.ranked:
        for split, tables in results.items():
            if state.of(collection, split):
                with state.costs.stage(f"predict {collection.name}"):
                    tables.append((collection, _blended_scores(state, collection, split)))
    return results


def _choose_all(state: RunState, collections: Sequence[Collection]) -> None:
    members = {c: [member.name for member in state.members(c)] for c in collections}
    n_graphs = {c: len(state.of(c, "valid")) for c in collections}
    for group in choosing_together(members, n_graphs):
        files = {collection: state.of(collection, "valid") for collection in group}
        tables = {collection: state.scores(collection, "valid") for collection in group}
        with state.costs.stage(f"choose the blend of {' and '.join(c.name for c in group)}"):
            choose_in_run(state.out, state.recipe.blend, files, tables, seed=state.recipe.seeds[0])


def _blended_scores(state: RunState, collection: Collection, split: str) -> pl.DataFrame:
    tables = state.scores(collection, split)
    spec = run_blend(state.out, state.recipe.blend, collection, list(tables))
    path = scores_path(state.out, collection, "blend", split)
    if not path.exists():
        with in_one_step(f"blend {collection.name}/{split}"):
            scores = apply_blend(tables, spec)
            names = set(scores["graph"])
            for file in state.of(collection, split):
                if file.name not in names:
                    raise unranked(file, list(tables))
            write_scores(path, scores, collection.name)
    return read_scores(path)


def _submit(state: RunState, scores: Sequence[tuple[Collection, pl.DataFrame]], split: str) -> None:
    path = state.out / SUBMISSION[split]
    errors = [
        run_blend(state.out, state.recipe.blend, collection, names).tile_error
        for collection, _ in scores
        for names in [[member.name for member in state.members(collection)]]
        if collection.kind == "tile"
    ]
    write_submission(path, submission_rows(scores, state.files, *errors))
    rows = [row for row in state.rows if row.file.split == split and not row.error]
    layouts = [row for row in rows if row.file.collection.kind == "layout"]
    if split == "valid" and any(0 < state.recipe.valid_configs < row.n_configs for row in layouts):
        # Not all configs are ranked, so the file is no complete submission.
        return
    problems = check_submission(path, {row.file.submission_id: row.n_configs for row in rows})
    if problems:
        raise PipelineError(problems[0])
