"""Training on the configs of programs: siblings, resumed trainings, and sums of rankers."""

import csv
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
from data.graphs.graph import LayoutGraph, program_content
from data.graphs.node_columns import SHAPE_PRODUCT
from features.statistics.configs import statistics_names, statistics_of
from models.config.recipe import Recipe
from models.config.trees import ConfigColumnsConfig
from models.registry import TrainJob
from models.trees import config_columns
from models.trees.config_columns import (
    ARCHIVE,
    ConfigColumnsRanker,
    load_config_columns,
    train_config_columns,
)
from models.trees.program_trees import ProgramTrees
from models.trees.siblings import Signature, are_near, signature_of, used_programs
from tests.features.graphs import random_layout_graph
from tests.models.rearrange import relabel_nodes
from tests.support.real_data import REAL, requires_real_data

RECIPE = Recipe(threads=1, config_columns_boosting=ConfigColumnsConfig(num_boost_round=40))
load = partial(load_config_columns, "config_columns_boosting", recipe=RECIPE)


def job_of(*learned: LayoutGraph, folder: Path) -> TrainJob:
    files = [graph.file for graph in learned]
    return TrainJob("config_columns_boosting", RECIPE, files, 0, folder)


def trained(*learned: LayoutGraph, folder: Path) -> ConfigColumnsRanker:
    train_config_columns(job_of(*learned, folder=folder))
    return load(folder)


def measured(
    program: LayoutGraph, cost: NDArray[np.float64], folder: Path, at_most: int = 60
) -> LayoutGraph:
    """The program with runtimes that grow with a cost (c,), and its first distinct configs."""
    runtime_ns = 1e6 * (1 + (cost - cost.min()) / np.ptp(cost))
    changed = replace(program, runtime_ns=runtime_ns.astype(np.int64))
    return read_layout(write_configs(changed, np.arange(at_most), folder, "train"))


def costs(program: LayoutGraph) -> NDArray[np.float32]:
    """One statistic of each config; (c,)."""
    which = statistics_names("layout", "all").index("fixed_operand_copied_bytes")
    return statistics_of(program, "all")(np.arange(program.n_configs))[:, which]


@pytest.fixture
def learned(program: LayoutGraph, tmp_path: Path) -> LayoutGraph:
    return measured(program, costs(program), tmp_path)


def resized(program: LayoutGraph, factor: float, n_fewer_edges: int = 0) -> LayoutGraph:
    """The program in another size."""
    features = program.node_feat.copy()
    features[:, SHAPE_PRODUCT] *= factor
    file = replace(program.file, name=f"{program.file.name}_{factor:g}")
    edges = program.edge_index[n_fewer_edges:]
    return replace(program, file=file, node_feat=features, edge_index=edges)


def other_program(program: LayoutGraph) -> LayoutGraph:
    """A program with other opcodes, which is no sibling."""
    opcodes = program.node_opcode.copy()
    opcodes[program.node_config_ids] += 1
    file = replace(program.file, name="other")
    return replace(program, node_opcode=opcodes, file=file)


def test_a_program_is_known_by_its_content_and_any_small_change_makes_another() -> None:
    contents = set()
    for seed in range(30):
        graph = random_layout_graph(seed)
        content = program_content(graph)
        contents.add(content)
        order = np.random.default_rng(seed).permutation(graph.n_nodes)
        assert program_content(relabel_nodes(graph, order)) == content
        assert program_content(replace(graph, runtime_ns=np.ones(3))) == content
        if min(len(graph.edge_index), len(graph.node_config_ids)) > 3:
            features, opcode = graph.node_feat.copy(), graph.node_opcode.copy()
            features[0, 50] += 1
            opcode[-1] += 1
            turned = graph.node_config_ids[::-1]  # its configs mean other nodes
            changes = {"node_feat": features, "node_opcode": opcode, "node_config_ids": turned}
            changes["edge_index"] = graph.edge_index[1:]
            for name, value in changes.items():
                assert program_content(replace(graph, **{name: value})) != content, name
    assert len(contents) == 30


def test_a_sibling_of_the_same_collection_is_nearer() -> None:
    program = Signature(content="a", opcodes="o", n_edges=9, log_size=1, collection="xla")
    other = program.model_copy(update={"content": "b", "collection": "nlp"})
    larger = program.model_copy(update={"content": "c", "log_size": 7.0})
    assert sorted([other, larger, program], key=program.distance) == [program, larger, other]


@pytest.mark.parametrize(
    ("n_edges", "near", "far"),
    [(749, 769, 790), (16_696, 16_800, 17_000), (410, 425, 431), (148, 155, 166)],
)
def test_few_edges_may_differ_and_a_tenth_of_a_small_graph_may_not(
    n_edges: int, near: int, far: int
) -> None:
    assert are_near(n_edges, near) and not are_near(n_edges, far)


@requires_real_data
def test_published_test_graphs_have_siblings_by_their_numbers_of_edges() -> None:
    """17 of 17 nlp graphs, and 6 of 8 xla graphs."""
    path = REAL / "stats" / "layout_file_stats.csv"
    if not path.is_file():
        pytest.skip(f"{REAL} has no {path.name}")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    for source, counts in (("nlp", (17, 17)), ("xla", (6, 8))):
        of_source = [row for row in rows if row["collection"].split(":")[1] == source]
        test = [int(row["n_edges"]) for row in of_source if row["split"] == "test"]
        others = [int(row["n_edges"]) for row in of_source if row["split"] != "test"]
        has_sibling = [any(are_near(n, other) for other in others) for n in test]
        assert (sum(has_sibling), len(has_sibling)) == counts


