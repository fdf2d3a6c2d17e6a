"""Write the score files of a run, and resume without scoring a graph twice.

Until all graphs are scored, the scores are in a second file next to the final one.
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

# A killed run loses at most the scores of this time, and those of one graph.
KEEP_EVERY_S = 60.0

# Scores by graph.
Tables = dict[str, pl.DataFrame]


def scores_path(out: Path, collection: Collection, member: str, split: str) -> Path:
    """Return the score file of a member, or of "blend", for the split "valid" or "test"."""
    return out / "scores" / collection.slug / member / f"{split}.parquet"


def begun_path(path: Path) -> Path:
    """Return the file with the scores so far, next to a score file of which graphs are missing."""
    return path.with_name(f"{path.stem}.begun.parquet")


def scores_by_graph(
    members: Mapping[Path, Callable[[], Ranker]],
    files: Sequence[GraphFile],
    *,
    what: str,
    subsets: Mapping[str, Rows] = ALL_CONFIGS,
) -> None:
    """Write or complete the score file of each member. Each graph is read once for all members.

    Columns are those of models.predict.SCORE_SCHEMA, and graphs are in the order of `files`. A
    graph that a member does not rank has no rows in the file of this member.

    Args:
        subsets: Rows of a graph to score, by graph. The default is all rows.

    Raises:
        OutOfTime: Graphs are left. The same call resumes after the scored ones.
    """
    tables: dict[Path, Tables] = {path: {} for path in members if not path.exists()}
    for path, by_graph in tables.items():
        if (begun_file := begun_path(path)).exists():
            parts = read_scores(begun_file).partition_by("graph", maintain_order=True)
            by_graph.update({part["graph"][0]: part for part in parts})
    queue = [file for file in files if any(file.name not in table for table in tables.values())]
    total, kept_at = len(files) * len(tables), time.monotonic()
    if tables:
        progress(what, 0, total)
    if queue and out_of_time():
        raise _out_of_time(tables, files)
    rankers = {path: members[path]() for path in tables if queue}
    with closing(read_ahead(queue, subsets)) as graphs:
        for graph, path in ((graph, path) for graph in graphs for path in rankers):
            name = graph.file.name
            if name in tables[path]:
                continue
            if out_of_time() or time.monotonic() - kept_at >= KEEP_EVERY_S:
                kept_at = time.monotonic()
                for member_path, finished_tables in tables.items():
                    if finished_tables:
                        write_table(begun_path(member_path), pl.concat(finished_tables.values()))
            if out_of_time():
                raise _out_of_time(tables, files)
            scores = rankers[path].score(graph)
            tables[path][name] = scores_table(graph, scores, ranker=path.parent.name)
            progress(what, sum(map(len, tables.values())), total)
    collections = ",".join(dict.fromkeys(file.collection.name for file in files))
    for path, by_graph in tables.items():
        write_scores(path, pl.concat([by_graph[file.name] for file in files]), collections)
    for path in members:
        begun_path(path).unlink(missing_ok=True)


def _out_of_time(tables: Mapping[Path, Tables], files: Sequence[GraphFile]) -> OutOfTime:
    path, by_graph = min(tables.items(), key=lambda entry: len(entry[1]))
    return OutOfTime(f"{path}: out of time with {len(by_graph)} of {len(files)} graphs")
