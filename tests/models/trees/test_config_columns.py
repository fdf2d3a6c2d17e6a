"""Training on the configs of programs: siblings, resumed trainings, and sums of rankers."""

import zipfile
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.accuracy.tasks import write_configs
from common.errors import OutOfTime, PipelineError
from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs
from models.config.recipe import Recipe
from models.registry import TrainJob
from models.trees import config_columns
from models.trees.config_columns import ARCHIVE, load_config_columns, train_config_columns
from models.trees.program_trees import ProgramTrees
from models.trees.siblings import signature_of
from tests.models.trees.programs import NAME, costs, measured, other_program, resized, trained


def test_a_program_in_another_size_is_ranked_and_another_program_is_not(
    program: LayoutGraph, tmp_path: Path
) -> None:
    cost = costs(program)
    ranker = trained(measured(program, cost, tmp_path, 60), folder=tmp_path)
    scores = ranker.score(resized(program, 2, n_fewer_edges=5))
    assert scores is not None and kendall_tau(scores, cost) > 0.7
    opcodes = program.node_opcode.copy()
    opcodes[program.node_config_ids[0]] += 1
    assert ranker.score(replace(program, node_opcode=opcodes)) is None
    assert ranker.score(resized(program, 2, n_fewer_edges=30)) is None
    fewer = replace(program, node_config_ids=program.node_config_ids[1:])
    assert not signature_of(fewer).is_sibling(signature_of(program))


def test_the_own_program_ranks_alone_and_nearest_sizes_rank_first(
    program: LayoutGraph, tmp_path: Path
) -> None:
    cost = costs(program)
    for factor, sign in ((1, 1), (4, -1), (64, 1)):
        measured(resized(program, factor), sign * cost, tmp_path, 60)
    files = sorted((tmp_path / "npz").rglob("*.npz"))
    graphs = [read_layout(replace(program.file, name=f.stem, path=f)) for f in files]
    ranker = trained(*graphs, folder=tmp_path)

    def names(factor: float) -> list[str]:
        folders = ranker.siblings_of(resized(program, factor))
        return [ranker.programs[folder].name.rpartition("_")[2] for folder in folders]

    assert names(4) == ["4"] and names(1) == ["1"]
    assert names(5) == ["4", "1", "64"] and names(60) == ["64", "4", "1"]
    # Two of three siblings agree on the order.
    assert kendall_tau(ranker.score(resized(program, 5)), cost) > 0.3
    assert kendall_tau(ranker.score(resized(program, 4)), cost) < -0.7


@pytest.mark.parametrize("n_configs", [2, 9, 60])
def test_few_configs_are_learned(program: LayoutGraph, tmp_path: Path, n_configs: int) -> None:
    cost = costs(program)
    learned = measured(program, cost, tmp_path, n_configs)
    scores = trained(learned, folder=tmp_path).score(learned)
    assert scores is not None and np.isfinite(scores).all()
    assert kendall_tau(scores, learned.runtime_ns) > (0.8 if n_configs == 60 else -1)


def test_an_interrupted_training_resumes_with_the_same_files(
    program: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [measured(resized(program, factor), costs(program), tmp_path, 60) for factor in (1, 4)]
    trained(*graphs, folder=tmp_path / "whole")
    calls = iter([False, True])
    with monkeypatch.context() as patch:
        patch.setattr("models.trees.config_columns.out_of_time", lambda: next(calls))
        with pytest.raises(OutOfTime, match="1 of 2 graphs"):
            trained(*graphs, folder=tmp_path / "parts")
    (part,) = (tmp_path / "parts").iterdir()
    learned = []
    with monkeypatch.context() as patch:
        learn = config_columns._learn
        patch.setattr(
            config_columns,
            "_learn",
            lambda rows, *a, **k: learned.append(rows) or learn(rows, *a, **k),
        )
        trained(*graphs, folder=tmp_path / "parts")
    assert part.name == "program-000.part" and len(learned) == 1
    whole, parts = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("whole", "parts")
    )
    assert whole == parts and [*whole] == [ARCHIVE]


