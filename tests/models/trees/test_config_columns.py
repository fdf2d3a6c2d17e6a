"""Trees on config columns: the features, siblings, and the rankers of each train graph."""

import csv
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.tasks import write_configs
from common.errors import OutOfTime, PipelineError
from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs, program_content
from data.graphs.node_columns import SHAPE_PRODUCT
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import collection_named
from features.statistics.configs import statistics_names, statistics_of
from models.config.recipe import Recipe
from models.config.trees import ConfigColumnsConfig
from models.registry import TrainJob
from models.trees import config_columns
from models.trees.config_columns import (
    ARCHIVE,
    ConfigColumnsRanker,
    column_features,
    load,
    ranker_weights,
    train,
)
from models.trees.siblings import Signature, are_near, signature_of, used_programs
from tests.features.graphs import random_layout_graph
from tests.models.rearrange import relabel_nodes
from tests.support.real_data import REAL, requires_real_data

NAME = "config_columns_boosting"


def test_features_are_one_hot_layouts_of_tensors() -> None:
    for seed in range(10):
        graph = random_layout_graph(seed)
        rows = np.arange(graph.n_configs)
        # The other rows have layouts that are not in these two rows.
        few = column_features(graph, rows[:2])
        features = column_features(graph, rows)
        table = features.table(graph, rows)
        values = graph.configs.rows(rows).reshape(len(rows), -1, 3, 6).tolist()
        for one in (few, features):
            want = [
                [float(config[node][tensor] == layout) for config in values]
                for node, tensor, layout in zip(one.node, one.tensor, one.layout, strict=True)
            ]
            found = one.table(graph, rows)
            np.testing.assert_array_equal(found.T, np.asarray(want).reshape(-1, len(rows)))
        assert len(set(features.names())) == len(features.names())
        # Distinct configs have distinct features, and no feature is a duplicate.
        first, _ = distinct_configs(graph)
        assert len(np.unique(table[first], axis=0)) == len(first)
        columns = {tuple(column) for column in table.T.tolist()}
        assert len(columns) == table.shape[1]
        assert not columns & {tuple(1 - value for value in column) for column in columns}


def test_a_program_is_told_by_its_content_and_any_small_change_makes_another() -> None:
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


def trained(*learned: LayoutGraph, folder: Path, rounds: int = 40) -> ConfigColumnsRanker:
    config = ConfigColumnsConfig(num_boost_round=rounds)
    recipe = Recipe(threads=1, config_columns_boosting=config)
    train(TrainJob(NAME, recipe, [graph.file for graph in learned], 0, folder))
    return load(NAME, folder, recipe)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> LayoutGraph:
    """A program with 79 distinct configs of 34 columns."""
    folder, collection = tmp_path_factory.mktemp("program"), collection_named("layout:xla:default")
    return read_layout(write_sized(folder, GraphSize(300, 8, 150), collection=collection))


def measured(program: LayoutGraph, cost: np.ndarray, folder: Path, at_most: int) -> LayoutGraph:
    """The program with runtimes that grow with a cost (c,), and its first distinct configs."""
    runtime_ns = 1e6 * (1 + (cost - cost.min()) / np.ptp(cost))
    changed = replace(program, runtime_ns=runtime_ns.astype(np.int64))
    return read_layout(write_configs(changed, np.arange(at_most), folder, "train"))


def costs(program: LayoutGraph) -> np.ndarray:
    """One statistic of each config; (c,)."""
    which = statistics_names("layout", "all").index("fixed_operand_copied_bytes")
    return statistics_of(program, "all")(np.arange(program.n_configs))[:, which]


def resized(program: LayoutGraph, factor: float, n_fewer_edges: int = 0) -> LayoutGraph:
    """The program in another size."""
    features = program.node_feat.copy()
    features[:, SHAPE_PRODUCT] *= factor
    edges = program.edge_index[n_fewer_edges:]
    name = f"{program.file.name}_{factor:g}"
    file = replace(program.file, name=name)
    return replace(program, file=file, node_feat=features, edge_index=edges)


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


def test_a_sibling_of_the_same_collection_is_nearer() -> None:
    own = Signature(content="a", opcodes="o", n_edges=9, log_size=1, collection="xla")
    other = own.model_copy(update={"content": "b", "collection": "nlp"})
    resized = own.model_copy(update={"content": "c", "log_size": 7.0})
    assert sorted([other, resized, own], key=own.distance) == [own, resized, other]


@requires_real_data
def test_published_test_graphs_have_siblings_by_their_numbers_of_edges() -> None:
    """17 of 17 nlp graphs, and 6 of 8 xla graphs."""
    path = REAL / "stats" / "layout_file_stats.csv"
    if not path.is_file():
        pytest.skip(f"{REAL} has no {path.name}")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    found = {"nlp": [], "xla": []}
    for row in rows:
        source = row["collection"].split(":")[1]
        if row["split"] == "test":
            found[source].append(
                any(
                    are_near(int(row["n_edges"]), int(other["n_edges"]))
                    for other in rows
                    if other["split"] != "test" and source in other["collection"]
                )
            )
    assert {source: (sum(has), len(has)) for source, has in found.items()} == {
        "nlp": (17, 17),
        "xla": (6, 8),
    }


