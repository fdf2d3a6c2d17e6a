"""Submission files: one line per graph, its configs' indices from fastest to slowest.

    ID,TopConfigs
    tile:xla:<kernel>,4;0;2;1;3
    layout:xla:default:<graph>,7;0;3;…

A tile row holds the min(5, c) best indices, a layout row all c of them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.atomic import open_regular, write_text
from common.errors import PipelineError, escaped
from common.metrics import TILE_PICKS, ranking_from_scores
from data.tree import COLLECTIONS, Collection

HEADER = "ID,TopConfigs"
# The first part that is no index: one that fits int64. A search takes no memory, as a match of the
# whole row would.
NO_INDEX = re.compile(r"(?:^|;)(?!-?[0-9]{1,18}(?:;|$))([^;]*)")
SHOWN_CHARACTERS = 80
ScannedRow = tuple[str, NDArray[np.int64] | None, str]


class SubmissionRow(NamedTuple):
    """One graph's answer: the ID, and (c,) config indices, predicted fastest first.

    Of a tile kernel only the first five are written, and fewer than c may be given. Where some
    configs alone are ranked, the indices are places in `configs` (c,) int64.
    """

    id: str
    ranking: NDArray[np.int64]
    configs: NDArray[np.int64] | None = None


def submission_rows(
    blended: Sequence[tuple[Collection, pl.DataFrame]],
) -> Iterator[SubmissionRow]:
    """Rank each graph's scored configs; equal scores keep the file's row order."""
    for collection, scores in blended:
        by_graph = scores.sort("graph", "config", maintain_order=True).partition_by(
            "graph", maintain_order=True
        )
        for table in by_graph:
            ranking = ranking_from_scores(table["score"].to_numpy())
            configs = table["config"].to_numpy().astype(np.int64)
            some = configs if configs[-1] >= len(configs) else None
            yield SubmissionRow(f"{collection.name}:{table['graph'][0]}", ranking, some)


def split_id(submission_id: str) -> tuple[Collection, str]:
    """Return the collection and the graph's name.

    Raises:
        ValueError: the ID names no collection; says what was expected.
    """
    for collection in COLLECTIONS:
        name = submission_id.removeprefix(f"{collection.name}:")
        if name and name != submission_id:
            return collection, name
    names = ", ".join(collection.name for collection in COLLECTIONS)
    raise ValueError(f"expected collection:name, the collection one of {names}")


def n_picks(collection: Collection, n_configs: int) -> int:
    """Return how many indices a row holds: all c of a layout graph, min(5, c) of a tile kernel."""
    return n_configs if collection.kind == "layout" else min(TILE_PICKS, n_configs)


def write_submission(path: Path, rows: Iterable[SubmissionRow]) -> None:
    """Write `rows` to `path`, by collection in the sample submission's order, then as given.

    Raises:
        PipelineError: a graph's name cannot stand in a CSV cell, or the file cannot be written.
    """
    lines: dict[str, list[str]] = {collection.name: [] for collection in COLLECTIONS}
    for row in rows:
        if re.search(r'[\s,"]', row.id):
            raise PipelineError(f"{path}: '{row.id}': expected no blanks, commas or quotes")
        collection, _ = split_id(row.id)
        picks = row.ranking[: n_picks(collection, len(row.ranking))]
        indices = picks if row.configs is None else row.configs[picks]
        lines[collection.name].append(f"{row.id},{';'.join(map(str, indices.tolist()))}")
    ordered = [line for of_collection in lines.values() for line in of_collection]
    write_text(path, "\n".join([HEADER, *ordered]) + "\n")


def scan_submission(path: Path) -> Iterator[tuple[int, ScannedRow]]:
    """Yield the lines of a submission file, readable or not, by row, the header being row 1.

    Each as its ID, "" where that names no collection; its ranking (m,) int64, None where the line
    cannot be read; and why not. As in Kaggle's reader, a byte order mark, all line ends, empty
    lines and cells in quotes are accepted.

    Raises:
        PipelineError: the file is missing, empty, no regular one, not UTF-8 text, or has another
            header.
    """
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path}: not UTF-8 text; expected a CSV file") from error
    if not text.strip():
        raise PipelineError(f"{path}: is empty; expected the header {HEADER}")
    header, *lines = text.split("\n")
    if ",".join(map(_unquoted, header.split(","))) != HEADER:
        raise PipelineError(f"{path}: row 1: header is '{shown(header)}'; expected '{HEADER}'")
    for row, line in enumerate(lines, start=2):
        if line.strip():
            yield row, _scanned(line)


def read_submission(path: Path) -> dict[str, NDArray[np.int64]]:
    """Read a submission file: ranking (m,) int64 by ID, in the file's order.

    Whether each ranking fits its graph is for `submissions.check` to say.

    Raises:
        PipelineError: as `scan_submission`; or, with the row's number, an ID that names no
            collection, an ID that comes twice, or indices that are not whole numbers.
    """
    rankings: dict[str, NDArray[np.int64]] = {}
    for row, (submission_id, ranking, fault) in scan_submission(path):
        if ranking is None:
            raise PipelineError(f"{path}: row {row}: {fault}")
        if submission_id in rankings:
            raise PipelineError(
                f"{path}: row {row}: {shown(submission_id)} comes twice; expected one row per graph"
            )
        rankings[submission_id] = ranking
    return rankings


def shown(text: str) -> str:
    """Return `text` short enough, and plain enough, for a one-line message."""
    plain = escaped(text[:SHOWN_CHARACTERS])
    return plain if len(text) <= SHOWN_CHARACTERS else plain[: SHOWN_CHARACTERS - 1] + "…"


def _scanned(line: str) -> ScannedRow:
    name, comma, picks = line.partition(",")
    submission_id, indices = _unquoted(name), _unquoted(picks)
    if not comma:
        return "", None, f"'{shown(line)}' has one column; expected {HEADER}"
    try:
        split_id(submission_id)
    except ValueError as error:
        return "", None, f"ID '{shown(submission_id)}': {error}"
    bad = NO_INDEX.search(indices)
    if bad:
        fault = f"'{shown(bad[1])}' is no config index; expected 4;0;2 or the like"
        return submission_id, None, f"{shown(submission_id)}: {fault}"
    return submission_id, np.fromstring(indices, np.int64, sep=";"), ""


def _unquoted(cell: str) -> str:
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell
