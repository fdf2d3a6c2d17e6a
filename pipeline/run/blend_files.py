"""Blend score files: by a method, or by the best blend that labelled graphs show (`best`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from common.errors import PipelineError, UsageError
from data.tree import Collection, GraphFile, collection_named, find_graphs
from ensembles.choice.from_scores import choose_and_blend, labelled, mixing_of
from ensembles.choice.record import Row, choice_rows, record_of
from models.predict import write_scores
from models.training.jobs import Progress
from pipeline.run.stages import TILE, blend_files, given_scores, spread_over
from submissions.write import submission_rows, write_submission

BEST = "best"
JUDGED_SPLIT = "valid"


@dataclass(frozen=True)
class Blended:
    """What blending files says.

    Attributes:
        record: as JSON: where the scores are, and for `best` the choice.
        rows: for `best` what was chosen among, as a table.
    """

    record: dict[str, Any]
    rows: list[Row]


def blend_by(
    method: str,
    runs: Sequence[Path],
    out: Path,
    *,
    labels: Path | None,
    collection: str | None,
    split: str,
    submission: Path | None,
    tiles: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Blended:
    """Blend score files of one collection.

    Args:
        method: one of ensembles.blend.METHODS, each member weighing the same, or BEST.
        runs: run folders, or score files. For BEST the scores of a folder's valid split decide and
            those of `split` are blended; of files, the labelled graphs they hold decide.
        labels: for BEST, the data folder with the runtimes of valid (or train, for scores out of
            fold).
        collection: of all scores; needed for BEST and for a submission.
        submission: also write the rankings there.
        tiles: spread the picks by the tiles of the kernels in this data folder.

    Raises:
        UsageError: no such method, or options that it needs are missing.
        PipelineError: files that cannot be read, of different data, or too few labelled graphs.
    """
    if len(set(runs)) < len(runs):
        raise UsageError("--runs: the same run is given twice; expected each once")
    if tiles is not None and collection != TILE.name:
        raise UsageError(f"--spread-tiles: pass --collection {TILE.name}; layouts are not picked")
    if method != BEST:
        if labels is not None:
            raise UsageError(f"--labels: --method {method} reads none; expected --method {BEST}")
        blend_files(
            runs,
            out,
            split=split,
            method=method,
            submission=submission,
            collection=collection,
            tiles=tiles,
        )
        return Blended({"method": method, "scores": str(out)}, [])
    if labels is None or collection is None:
        raise UsageError("--method best: pass --labels DIR and --collection; it judges by runtimes")
    if len(runs) < 2:
        raise UsageError("--method best: expected at least two runs, each once")
    named = collection_named(collection)
    members = _scores(runs, JUDGED_SPLIT)
    by = labelled(named, _labelled_files(labels, named, members))
    missing = by.too_few()
    if missing:
        raise PipelineError(f"{labels}: {named.name}: the scores hold {missing}")
    targets = members if split == JUDGED_SPLIT else _scores(runs, split)
    choice, mixed = choose_and_blend(by, members, targets, seed=seed)
    mixed = spread_over(mixed, tiles)
    write_scores(out, mixed)
    if submission:
        write_submission(submission, submission_rows([(named, mixed)]))
    record = record_of(choice, mixing_of(choice))
    return Blended({**record, "scores": str(out)}, choice_rows(choice))


def _scores(runs: Sequence[Path], split: str) -> dict[str, pl.DataFrame]:
    return {str(run): given_scores(run, split) for run in runs}


def _labelled_files(
    labels: Path, collection: Collection, members: dict[str, pl.DataFrame]
) -> list[GraphFile]:
    """Return the files of scored graphs; of one name in two splits the valid one."""
    files = find_graphs(labels, collections=(collection,), splits=("train", JUDGED_SPLIT))
    scored = {name for table in members.values() for name in table["graph"].unique()}
    by_name = {file.name: file for file in files if file.name in scored}
    return list(by_name.values())