def test_a_model_without_a_usable_program_ranks_nothing(
    program: LayoutGraph, tmp_path: Path
) -> None:
    learned = measured(program, costs(program), tmp_path / "a", 60)
    other = measured(other_program(program), costs(program), tmp_path / "b", 60)
    recipe = Recipe(threads=1)
    train_config_columns(TrainJob(NAME, recipe, [learned.file], 0, tmp_path, None, [other.file]))
    assert load_config_columns(NAME, tmp_path, recipe).score(learned) is None


def test_scores_do_not_depend_on_the_other_configs_of_a_file(
    program: LayoutGraph, tmp_path: Path
) -> None:
    ranker = trained(measured(program, costs(program), tmp_path, 60), folder=tmp_path)
    few = read_layout(write_configs(program, np.arange(60, 70), tmp_path / "few", "test"))
    rows = np.isin(distinct_configs(program)[1], np.arange(60, 70))
    whole, part = ranker.score(program)[rows], ranker.score(few)
    np.testing.assert_allclose(whole - whole[0], part - part[0], atol=1e-4)


def test_a_damaged_or_missing_file_is_named(program: LayoutGraph, tmp_path: Path) -> None:
    learned = measured(program, costs(program), tmp_path, 60)
    ranker = trained(learned, folder=tmp_path)
    (tmp_path / ARCHIVE).write_bytes(b"PK")
    for use in (
        partial(load_config_columns, NAME, tmp_path, Recipe(threads=1)),
        partial(ranker.score, learned),
    ):
        with pytest.raises(PipelineError, match=f"{ARCHIVE}: cannot be used"):
            use()
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as archive:
        archive.writestr("000/program.json", "{}")
    with pytest.raises(PipelineError, match=f"{ARCHIVE}: cannot be used: .*name"):
        load_config_columns(NAME, tmp_path, Recipe(threads=1))


def test_scores_are_sums_of_the_rankers_scores_by_their_weights(
    program: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = measured(program, costs(program), tmp_path, 60)

    def scores(*weights: float) -> NDArray[np.float32]:
        of_rankers = dict(zip(("columns", "both", "linear"), weights, strict=True))
        monkeypatch.setattr(config_columns, "ranker_weights", lambda *_: of_rankers)
        found = trained(learned, folder=tmp_path / str(weights)).score(program)
        assert found is not None
        return found

    alone = scores(1, 0, 0), scores(0, 1, 0), scores(0, 0, 1)
    for one, other in combinations(alone, 2):
        assert np.abs(one - other).max() > 0.1
    expected = sum(weight * one for weight, one in zip((0.6, 0.1, 0.3), alone, strict=True))
    np.testing.assert_allclose(scores(0.6, 0.1, 0.3), expected, atol=1e-5)


def test_siblings_have_their_mean_score(program: LayoutGraph, tmp_path: Path) -> None:
    rng, sizes = np.random.default_rng(0), (4, 16, 64)
    graphs = [
        measured(resized(program, size), rng.permutation(program.n_configs) + 0.0, tmp_path, 60)
        for size in sizes
    ]
    ranked = resized(program, 8)
    alone = [trained(graph, folder=tmp_path / graph.file.name).score(ranked) for graph in graphs]
    together = trained(*graphs, folder=tmp_path / "all").score(ranked)
    np.testing.assert_allclose(together, np.mean(alone, axis=0), atol=1e-5)


def test_a_program_with_few_features_has_a_forest(
    program: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.trees.program_trees.FOREST_CONFIGS_PER_FEATURE", 0)
    stacked = {"both": 0.75, "forest": 0.25}
    monkeypatch.setattr(ProgramTrees, "stacked_weights", lambda *_: stacked)
    ranker = trained(measured(program, costs(program), tmp_path, 60), folder=tmp_path)
    assert [learned.weights for learned in ranker.programs.values()] == [stacked]
    assert kendall_tau(ranker.score(program), costs(program)) > 0.5