def test_few_edges_may_differ_and_a_tenth_of_a_small_graph_may_not() -> None:
    assert are_near(749, 769) and are_near(16_696, 16_800) and are_near(410, 425)
    assert not are_near(148, 166) and not are_near(749, 790) and not are_near(8_694, 8_800)


@pytest.mark.parametrize(
    ("n_configs", "n_features", "third", "weight"),
    [
        (90, 300, "linear", 1 / 3),
        (1000, 500, "linear", 0.1 / 2.1),
        (90, 30, "forest", 1 / 3),
        (5000, 30, None, 0),
        (20000, 300, None, 0),
    ],
)
def test_the_third_ranker_follows_from_configs_and_features(
    n_configs: int, n_features: int, third: str | None, weight: float
) -> None:
    weights = ranker_weights(n_configs, n_features)
    assert sum(weights.values()) == pytest.approx(1)
    boosters = ["columns", "both"][: 2 if n_configs <= 10_000 else 1]
    assert [*weights] == [*boosters, *([third] if third else [])]
    assert weights.get(third, 0) == pytest.approx(weight)


def test_many_configs_get_larger_trees(
    program: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = measured(program, costs(program), tmp_path, 60)
    few = trained(learned, folder=tmp_path / "few")
    monkeypatch.setattr("models.trees.config_columns.MAX_FEW_CONFIGS", 30)
    many = trained(learned, folder=tmp_path / "many")
    n_trees = [
        zipfile.ZipFile(tmp_path / name / ARCHIVE).read("000/columns.txt").count(b"\nTree=")
        for name in ("few", "many")
    ]
    assert n_trees == [40, 200]
    assert [[*p.weights] for r in (few, many) for p in r.programs.values()] == [
        ["columns", "both", "linear"],
        ["columns", "both"],
    ]


def test_cross_validation_weighs_the_rankers_next_to_a_forest(
    program: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.trees.config_columns.FOREST_CONFIGS_PER_FEATURE", 0)
    noise = np.random.default_rng(1).permutation(program.n_configs).astype(float)
    weights = {}
    for name, cost in {"statistic": costs(program), "noise": noise}.items():
        learned = measured(program, cost, tmp_path / name, 79)
        ranker = trained(learned, folder=tmp_path / name)
        (weights[name],) = (learned.weights for learned in ranker.programs.values())
    # Only trees on statistics see the cost.
    assert weights["statistic"].get("both", 0) > 0.6
    assert all(sum(of.values()) == pytest.approx(1) for of in weights.values())


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


def test_only_programs_that_rank_a_graph_are_learned(program: LayoutGraph, tmp_path: Path) -> None:
    for factor in (1, 4, 64):
        measured(resized(program, factor), costs(program), tmp_path, 60)
    files = sorted((tmp_path / "npz").rglob("*.npz"))
    files = [replace(program.file, name=file.stem, path=file) for file in files]
    opcodes = program.node_opcode.copy()
    opcodes[program.node_config_ids] += 1
    other = replace(program, node_opcode=opcodes, file=replace(program.file, name="other"))
    other = measured(other, costs(program), tmp_path / "other", 60).file
    near = measured(resized(program, 5), costs(program), tmp_path / "near", 60).file
    assert used_programs([*files, other], [near]) == files
    assert used_programs([*files, other], [files[1]]) == [files[1]]
    assert used_programs(files, [other]) == []
    # Without graphs to rank, all programs are learned.
    assert used_programs(files, []) == files


def test_a_model_without_a_usable_program_ranks_nothing(
    program: LayoutGraph, tmp_path: Path
) -> None:
    opcodes = program.node_opcode.copy()
    opcodes[program.node_config_ids] += 1
    learned = measured(program, costs(program), tmp_path / "a", 60)
    other = measured(replace(program, node_opcode=opcodes), costs(program), tmp_path / "b", 60)
    recipe = Recipe(threads=1)
    train(TrainJob(NAME, recipe, [learned.file], 0, tmp_path, None, [other.file]))
    assert load(NAME, tmp_path, recipe).score(learned) is None


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
    for use in (partial(load, NAME, tmp_path, Recipe(threads=1)), partial(ranker.score, learned)):
        with pytest.raises(PipelineError, match=f"{ARCHIVE}: cannot be used"):
            use()
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as archive:
        archive.writestr("000/program.json", "{}")
    with pytest.raises(PipelineError, match=f"{ARCHIVE}: cannot be used: .*name"):
        load(NAME, tmp_path, Recipe(threads=1))
