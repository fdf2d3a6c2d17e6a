"""Judging on some configs: index files good and bad, and rankings cut down one by one."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from submissions.labels import Labels
from submissions.score import score_submission
from submissions.subsets import read_subsets, restrict, subset_remarks

A, B, N = "layout:xla:default:a", "layout:xla:default:b.1:x", "layout:nlp:random:n"
NAMES = "xla_default.json, xla_random.json, nlp_default.json, nlp_random.json"


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def test_a_file_or_a_folder_of_them(tmp_path: Path) -> None:
    (tmp_path / "nlp_random.json").write_text('{"n": [7]}')
    (tmp_path / "xla_default.json").write_text('\ufeff{"a": [5, 0, 2], "b.1:x": [9]}')
    for ignored in ("validation.py", ".xla_random.json"):
        (tmp_path / ignored).write_text("no JSON")
    found = read_subsets(tmp_path)
    assert {name: indices.tolist() for name, indices in found.items()} == {
        A: [5, 0, 2],
        B: [9],
        N: [7],
    }
    assert all(indices.dtype == np.int64 for indices in found.values())
    assert list(read_subsets(tmp_path / "nlp_random.json")) == [N]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("__import__('os').abort()", ""),
        ("[[0, 1]]", ""),
        ('{"a": []}', "graph a: "),
        ('{"a": [0, -1]}', "graph a, entry 1: "),
        ('{"a": [9223372036854775808]}', "graph a, entry 0: "),
        ('{"a": [4, 2, 4]}', "graph a: expected each config index once"),
        ('{"g\\n\\u001b": []}', "graph g??: "),
    ],
    ids=range(7),
)
def test_faults_are_one_line_that_names_file_and_graph(
    tmp_path: Path, text: str, place: str
) -> None:
    path = tmp_path / "xla_default.json"
    path.write_text(text)
    with pytest.raises(PipelineError) as raised:
        read_subsets(path)
    line = str(raised.value)
    assert line.startswith(f"{path}: {place}")
    assert "expected" in line
    assert line.isprintable()
    assert len(line) < len(str(path)) + 240


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "xla_valid.json"
    path.write_text('{"a": [0]}')
    for place in (path, tmp_path):
        with pytest.raises(PipelineError, match=rf"xla_valid\.json: .*; expected {NAMES}"):
            read_subsets(place)
    path.unlink()
    with pytest.raises(PipelineError, match=f"no index file; expected {NAMES}"):
        read_subsets(tmp_path)
    with pytest.raises(PipelineError, match="cannot be read: No such file"):
        read_subsets(tmp_path / "xla_default.json")
    (tmp_path / "xla_default.json").write_bytes(b'{"\xff": [0]}')
    with pytest.raises(PipelineError, match="not UTF-8"):
        read_subsets(tmp_path)


def test_restricting_is_ranking_these_configs_alone() -> None:
    rng = np.random.default_rng(0)
    runtime, scores = rng.integers(1, 40, 60), rng.normal(size=60)
    subset = rng.permutation(60)[:25]
    whole = {A: Labels(runtime), B: Labels(runtime), N: Labels(runtime)}
    rankings = {A: np.argsort(scores), B: np.argsort(scores), N: np.argsort(scores)}
    kept_rankings, kept_labels = restrict(
        rankings, whole, {A: subset, "layout:xla:default:z": subset}
    )
    assert kept_rankings[A].tolist() == np.argsort(scores[subset]).tolist()
    assert kept_labels[A].runtime_ns.tolist() == [runtime[i] for i in subset]
    for name in (B, N):
        assert kept_rankings[name] is rankings[name]
        assert kept_labels[name] is whole[name]
    assert rankings[A].tolist() == np.argsort(scores).tolist()
    assert set(kept_rankings) == set(kept_labels) == {A, B, N}
    graph = score_submission(kept_rankings, kept_labels)["collections"]["layout:xla:default"]
    alone = score_submission({A: np.argsort(scores[subset])}, {A: Labels(runtime[subset])})
    expected = alone["collections"]["layout:xla:default"]["per_graph"]["a"]
    assert graph["per_graph"]["a"] == expected
    assert graph["per_graph"]["b.1:x"]["n_configs"] == 60
    assert expected["n_configs"] == 25


def test_an_index_beyond_the_graph_s_configs_is_named() -> None:
    rankings, labels = {A: ints(1, 0, 2)}, {A: Labels(ints(3, 1, 2))}
    with pytest.raises(PipelineError, match=rf"xla_default\.json: {A}: index 3; expected 0\.\.2"):
        restrict(rankings, labels, {A: ints(0, 3)})


def test_remarks_count_what_is_judged_whole_and_what_is_listed_in_vain() -> None:
    labels = {A: Labels(ints(1, 2)), B: Labels(ints(1, 2)), N: Labels(ints(1, 2))}
    labels["layout:xla:default:withheld"] = Labels(ints(0, 0))
    listed = {A: ints(1), "layout:xla:default:y": ints(0), "layout:xla:default:z": ints(0)}
    assert subset_remarks(labels, listed) == [
        "layout:xla:default: 1 graphs not in the subset; judged on all their configs",
        "layout:xla:default: 2 graphs of the subset are not in the data",
    ]
    assert subset_remarks(labels, {N: ints(0)}) == []
    assert subset_remarks(labels, {}) == []
