"""Write, read and check submission files.

    ID,TopConfigs
    tile:xla:<kernel>,4;0;2;1;3
    layout:xla:default:<graph>,7;0;3;…

A layout row has all c indices, sorted by score. A tile row has min(5, c) diversified configs
(ensembles/picks.py).

The data files define the counts. For the 894 rows of the competition, the counts of layout graphs
are known without files. The sample submission of the competition has 1000 indices for every layout
graph and five for every tile kernel, and Kaggle scores it. But two layout graphs have 1001 configs,
and sixteen kernels have fewer than five. Both forms are accepted.
"""

import re
from collections import Counter
from collections.abc import Collection as Container
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError, escaped
from common.files import missing_path, open_regular, write_text
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
from ensembles.picks import TILE_ERROR, top_k_to_measure

HEADER = "ID,TopConfigs"
# The first part that is not an int64 index. A match of the whole row would need too much memory.
NO_INDEX = re.compile(r"(?:^|;)(?!-?[0-9]{1,18}(?:;|$))([^;]*)")
COLLECTION_NAMES = tuple(collection.name for collection in COLLECTIONS)
# Problems of one kind that are listed.
MAX_OF_KIND = 5
# The parts of a problem that differ between rows.
DETAILS = re.compile(r"'[^']*'|-?\d+|\(and \d+ more\)")

Indices = NDArray[np.int64]
Rows = Mapping[str, int | None]


class SubmissionRow(NamedTuple):
    """Ranking of one graph.

    Attributes:
        ranking: Config indices, (c,) int64, predicted fastest first. Tile kernels need only five.
        configs: If only some configs are ranked, their rows, (c,) int64. `ranking` then has
            positions in this array.
    """

    id: str
    ranking: Indices
    configs: Indices | None = None


class ScannedRow(NamedTuple):
    """One line of a submission file. The header is row 1.

    Attributes:
        id: ID of the row, "" without a known collection.
        ranking: Config indices, (m,) int64. None for a line that cannot be read.
        fault: "" for none. A line whose ID comes twice has a ranking and a fault.
    """

    row: int
    id: str = ""
    ranking: Indices | None = None
    fault: str = ""


def submission_rows(
    tables: Iterable[tuple[Collection, pl.DataFrame]],
    files: Iterable[GraphFile],
    tile_error: float = TILE_ERROR,
) -> Iterator[SubmissionRow]:
    """Rank the configs of each graph by score; equal scores keep the order of the file.

    A tile row starts with the diversified top 5, so the files of tile kernels are read.
    """
    file_of = {file.submission_id: file for file in files}
    for collection, scores in tables:
        for graph, table in by_graph(scores).items():
            name = f"{collection.name}:{graph}"
            ranking = ranking_from_scores(table["score"].to_numpy())
            if collection.kind == "tile":
                if name not in file_of:
                    requirement = "expected --data with its kernel"
                    raise PipelineError(f"{name}: has scores but no file; {requirement}")
                five = _five_to_measure(file_of[name], table, tile_error)
                ranking = np.concatenate([five, ranking[~np.isin(ranking, five)]])
            configs = table["config"].to_numpy().astype(np.int64)
            yield SubmissionRow(name, ranking, configs if configs[-1] >= len(configs) else None)


def _five_to_measure(file: GraphFile, table: pl.DataFrame, tile_error: float) -> Indices:
    kernel = read_tile(file)
    if not np.array_equal(config_hashes(kernel), table["config_hash"].to_numpy()):
        requirement = "expected the same data"
        raise PipelineError(f"{file.path}: has other configs than the scores; {requirement}")
    return top_k_to_measure(table["score"].to_numpy(), kernel, TILE_PICKS, tile_error)


