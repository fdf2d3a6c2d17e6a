"""Submissions are written exactly, all problems are listed, and valid files are accepted."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.errors import PipelineError
from data.graph_store.stored_graph import read_graph
from data.tree import COLLECTIONS, GraphFile, collection_named, find_graphs
from ensembles.picks import top_k_to_measure
from models.predict import scores_table
from submissions.check import (
    MAX_OF_KIND,
    SubmissionRow,
    check_submission,
    official_rows,
    problems_before_upload,
    read_submission,
    submission_rows,
    write_submission,
)
from tests.submissions.made_up import official_lines, place_npz, write_official
from tests.support.real_data import REAL, requires_real_data

Change = Callable[[list[str]], list[str]]
LONG = "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba"  # 1001 configs
UNET, KERNEL = "layout:xla:default:unet_3d.4x4.bf16", "tile:xla:kernel_-342c"
TILE = collection_named("tile:xla")
SMALL, LARGE = "tile:xla:small", "tile:xla:large"
A, B = "layout:xla:default:a", "layout:nlp:random:b"
EXPECTED = {SMALL: 2, LARGE: 9, A: 3, B: 4}
TILES_MISSING = f"tile:xla: 2 of 2 rows are missing, for example {SMALL}"
B_MISSING = f"layout:nlp:random: 1 of 1 rows are missing, for example {B}"


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "submission.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([f"{SMALL},1;0", f"{LARGE},8;0;1;2;3", f"{A},2;0;1", f"{B},0;1;2;3"], []),
        ([f"{A},2;0;1"], [TILES_MISSING, B_MISSING]),
        (
            [f"{B},0;1;2;3", f"{A},2;0;1", f"{SMALL},1;0"],
            ["tile:xla: 1 of 2 rows are missing, for example tile:xla:large"],
        ),
        (
            [f"{SMALL},0;1;2;3;4", f"{SMALL},0", f"{LARGE},-1;1;2;1;10", f"{A},0;x;1"],
            [
                f"row 2: {SMALL}: has 5 indices; expected 2 of 2 configs",
                f"row 2: {SMALL}: index 2 (and 2 more); expected 0..1",
                f"row 3: {SMALL}: comes twice, first in row 2; expected one row per graph",
                f"row 3: {SMALL}: has 1 indices; expected 2 of 2 configs",
                f"row 4: {LARGE}: index -1 (and 1 more); expected 0..8",
                f"row 4: {LARGE}: index 1 is repeated; expected each config once",
                f"row 5: {A}: 'x' is no config index; expected 4;0;2 or the like",
                B_MISSING,
            ],
        ),
        (
            [f"{A}2,0", "nonsense,0", "nonsense,0"],
            [
                f"row 2: {A}2: no graph of this split has this ID; expected no such row",
                "row 3: ID 'nonsense': expected collection:name",
                "row 4: ID 'nonsense': expected collection:name",
                TILES_MISSING,
                f"layout:xla:default: 1 of 1 rows are missing, for example {A}",
                B_MISSING,
            ],
        ),
    ],
)
def test_all_problems_of_a_file_are_listed(
    rows: list[str], expected: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path, "\n".join(["ID,TopConfigs", *rows, ""]))
    for problem, line in zip(check_submission(path, EXPECTED), expected, strict=True):
        assert problem.startswith(f"{path}: {line}") and len(problem.splitlines()) == 1


def test_problems_are_bounded(tmp_path: Path) -> None:
    rows = [f"layout:xla:random:no{n},{n};{n + 1}\n" for n in range(40)]
    path = written(tmp_path, "ID,TopConfigs\n" + "".join(["x\n" * 30, *rows]))
    problems = [p.removeprefix(f"{path}: ") for p in check_submission(path, EXPECTED)]
    assert [p for p in problems if "one column" in p][:2] == [
        "row 2: 'x' has one column; expected ID,TopConfigs",
        "row 3: 'x' has one column; expected ID,TopConfigs",
    ]
    assert sum("row " in p and "one column" in p for p in problems) == MAX_OF_KIND
    assert problems[-2:] == [
        "25 more rows: … has one column; expected ID,TopConfigs",
        "35 more rows: no graph of this split has this ID; expected no such row",
    ]


@pytest.mark.parametrize(("configs", "indices"), [([0, 1, 2], "1;0;2"), ([2, 5, 9], "5;2;9")])
def test_only_scored_configs_are_written(configs: list[int], indices: str, tmp_path: Path) -> None:
    scores = pl.DataFrame({"graph": "a", "config": configs, "score": [0.2, 0.1, 0.3]})
    path, random = tmp_path / "submission.csv", collection_named("layout:xla:random")
    # The order of the table does not change the submission.
    for order in itertools.permutations(range(3)):
        write_submission(path, submission_rows([(random, scores[list(order)])], []))
        assert path.read_text() == f"ID,TopConfigs\nlayout:xla:random:a,{indices}\n"


@pytest.fixture
def kernels(tiny_tree: Path) -> list[GraphFile]:
    found = find_graphs(tiny_tree, collections=(TILE,), splits=("train",))
    return [file for file in found if read_graph(file).n_configs > 8][:2]


def test_a_row_has_the_diversified_five_and_then_the_others_by_score(
    kernels: list[GraphFile],
) -> None:
    n_unlike = 0
    for seed in range(5):
        graph, rng = read_graph(kernels[0]), np.random.default_rng(seed)
        scores = rng.normal(size=graph.n_configs).astype(np.float32)
        (row,) = submission_rows([(TILE, scores_table(graph, scores))], kernels)
        five = top_k_to_measure(scores, graph, 5).tolist()
        by_score = np.argsort(scores, kind="stable").tolist()
        assert row.ranking.tolist() == [*five, *(c for c in by_score if c not in five)]
        assert (row.id, row.configs) == (kernels[0].submission_id, None)
        n_unlike += five != by_score[:5]
    assert n_unlike


def test_kernels_without_a_file_or_with_other_configs_are_refused(kernels: list[GraphFile]) -> None:
    scored, other = (
        scores_table(graph, np.arange(graph.n_configs, dtype=np.float32))
        for graph in map(read_graph, kernels)
    )
    with pytest.raises(PipelineError, match="no file"):
        list(submission_rows([(TILE, scored)], kernels[1:]))
    renamed = other.with_columns(graph=np.repeat(kernels[0].name, len(other)))
    with pytest.raises(PipelineError, match="has other configs than the scores"):
        list(submission_rows([(TILE, renamed)], kernels))


def row(submission_id: str, *ranking: int) -> SubmissionRow:
    return SubmissionRow(submission_id, np.array(ranking, np.int64))


def test_collections_and_lengths_of_rows_are_those_of_the_competition(tmp_path: Path) -> None:
    path = tmp_path / "new" / "submission.csv"
    rows = [row(B, 1, 0), row(UNET, 5, 2, 0, 1, 3, 4), row(KERNEL, *range(7)), row(SMALL, 1, 0)]
    write_submission(path, rows)
    assert path.read_bytes() == (
        b"ID,TopConfigs\n"
        b"tile:xla:kernel_-342c,0;1;2;3;4\n"
        b"tile:xla:small,1;0\n"
        b"layout:xla:default:unet_3d.4x4.bf16,5;2;0;1;3;4\n"
        b"layout:nlp:random:b,1;0\n"
    )
    with pytest.raises(PipelineError, match="'tile:xla:a,b': expected no blanks, commas or quotes"):
        write_submission(path, [row("tile:xla:a,b", 0)])
    assert len(read_submission(path)) == 4


def test_a_long_row_survives_the_round_trip(tmp_path: Path) -> None:
    # 100,000 configs make a cell of 590 kB, over the standard csv reader's limit.
    ranking = np.random.default_rng(0).permutation(100_000)
    path = tmp_path / "submission.csv"
    write_submission(path, [SubmissionRow(UNET, ranking), row(KERNEL, 3, 1, 2)])
    kernel, unet = read_submission(path).items()
    assert (kernel[0], kernel[1].tolist(), unet[0]) == (KERNEL, [3, 1, 2], UNET)
    assert np.array_equal(unet[1], ranking) and unet[1].dtype == np.int64


@pytest.mark.parametrize(("mark", "end"), [(b"", b"\n"), (b"\xef\xbb\xbf", b"\r\n"), (b"", b"\r")])
def test_line_ends_and_marks_are_accepted(tmp_path: Path, mark: bytes, end: bytes) -> None:
    lines = b"ID,TopConfigs", b"tile:xla:a,1;0", b"layout:nlp:random:b,0;1", b""
    rankings = read_submission(written(tmp_path, mark + end.join(lines)))
    assert {name: ranking.tolist() for name, ranking in rankings.items()} == {
        "tile:xla:a": [1, 0],
        B: [0, 1],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file or folder; expected a submission"),
        ("", "is empty"),
        (b"\x89\xff\x00", "not UTF-8"),
        ("ID;TopConfigs\n", "row 1: header is 'ID;TopConfigs'; expected 'ID,TopConfigs'"),
        ("ID,TopConfigs\ntile:xla:a\n", "row 2: 'tile:xla:a' has one column"),
        ("ID,TopConfigs\ntile:xla:a,0\nfoo:a,0\n", "row 3: ID 'foo:a': expected collection:name"),
        (f"ID,TopConfigs\ntile:xla:a,{'9' * 5000}\n", "99…' is no config index"),
        (f"ID,TopConfigs\ntile:xla:a,{'9' * 19}\n", f"'{'9' * 19}' is no config index"),
        ('ID,TopConfigs\ntile:xla:a,"\n', "'\"' is no config index"),
        ("ID,TopConfigs\ntile:xla:a,0\ntile:xla:a,1\n", "row 3: tile:xla:a: comes twice"),
    ],
)
def test_damage_is_named_with_its_row(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "none.csv" if content is None else written(tmp_path, content)
    with pytest.raises(PipelineError, match=f"^{path}: [^\n]*{message}[^\n]*$"):
        read_submission(path)


# The real competition


def picks(line: str, indices: str) -> str:
    return f"{line.partition(',')[0]},{indices}"


def with_picks(indices: str) -> Change:
    return lambda lines: [*lines[:500], picks(lines[500], indices), *lines[501:]]


def as_sampled(lines: list[str]) -> list[str]:
    """Return rows as in the sample submission: 5 indices for tiles, 1000 for layouts."""
    counts = {"tile": 5, "layout": 1000}
    return [picks(line, ";".join(map(str, range(counts[line.split(":")[0]])))) for line in lines]


def shuffled(lines: list[str]) -> list[str]:
    return [lines[place] for place in np.random.default_rng(0).permutation(len(lines))]


def messages(tmp_path: Path, lines: list[str]) -> list[str]:
    path = write_official(tmp_path / "s.csv", lines)
    return [p.removeprefix(f"{path}: ") for p in check_submission(path, official_rows())]


def test_the_rows_are_those_of_the_competition() -> None:
    rows = official_rows()
    collections = Counter(name.rpartition(":")[0] for name in rows)
    assert list(collections) == [collection.name for collection in COLLECTIONS]
    assert list(collections.values()) == [844, 8, 8, 17, 17]
    assert Counter(rows.values()) == {None: 844, 1000: 48, 1001: 2}
    assert rows[LONG] == 1001


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (list, ""),
        (as_sampled, ""),
        (lambda lines: shuffled(as_sampled(lines)), ""),
        (lambda lines: ['"{}","{}"'.format(*line.split(",")) for line in lines], ""),
        (with_picks("99;3;7;1;0"), ""),
        (lambda lines: [*lines[:-1], lines[-1] + ";1000"], "has 1001 indices; expected 1000"),
        (with_picks("0;1;3"), "expected 0..2"),
        (with_picks("99999999;1;2;3;4"), "index 99999999; expected 0..12999999"),
    ],
)
def test_rows_of_the_competition_are_judged(tmp_path: Path, change: Change, fault: str) -> None:
    found = messages(tmp_path, change(official_lines()))
    assert bool(found) == bool(fault) and all(fault in message for message in found[:1])


def test_known_counts_judge_as_unknown_ones(tmp_path: Path) -> None:
    lines = official_lines()  # sixteen kernels have 2, 3 or 4 configs
    known = {line.partition(",")[0]: line.count(";") + 1 for line in lines}
    assert Counter(known.values()) == {5: 828, 4: 6, 3: 8, 2: 2, 1000: 48, 1001: 2}
    for rows in (lines, as_sampled(lines)):
        assert check_submission(write_official(tmp_path / "s.csv", rows), known) == []


@requires_real_data
def test_the_competitions_own_sample_submission_is_accepted() -> None:
    sample = REAL / "sample_submission.csv"
    if not sample.is_file():
        pytest.skip(f"{REAL} has no sample_submission.csv")
    assert problems_before_upload(sample, REAL) == []
    assert set(official_rows()) == {
        line.partition(",")[0] for line in sample.read_text().splitlines()[1:]
    }


def test_test_files_at_hand_give_the_exact_counts(tmp_path: Path) -> None:
    lines = official_lines()
    name = lines[500].partition(",")[0].rpartition(":")[2]
    place_npz(tmp_path, "tile/xla/test", name, config_runtime=np.zeros(7, np.int64))
    path = write_official(tmp_path / "s.csv", lines)
    assert problems_before_upload(path, tmp_path) == []
    lines[500] = picks(lines[500], "0;1;2;3;7")
    (problem,) = problems_before_upload(write_official(path, lines), tmp_path)
    assert "index 7; expected 0..6" in problem
