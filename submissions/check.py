"""Submission files: written, read, and checked against the graphs that they must answer for.

    ID,TopConfigs
    tile:xla:<kernel>,4;0;2;1;3
    layout:xla:default:<graph>,7;0;3;…

A layout row holds all c indices, sorted by score. A tile row holds the min(5, c) configs that are
worth a measurement (ensembles/picks.py).

Counts are those of the data files. For the real competition, 894 rows by the names of the official
test split, they are known without its files but for those of tile kernels. Its own sample
submission, which Kaggle scores, lists 1000 indices for every layout graph and five for every tile
kernel; in truth two layout graphs have 1001 configs and sixteen kernels fewer than five. Both are
accepted.
"""

import re
from collections import Counter
from collections.abc import Collection as Container
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError, escaped
from common.files import open_regular, write_text
from common.metrics import TILE_PICKS, ranking_from_scores
from common.settings import SAMPLE
from data.graph_store.stored_graph import read_tile
from data.graphs.graph import config_hashes
from data.npz.archive import Archive, shown
from data.official.published import (
    ALL_TILE_CONFIGS,
    LAYOUT_CONFIGS,
    OTHER_LAYOUT_CONFIGS,
    official_names,
)
from data.tree import COLLECTIONS, NO_ID, Collection, GraphFile, find_graphs, has_graphs, npz_root
from ensembles.picks import top_k_to_measure

HEADER = "ID,TopConfigs"
# The first part that is no index: one that fits int64. A search takes no memory, as a match of the
# whole row would.
NO_INDEX = re.compile(r"(?:^|;)(?!-?[0-9]{1,18}(?:;|$))([^;]*)")
KNOWN = tuple(collection.name for collection in COLLECTIONS)
MAX_PROBLEMS = 1000  # more than the competition has rows

Indices = NDArray[np.int64]
Rows = Mapping[str, int | None]


class SubmissionRow(NamedTuple):
    """One graph's answer: the ID, and (c,) config indices, predicted fastest first.

    Of a tile kernel only the first five are written, and fewer than c may be given. Where some
    configs alone are ranked, the indices are places in `configs` (c,) int64.
    """

    id: str
    ranking: Indices
    configs: Indices | None = None


class ScannedRow(NamedTuple):
    """One line of a file."""

    row: int  # the header is row 1
    id: str  # "" where it names no collection
    ranking: Indices | None  # (m,); None where the line cannot be read
    fault: str  # "" = none; of a ranking that can be read, that its ID comes twice


def submission_rows(
    scored: Iterable[tuple[Collection, pl.DataFrame]], files: Iterable[GraphFile]
) -> Iterator[SubmissionRow]:
    """Rank the configs of each graph by score; equal scores keep the order of the file.

    A tile row begins with the five configs to measure.

    Args:
        scored: Scores of each collection, with the columns of SCORE_SCHEMA.
        files: Files of the graphs; only those of tile kernels are read.

    Raises:
        PipelineError: A tile kernel has no file, a damaged one, or one with other configs.
    """
    known = {file.submission_id: file for file in files}
    for collection, scores in scored:
        for graph, table in by_graph(scores).items():
            name = f"{collection.name}:{graph}"
            ranking = ranking_from_scores(table["score"].to_numpy())
            if collection.kind == "tile":
                if name not in known:
                    expected = "expected --data to hold its kernel"
                    raise PipelineError(f"{name}: has scores but no file; {expected}")
                kernel = read_tile(known[name])
                if not np.array_equal(config_hashes(kernel), table["config_hash"].to_numpy()):
                    fault = "holds other configs than the scores; expected the same data"
                    raise PipelineError(f"{kernel.file.path}: {fault}")
                five = top_k_to_measure(table["score"].to_numpy(), kernel, TILE_PICKS)
                ranking = np.concatenate([five, ranking[~np.isin(ranking, five)]])
            configs = table["config"].to_numpy().astype(np.int64)
            yield SubmissionRow(name, ranking, configs if configs[-1] >= len(configs) else None)


