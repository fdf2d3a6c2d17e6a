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

from common.atomic import write_text
from common.errors import PipelineError
from common.metrics import TILE_PICKS, ranking_from_scores
from data.tree import COLLECTIONS, Collection

HEADER = "ID,TopConfigs"
# The first part that is no index: one that fits int64. A search takes no memory, as a match of the
# whole row would.
NO_INDEX = re.compile(r"(?:^|;)(?!-?[0-9]{1,18}(?:;|$))([^;]*)")
SHOWN_CHARACTERS = 80


class SubmissionRow(NamedTuple):
    """One graph's answer: the ID, and (c,) config indices, predicted fastest first.

    Of a tile kernel only the first five are written, and fewer than c may be given. Where some
    configs alone are ranked, the indices are places in `configs` (c,) int64.
    """

    id: str
    ranking: NDArray[np.int64]
    configs: NDArray[np.int64] | None = None


class ScannedRow(NamedTuple):
    """One line of a submission file as it was found, the header being row 1.

    `id` is "" where it names no collection; `ranking` (m,) int64 is None where the line cannot be
    read, and `fault` then says why.
    """

    row: int
    id: str
    ranking: NDArray[np.int64] | None
    fault: str | None


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


def split_id(submission_id: str) -> tuple[Collection, str] | None:
    """Return the collection and the graph's name, or None where the ID names no collection."""
    for collection in COLLECTIONS:
        name = submission_id.removeprefix(f"{collection.name}:")
        if name and name != submission_id:
            return collection, name
    return None


def n_picks(collection: Collection, n_configs: int) -> int:
    """Return how many indices a row holds: all c of a layout graph, min(5, c) of a tile kernel."""
    return n_configs if collection.kind == "layout" else min(TILE_PICKS, n_configs)


def write_submission(path: Path, rows: Iterable[SubmissionRow]) -> None:
    """Write `rows` to `path`, by collection in the sample submission's order, then as given.

    Raises:
        PipelineError: an ID that names no collection, cannot stand in a CSV cell or comes twice;
            a layout ranking that is not a permutation; a tile ranking that is empty or names a
            config twice; or the file cannot be written.
    """
    lines: dict[str, list[str]] = {collection.name: [] for collection in COLLECTIONS}
    seen = set()
    for row in rows:
        collection = _collection_of(row)
        if row.id in seen:
            raise PipelineError(f"{path}: {row.id}: given twice; expected one ranking per graph")
        seen.add(row.id)
        indices = ";".join(map(str, _checked_picks(collection, row)))
        lines[collection.name].append(f"{row.id},{indices}")
    ordered = [line for of_collection in lines.values() for line in of_collection]
    write_text(path, "\n".join([HEADER, *ordered]) + "\n")


def scan_submission(path: Path) -> Iterator[ScannedRow]:
    """Yield the lines of a submission file, readable or not.

    As in Kaggle's reader, a byte order mark, all line ends, empty lines and cells in quotes are
    accepted.

    Raises:
        PipelineError: the file is missing, empty, no regular one, not UTF-8 text, or has another
            header.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise PipelineError(f"{path}: is not a file; expected a submission")
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path}: not UTF-8 text; expected a CSV file") from error
    if not text.strip():
        raise PipelineError(f"{path}: is empty; expected the header {HEADER}")
    header, *lines = text.split("\n")
    if ",".join(map(_unquoted, header.split(","))) != HEADER:
        raise PipelineError(f"{path}: row 1: header is '{shown(header)}'; expected '{HEADER}'")
    for row, line in enumerate(lines, start=2):
        if line.strip():
            yield _scanned(row, line)


def read_submission(path: Path) -> dict[str, NDArray[np.int64]]:
    """Read a submission file: ranking (m,) int64 by ID, in the file's order.

    Whether each ranking fits its graph is for `submissions.check` to say.

    Raises:
        PipelineError: as `scan_submission`; or, with the row's number, an ID that names no
            collection, an ID that comes twice, or indices that are not whole numbers.
    """
    rankings: dict[str, NDArray[np.int64]] = {}
    for row, submission_id, ranking, fault in scan_submission(path):
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
    plain = "".join(character if character.isprintable() else "?" for character in text[:1000])
    return plain if len(text) <= SHOWN_CHARACTERS else plain[: SHOWN_CHARACTERS - 1] + "…"


def _collection_of(row: SubmissionRow) -> Collection:
    found = split_id(row.id)
    if found is None or re.search(r'[\s,"]', row.id):
        raise PipelineError(
            f"submission row '{shown(row.id)}': {_expected_id()} without blanks, commas or quotes"
        )
    return found[0]


def _checked_picks(collection: Collection, row: SubmissionRow) -> list[int]:
    ranking = np.asarray(row.ranking)
    place = f"submission row {row.id}"
    if ranking.ndim != 1 or not len(ranking) or not np.issubdtype(ranking.dtype, np.integer):
        raise PipelineError(
            f"{place}: ranking has shape {ranking.shape} and dtype {ranking.dtype}; expected "
            "config indices (c,)"
        )
    distinct = np.unique(ranking)
    if len(distinct) < len(ranking) or distinct[0] < 0:
        raise PipelineError(f"{place}: expected each config index once, none below 0")
    if collection.kind == "layout" and distinct[-1] != len(ranking) - 1:
        raise PipelineError(f"{place}: expected every config index 0..{len(ranking) - 1}")
    picks = ranking[: n_picks(collection, len(ranking))]
    named: list[int] = (picks if row.configs is None else row.configs[picks]).tolist()
    return named


def _scanned(row: int, line: str) -> ScannedRow:
    name, comma, picks = line.partition(",")
    submission_id, indices = _unquoted(name), _unquoted(picks)
    bad = NO_INDEX.search(indices)
    if not comma:
        return ScannedRow(row, "", None, f"'{shown(line)}' has one column; expected {HEADER}")
    if split_id(submission_id) is None:
        return ScannedRow(row, "", None, f"ID '{shown(submission_id)}': {_expected_id()}")
    if bad:
        fault = f"'{shown(bad[1])}' is no config index; expected 4;0;2 or the like"
        return ScannedRow(row, submission_id, None, f"{shown(submission_id)}: {fault}")
    return ScannedRow(row, submission_id, np.fromstring(indices, np.int64, sep=";"), None)


def _unquoted(cell: str) -> str:
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _expected_id() -> str:
    names = ", ".join(collection.name for collection in COLLECTIONS)
    return f"expected collection:name, the collection one of {names}"