def test_only_programs_that_rank_a_graph_are_learned(
    program: LayoutGraph, learned: LayoutGraph, tmp_path: Path
) -> None:
    sizes = [measured(resized(program, factor), costs(program), tmp_path) for factor in (4, 64)]
    files = [learned.file, *(graph.file for graph in sizes)]
    other = measured(other_program(program), costs(program), tmp_path / "other").file
    near = measured(resized(program, 5), costs(program), tmp_path / "near").file
    assert used_programs([*files, other], [near]) == files
    assert used_programs([*files, other], [files[1]]) == [files[1]]
    # Without graphs to rank, all programs are learned.
    assert used_programs(files, []) == files
    job = replace(job_of(*sizes, learned, folder=tmp_path), ranked=[other])
    train_config_columns(job)
    assert load(tmp_path).score(learned) is None


def test_a_program_in_another_size_is_ranked_and_another_program_is_not(
    program: LayoutGraph, learned: LayoutGraph, tmp_path: Path
) -> None:
    ranker = trained(learned, folder=tmp_path)
    scores = ranker.score(resized(program, 2, n_fewer_edges=5))
    assert scores is not None and kendall_tau(scores, costs(program)) > 0.7
    opcodes = program.node_opcode.copy()
    opcodes[program.node_config_ids[0]] += 1
    assert ranker.score(replace(program, node_opcode=opcodes)) is None
    assert ranker.score(resized(program, 2, n_fewer_edges=30)) is None
    fewer = replace(program, node_config_ids=program.node_config_ids[1:])
    assert not signature_of(fewer).is_sibling(signature_of(program))


def test_the_program_itself_ranks_alone_and_nearest_sizes_rank_first(
    program: LayoutGraph, tmp_path: Path
) -> None:
    cost = costs(program)
    signs = {1: 1, 4: -1, 64: 1}
    graphs = [measured(resized(program, f), sign * cost, tmp_path) for f, sign in signs.items()]
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
    graph = measured(program, costs(program), tmp_path, n_configs)
    scores = trained(graph, folder=tmp_path).score(graph)
    assert scores is not None and np.isfinite(scores).all()
    assert kendall_tau(scores, graph.runtime_ns) > (0.8 if n_configs == 60 else -1)


def test_an_interrupted_training_resumes_with_the_same_files(
    program: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [measured(resized(program, factor), costs(program), tmp_path) for factor in (1, 4)]
    trained(*graphs, folder=tmp_path / "whole")
    calls = iter([False, True])
    with monkeypatch.context() as patch:
        patch.setattr(config_columns, "out_of_time", lambda: next(calls))
        with pytest.raises(OutOfTime, match="1 of 2 graphs"):
            trained(*graphs, folder=tmp_path / "parts")
    (part,) = (tmp_path / "parts").iterdir()
    names, learn = [], config_columns._learn
    with monkeypatch.context() as patch:
        patch.setattr(
            config_columns,
            "_learn",
            lambda rows, *a, **k: names.append(rows.file.name) or learn(rows, *a, **k),
        )
        trained(*graphs, folder=tmp_path / "parts")
    assert part.name == "program-000.part" and names == [graphs[1].file.name]
    whole, parts = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("whole", "parts")
    )
    assert whole == parts and [*whole] == [ARCHIVE]


def test_a_damaged_or_missing_file_is_named(learned: LayoutGraph, tmp_path: Path) -> None:
    ranker = trained(learned, folder=tmp_path)
    (tmp_path / ARCHIVE).write_bytes(b"PK")
    for use in (partial(load, tmp_path), partial(ranker.score, learned)):
        with pytest.raises(PipelineError, match=f"{ARCHIVE}: cannot be used"):
            use()
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as archive:
        archive.writestr("000/program.json", "{}")
    with pytest.raises(PipelineError, match=f"{ARCHIVE}: cannot be used: .*name"):
        load(tmp_path)


def test_scores_are_sums_of_the_rankers_scores_by_their_weights(
    program: LayoutGraph, learned: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(*weights: float) -> NDArray[np.float32]:
        of_rankers = dict(zip(("columns", "both", "linear"), weights, strict=True))
        monkeypatch.setattr(config_columns, "ranker_weights", lambda *_: of_rankers)
        total = trained(learned, folder=tmp_path / str(weights)).score(program)
        assert total is not None
        return total

    alone = scores(1, 0, 0), scores(0, 1, 0), scores(0, 0, 1)
    for first, second in combinations(alone, 2):
        assert np.abs(first - second).max() > 0.1
    expected = sum(weight * part for weight, part in zip((0.6, 0.1, 0.3), alone, strict=True))
    np.testing.assert_allclose(scores(0.6, 0.1, 0.3), expected, atol=1e-5)


def test_siblings_have_their_mean_score(program: LayoutGraph, tmp_path: Path) -> None:
    rng, sizes = np.random.default_rng(0), (4, 16, 64)
    graphs = [
        measured(resized(program, size), rng.permutation(program.n_configs) + 0.0, tmp_path)
        for size in sizes
    ]
    sibling = resized(program, 8)
    alone = [trained(graph, folder=tmp_path / graph.file.name).score(sibling) for graph in graphs]
    together = trained(*graphs, folder=tmp_path / "all").score(sibling)
    np.testing.assert_allclose(together, np.mean(alone, axis=0), atol=1e-5)


def test_a_program_with_few_features_has_a_forest(
    program: LayoutGraph, learned: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.trees.program_trees.FOREST_CONFIGS_PER_FEATURE", 0)
    stacked = {"both": 0.75, "forest": 0.25}
    monkeypatch.setattr(ProgramTrees, "stacked_weights", lambda *_: stacked)
    ranker = trained(learned, folder=tmp_path)
    assert [program.weights for program in ranker.programs.values()] == [stacked]
    assert kendall_tau(ranker.score(program), costs(program)) > 0.5