def by_graph(scores: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the scores of each graph, in the order of its configs."""
    tables = scores.sort("graph", "config", maintain_order=True).partition_by("graph")
    return {table["graph"][0]: table for table in tables}


def n_picks(name: str, n_configs: int) -> int:
    """Return the number of indices in a row: c for a layout graph, min(5, c) for a tile kernel."""
    return min(TILE_PICKS, n_configs) if name.startswith("tile:") else n_configs


def write_submission(path: Path, rows: Iterable[SubmissionRow]) -> None:
    """Write a submission file, with the collections in the order of the sample submission."""
    lines: dict[str, list[str]] = {collection.name: [] for collection in COLLECTIONS}
    for row in rows:
        if NO_ID.search(row.id):
            raise PipelineError(f"{path}: '{row.id}': expected no blanks, commas or quotes")
        picks = row.ranking[: n_picks(row.id, len(row.ranking))]
        indices = picks if row.configs is None else row.configs[picks]
        lines[_collection_of(row.id)].append(f"{row.id},{';'.join(map(str, indices.tolist()))}")
    all_lines = [line for of_collection in lines.values() for line in of_collection]
    write_text(path, "\n".join([HEADER, *all_lines]) + "\n")


def read_submission(path: Path) -> dict[str, Indices]:
    """Read the rankings by ID, (m,) int64 each. `check_submission` checks that they fit."""
    rankings: dict[str, Indices] = {}
    for row, submission_id, ranking, fault in scan_submission(path):
        if ranking is None or fault:
            raise PipelineError(f"{path}: row {row}: {fault}")
        rankings[submission_id] = ranking
    return rankings


def scan_submission(path: Path) -> Iterator[ScannedRow]:
    """Yield the lines of a submission file, readable or not, in each form that Kaggle accepts."""
    if not path.exists():
        raise missing_path(path, "a submission, for example RUN/submission.csv of `run`")
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise PipelineError(f"{path}: not UTF-8 text; expected a CSV file") from error
    if not text.strip():
        raise PipelineError(f"{path}: is empty; expected the header {HEADER}")
    header, *lines = text.split("\n")
    if ",".join(map(_strip_quotes, header.split(","))) != HEADER:
        raise PipelineError(f"{path}: row 1: header is '{shown(header)}'; expected '{HEADER}'")
    first_row: dict[str, int] = {}
    for row, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        result = _scan_line(row, line)
        first = first_row.setdefault(result.id, row) if result.id else row
        if first < row and not result.fault:
            fault = f"comes twice, first in row {first}; expected one row per graph"
            result = result._replace(fault=f"{shown(result.id)}: {fault}")
        yield result


def _scan_line(row: int, line: str) -> ScannedRow:
    name, comma, indices = line.partition(",")
    submission_id, indices = _strip_quotes(name), _strip_quotes(indices)
    if not comma:
        return ScannedRow(row, fault=f"'{shown(line)}' has one column; expected {HEADER}")
    if not _collection_of(submission_id):
        names = ", ".join(COLLECTION_NAMES)
        requirement = f"expected collection:name, the collection one of {names}"
        return ScannedRow(row, fault=f"ID '{shown(submission_id)}': {requirement}")
    if bad := NO_INDEX.search(indices):
        fault = f"'{shown(bad[1])}' is no config index; expected 4;0;2 or the like"
        return ScannedRow(row, submission_id, fault=f"{shown(submission_id)}: {fault}")
    return ScannedRow(row, submission_id, np.fromstring(indices, np.int64, sep=";"))


def _strip_quotes(cell: str) -> str:
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _collection_of(submission_id: str) -> str:
    names = (name for name in COLLECTION_NAMES if submission_id.removeprefix(f"{name}:"))
    return next((name for name in names if submission_id.startswith(f"{name}:")), "")


def check_submission(path: Path, n_configs_of: Rows) -> list[str]:
    """List the problems of a submission file, one line each. Rows may have any order.

    Args:
        n_configs_of: Number of configs by submission ID. None for a tile kernel with an unknown
            number, which may have any picks that are legal for some kernel.
    """
    try:
        problems = list(_first_of_kinds(_problems(path, n_configs_of)))
    except PipelineError as error:
        return [str(error)]
    return [escaped(f"{path}: {problem}") for problem in problems]


def _first_of_kinds(problems: Iterable[str]) -> Iterator[str]:
    """Yield the first five problems of each kind, and the number of the others."""
    counts = Counter[str]()
    for problem in problems:
        kind = DETAILS.sub("…", problem).rpartition(": ")[2]
        counts[kind] += 1
        if counts[kind] <= MAX_OF_KIND:
            yield problem
    for kind, n in counts.items():
        if n > MAX_OF_KIND:
            yield f"{n - MAX_OF_KIND} more rows: {kind}"


@cache
def official_rows() -> Rows:
    """Return the number of configs of each official test graph by ID, and None for kernels."""
    rows: dict[str, int | None] = {}
    for collection in COLLECTIONS:
        for name in sorted(official_names()[f"{collection.name}/test"]):
            submission_id = f"{collection.name}:{name}"
            layout_configs = OTHER_LAYOUT_CONFIGS.get(submission_id, LAYOUT_CONFIGS)
            rows[submission_id] = layout_configs if collection.kind == "layout" else None
    return rows


def expected_rows(data_dir: Path, split: str) -> dict[str, int]:
    """Return the number of configs of each graph of a split, by submission ID."""
    rows = {}
    for file in find_graphs(data_dir, splits=(split,)):
        with Archive(file.path) as archive:
            (n_configs,) = archive.shape("config_runtime", shape=(None,))
            if n_configs == 0:
                archive.fail("config_runtime", "has zero configs; expected at least one")
        rows[file.submission_id] = n_configs
    return rows


def problems_with_data(path: Path, data_dir: Path, split: str) -> tuple[list[str], Rows]:
    """List the problems of a submission for a split, and return the rows that it must have.

    A submission with official test graphs that are not in the folder must have all of them.
    """
    rows = expected_rows(data_dir, split)
    problems = check_submission(path, rows)
    if not problems:
        return [], rows
    ids = {line.id for line in scan_submission(path)}
    if split == "test" and ids & (official_rows().keys() - rows.keys()):
        official = {name: rows.get(name, n) for name, n in official_rows().items()}
        return check_submission(path, official), official
    refuse_other_split(path, ids, rows, split)
    return problems, rows


def refuse_other_split(path: Path, ids: Container[str], graphs: Iterable[str], split: str) -> None:
    """Raise a PipelineError if a submission answers no graph of a split."""
    if not any(name in ids for name in graphs):
        requirement = f"expected the run's submission for {split}, or another --split"
        right = path.with_name("submission.csv" if split == "test" else f"submission-{split}.csv")
        requirement += f"; did you mean {right}?" * (right.exists() and right != path)
        raise PipelineError(f"{path}: answers no graph of split {split}; {requirement}")


def problems_before_upload(path: Path, data_dir: Path) -> list[str]:
    """List the reasons why Kaggle cannot score a submission, by data or else the sample."""
    folder = data_dir if has_graphs(npz_root(data_dir), ("test",)) else SAMPLE
    problems, rows = problems_with_data(path, folder, "test")
    if not problems and rows.keys() != official_rows().keys():
        return [f"{path}: answers the test graphs of {folder}, not the competition's"]
    return problems


def ranking_faults(ranking: Indices, n_configs: int, n_indices: int) -> list[str]:
    """List the faults of a ranking, (m,) int64, which must have `n_indices` distinct indices."""
    faults = []
    if len(ranking) != n_indices:
        faults.append(f"has {len(ranking)} indices; expected {n_indices} of {n_configs} configs")
    values, counts = np.unique(ranking, return_counts=True)
    for wrong, problem in (
        (ranking[(ranking < 0) | (ranking >= n_configs)], f"; expected 0..{n_configs - 1}"),
        (values[counts > 1], " is repeated; expected each config once"),
    ):
        if len(wrong):
            suffix = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            faults.append(f"index {wrong[0]}{suffix}{problem}")
    return faults


def _problems(path: Path, n_configs_of: Rows) -> Iterator[str]:
    ids = set()
    for row, submission_id, ranking, fault in scan_submission(path):
        ids.add(submission_id)
        if fault:
            yield f"row {row}: {fault}"
        if ranking is None:
            continue
        n_configs = n_configs_of.get(submission_id)
        n_indices = n_picks(submission_id, LAYOUT_CONFIGS)
        if submission_id not in n_configs_of:
            faults = ["no graph of this split has this ID; expected no such row"]
        elif n_configs is None:
            # A row with fewer than five indices is legal only for a kernel without more configs.
            n_indices = min(len(ranking), TILE_PICKS)
            n_at_most = n_indices if n_indices < TILE_PICKS else ALL_TILE_CONFIGS
            faults = ranking_faults(ranking, n_at_most, n_indices)
        elif submission_id in official_rows() and len(ranking) == n_indices:
            # The sample submission of the competition has this number of indices.
            faults = ranking_faults(ranking, max(n_configs, n_indices), n_indices)
        else:
            faults = ranking_faults(ranking, n_configs, n_picks(submission_id, n_configs))
        yield from (f"row {row}: {shown(submission_id)}: {problem}" for problem in faults)
    missing = [submission_id for submission_id in n_configs_of if submission_id not in ids]
    n_missing, n_rows = (Counter(map(_collection_of, names)) for names in (missing, n_configs_of))
    first = {_collection_of(name): name for name in reversed(missing)}
    for name, n in n_missing.items():
        yield f"{name}: {n} of {n_rows[name]} rows are missing, for example {first[name]}"
