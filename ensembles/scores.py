"""Score files of a run: where they lie, and how they are made so that no graph is scored twice.

Until all graphs are scored, those that are lie in a file beside the one that will hold all.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import polars as pl

from common.errors import OutOfTime
from common.files import write_table
from common.progress import out_of_time, progress
from data.tree import Collection, GraphFile
from models.predict import ALL_CONFIGS, Rows, read_ahead, read_scores, scores_table, write_scores
from models.registry import Ranker

KEEP_EVERY_S = 60.0  # what a kill costs at most, besides the graph it hits

Tables = dict[str, pl.DataFrame]  # by graph


def scores_path(out: Path, collection: Collection, member: str, split: str) -> Path:
    """Return where a run keeps the scores of one member, or of "blend", for a split."""
    return out / "scores" / collection.slug / member / f"{split}.parquet"


def begun_path(path: Path) -> Path:
    """Return where the scores lie that `path` will hold, as long as graphs are missing."""
    return path.with_name(f"{path.stem}.begun.parquet")


def scores_by_graph(
    members: Mapping[Path, Callable[[], Ranker]],
    files: Sequence[GraphFile],
    *,
    what: str,
    subsets: Mapping[str, Rows] = ALL_CONFIGS,
) -> None:
    """Make the score file of each member, or the rest of it; each graph is read once for all.

    Columns are as in models.predict.SCORE_SCHEMA, graphs in the order of `files`.

    Args:
        members: what loads a member, by its score file.
        subsets: as `read_ahead` takes them.

    Raises:
        OutOfTime: graphs are left; the same call goes on after those that are scored.
        PipelineError: a damaged file, or scores that are not finite.
    """
    tables: dict[Path, Tables] = {path: {} for path in members if not path.exists()}
    for path, own in tables.items():
        if (begun := begun_path(path)).exists():
            parts = read_scores(begun).partition_by("graph", maintain_order=True)
            own.update({part["graph"][0]: part for part in parts})
    left = [file for file in files if any(file.name not in own for own in tables.values())]
    total, kept_at = len(files) * len(tables), time.monotonic()
    if tables:
        progress(what, 0, total)  # says what begins
    if left and out_of_time():
        raise _stopped(tables, files)
    rankers = {path: members[path]() for path in tables if left}
    with closing(read_ahead(left, subsets)) as graphs:
        for graph, path in ((graph, path) for graph in graphs for path in rankers):
            name = graph.file.name
            if name in tables[path]:
                continue
            if out_of_time() or time.monotonic() - kept_at >= KEEP_EVERY_S:
                kept_at = time.monotonic()
                for other, scored in tables.items():
                    if scored:
                        write_table(begun_path(other), pl.concat(scored.values()))
            if out_of_time():
                raise _stopped(tables, files)
            scores = rankers[path].score(graph)
            tables[path][name] = scores_table(graph, scores, ranker=path.parent.name)
            progress(what, sum(map(len, tables.values())), total)
    told = ",".join(dict.fromkeys(file.collection.name for file in files))
    for path, own in tables.items():
        write_scores(path, pl.concat([own[file.name] for file in files]), told)
    for path in members:
        begun_path(path).unlink(missing_ok=True)


def _stopped(tables: Mapping[Path, Tables], files: Sequence[GraphFile]) -> OutOfTime:
    path, own = min(tables.items(), key=lambda entry: len(entry[1]))
    return OutOfTime(f"{path}: out of time with {len(own)} of {len(files)} graphs")