def by_graph(scores: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the scores of each graph, in the order of its configs."""
    tables = scores.sort("graph", "config", maintain_order=True).partition_by("graph")
    return {table["graph"][0]: table for table in tables}


def n_picks(name: str, n_configs: int) -> int:
    """Return how many indices a row holds: all c of a layout graph, min(5, c) of a tile kernel.

    Args:
        name: the row's ID, or its collection's name.
    """
    return min(TILE_PICKS, n_configs) if name.startswith("tile:") else n_configs


def write_submission(path: Path, rows: Iterable[SubmissionRow]) -> None:
    """Write `rows` to `path`, by collection in the sample submission's order, then as given.

    Raises:
        PipelineError: a graph's name cannot stand in a CSV cell, or the file cannot be written.
    """
    lines: dict[str, list[str]] = {collection.name: [] for collection in COLLECTIONS}
    for row in rows:
        if NO_ID.search(row.id):
            raise PipelineError(f"{path}: '{row.id}': expected no blanks, commas or quotes")
        picks = row.ranking[: n_picks(row.id, len(row.ranking))]
        indices = picks if row.configs is None else row.configs[picks]
        lines[_collection_of(row.id)].append(f"{row.id},{';'.join(map(str, indices.tolist()))}")
    ordered = [line for of_collection in lines.values() for line in of_collection]
    write_text(path, "\n".join([HEADER, *ordered]) + "\n")


def read_submission(path: Path) -> dict[str, Indices]:
    """Read a submission file: ranking (m,) int64 by ID, in the file's order.

    Whether each ranking fits its graph is for `check_submission` to say.

    Raises:
        PipelineError: as `scan_submission`; or, with the row's number, an ID that names no
            collection, an ID that comes twice, or indices that are not whole numbers.
    """
    rankings: dict[str, Indices] = {}
    for row, submission_id, ranking, fault in scan_submission(path):
        if ranking is None or fault:
            raise PipelineError(f"{path}: row {row}: {fault}")
        rankings[submission_id] = ranking
    return rankings


def scan_submission(path: Path) -> Iterator[ScannedRow]:
    """Yield the lines of a submission file, readable or not.

    As in Kaggle's reader, a byte order mark, all line ends, empty lines and cells in quotes are
    accepted.

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
    first_row: dict[str, int] = {}
    for row, line in enumerate(lines, start=2):
        if line.strip():
            name, comma, indices = line.partition(",")
            submission_id, indices = _unquoted(name), _unquoted(indices)
            fault, ranking = "", None
            if not comma:
                fault = f"'{shown(line)}' has one column; expected {HEADER}"
            elif not _collection_of(submission_id):
                expected = f"expected collection:name, the collection one of {', '.join(KNOWN)}"
                fault = f"ID '{shown(submission_id)}': {expected}"
            elif bad := NO_INDEX.search(indices):
                fault = f"'{shown(bad[1])}' is no config index; expected 4;0;2 or the like"
                fault = f"{shown(submission_id)}: {fault}"
            else:
                ranking = np.fromstring(indices, np.int64, sep=";")
            is_known = bool(comma and _collection_of(submission_id))
            first = first_row.setdefault(submission_id, row) if is_known else row
            if first < row and not fault:
                fault = f"comes twice, first in row {first}; expected one row per graph"
                fault = f"{shown(submission_id)}: {fault}"
            yield ScannedRow(row, submission_id if is_known else "", ranking, fault)


def _unquoted(cell: str) -> str:
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _collection_of(submission_id: str) -> str:
    names = (name for name in KNOWN if submission_id.removeprefix(f"{name}:"))
    return next((name for name in names if submission_id.startswith(f"{name}:")), "")


def check_submission(path: Path, expected: Rows) -> list[str]:
    """List what is wrong with a submission file, a line each; an empty list means that it is good.

    Found: an unreadable file or line, missing, surplus and repeated rows, and rankings with a wrong
    count, an index out of range or a repeated index. The order of the rows is free.

    Args:
        expected: c, the number of configs, by submission ID. None for a tile kernel whose number is
            not known: any picks that some kernel may have are accepted.
    """
    try:
        problems = list(islice(_problems(path, expected), MAX_PROBLEMS + 1))
    except PipelineError as error:
        return [str(error)]
    if len(problems) > MAX_PROBLEMS:
        problems[-1] = f"has more than {MAX_PROBLEMS} problems; the others are not listed"
    return [escaped(f"{path}: {problem}") for problem in problems]


@cache
def official_rows() -> Rows:
    """Return the number of configs of each official test graph, by submission ID.

    In the sample submission's order of collections; None for tile kernels.
    """
    rows: dict[str, int | None] = {}
    for collection in COLLECTIONS:
        for name in sorted(official_names()[f"{collection.name}/test"]):
            submission_id = f"{collection.name}:{name}"
            layout_configs = OTHER_LAYOUT_CONFIGS.get(submission_id, LAYOUT_CONFIGS)
            rows[submission_id] = layout_configs if collection.kind == "layout" else None
    return rows


def expected_rows(data_dir: Path, split: str) -> dict[str, int]:
    """Return the number of configs of each graph of a split, by submission ID.

    Raises:
        PipelineError: the split has no graph, or a file is damaged.
    """
    rows = {}
    for file in find_graphs(data_dir, splits=(split,)):
        with Archive(file.path) as archive:
            (n_configs,) = archive.shape("config_runtime", shape=(None,))
            if n_configs == 0:
                archive.fail("config_runtime", "has zero configs; expected at least one")
        rows[file.submission_id] = n_configs
    return rows


def problems_with_data(path: Path, data_dir: Path, split: str) -> tuple[list[str], Rows]:
    """List what is wrong with a file that answers a split of a folder, and the rows expected of it.

    A file that answers other test graphs of the competition than the folder has must answer all of
    the competition's.

    Raises:
        PipelineError: the split has no graph, a file is damaged, or another split is answered.
    """
    expected = expected_rows(data_dir, split)
    problems = check_submission(path, expected)
    if not problems:
        return [], expected
    answered = {scanned.id for scanned in scan_submission(path)}
    if split == "test" and answered & (official_rows().keys() - expected.keys()):
        every = {name: expected.get(name, n) for name, n in official_rows().items()}
        return check_submission(path, every), every
    refuse_other_split(path, answered, expected, split)
    return problems, expected


def refuse_other_split(
    path: Path, answered: Container[str], expected: Iterable[str], split: str
) -> None:
    """Raise a PipelineError if a submission answers no graph of a split.

    Args:
        path: Submission file, for the message.
        answered: IDs of its rows.
        expected: IDs of the split's graphs.
        split: Split that is expected.
    """
    if not any(name in answered for name in expected):
        raise PipelineError(
            f"{path}: answers no graph of split {split}; expected the run's submission for "
            f"{split}, or another --split"
        )


def problems_before_upload(path: Path, data_dir: Path) -> list[str]:
    """List why Kaggle cannot score a submission, as `problems_with_data` does; empty if it can.

    Raises:
        PipelineError: as `problems_with_data`, but a folder may have no test graphs.
    """
    folder = data_dir if has_graphs(npz_root(data_dir), ("test",)) else SAMPLE
    problems, rows = problems_with_data(path, folder, "test")
    if not problems and rows.keys() != official_rows().keys():
        return [f"{path}: answers the test graphs of {folder}, not the competition's"]
    return problems


def ranking_faults(ranking: Indices, n_configs: int, n_indices: int) -> list[str]:
    """Say what keeps `ranking` (m,) from being `n_indices` distinct ones of 0..c-1."""
    faults = []
    if len(ranking) != n_indices:
        faults.append(f"has {len(ranking)} indices; expected {n_indices} of {n_configs} configs")
    values, counts = np.unique(ranking, return_counts=True)
    for wrong, problem in (
        (ranking[(ranking < 0) | (ranking >= n_configs)], f"; expected 0..{n_configs - 1}"),
        (values[counts > 1], " is repeated; expected each config once"),
    ):
        if len(wrong):
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            faults.append(f"index {wrong[0]}{more}{problem}")
    return faults


def _problems(path: Path, expected: Rows) -> Iterator[str]:
    answered = set()
    for row, submission_id, ranking, fault in scan_submission(path):
        answered.add(submission_id)
        if fault:
            yield f"row {row}: {fault}"
        if ranking is None:
            continue
        n_configs = expected.get(submission_id)
        n_indices = n_picks(submission_id, LAYOUT_CONFIGS)
        if submission_id not in expected:
            faults = ["no graph of this split has this ID; expected no such row"]
        elif n_configs is None:
            # Less than five indices stand for a kernel that has no more configs.
            n_indices = min(len(ranking), TILE_PICKS)
            n_at_most = n_indices if n_indices < TILE_PICKS else ALL_TILE_CONFIGS
            faults = ranking_faults(ranking, n_at_most, n_indices)
        elif submission_id in official_rows() and len(ranking) == n_indices:
            # As many as in the competition's sample submission.
            faults = ranking_faults(ranking, max(n_configs, n_indices), n_indices)
        else:
            faults = ranking_faults(ranking, n_configs, n_picks(submission_id, n_configs))
        yield from (f"row {row}: {shown(submission_id)}: {each}" for each in faults)
    missing = [submission_id for submission_id in expected if submission_id not in answered]
    n_missing, n_rows = (Counter(map(_collection_of, names)) for names in (missing, expected))
    first = {_collection_of(name): name for name in reversed(missing)}
    for name, n in n_missing.items():
        yield f"{name}: {n} of {n_rows[name]} rows are missing, for example {first[name]}"
