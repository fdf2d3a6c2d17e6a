"""Trees on one program's own configs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.tasks import write_configs
from common.errors import PipelineError
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs, program_content
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import collection_named, find_graphs
from features.statistics.configs import statistics_names, statistics_of
from models.config.recipe import ConfigColumnsConfig, Recipe
from models.registry import TrainJob
from models.trees.boosting import read_importances
from models.trees.linear import MODEL_FILE as LINEAR_FILE
from models.trees.one_program import (
    COLUMNS_FILE,
    FILES,
    THIRD,
    choose_weights,
    column_features,
    load,
    train,
)
from models.trees.rows import GraphRows
from tests.features.graphs import random_layout_graph
from tests.models.rearrange import relabel_nodes

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


def trained(learned: LayoutGraph, folder: Path, rounds: int = 3) -> Recipe:
    config = ConfigColumnsConfig(num_boost_round=rounds)
    recipe = Recipe(threads=1, config_columns_boosting=config)
    train(TrainJob(NAME, recipe, [learned.file], 0, folder))
    return recipe


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
    """Return the value of one statistic for each config, (c,)."""
    which = statistics_names("layout", "all").index("fixed_operand_copied_bytes")
    return statistics_of(program, "all")(np.arange(program.n_configs))[:, which]


@pytest.mark.parametrize("ahead", [None, *THIRD])
def test_a_third_ranker_joins_where_it_is_ahead(program: LayoutGraph, ahead: str | None) -> None:
    rng, truth = np.random.default_rng(0), np.arange(60.0)
    scores = {name: truth + 30 * rng.normal(size=60) for name in ("columns", "both")}
    scores |= {name: truth if name == ahead else rng.normal(size=60) for name in THIRD}
    rankers = {
        name: SimpleNamespace(score_rows=lambda _, rows, own=own: own[rows])
        for name, own in scores.items()
    }
    trainers: Any = {name: lambda _, ranker=ranker: ranker for name, ranker in rankers.items()}
    weights = choose_weights(program, trainers, GraphRows(program.file, np.arange(60), truth), 5)
    assert [*weights] == ["columns", "both", *([ahead] if ahead else [])]
    assert weights == {name: pytest.approx(1 / scores[name].std()) for name in weights}


@pytest.mark.parametrize("third", THIRD)
def test_all_rankers_that_were_chosen_are_kept_and_summed(
    program: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, third: str
) -> None:
    chosen = {"columns": 1.0, "both": 0.5, third: 2.0}
    monkeypatch.setattr("models.trees.one_program.choose_weights", lambda *_: chosen)
    learned = measured(program, costs(program), tmp_path, 60)
    ranker = load(NAME, tmp_path, trained(learned, tmp_path, 40))
    assert [*ranker.rankers] == [*chosen] and ranker.weights == chosen
    assert all((tmp_path / FILES[name]).exists() == (name in chosen) for name in FILES)
    assert "fixed_operand_copied_bytes" in read_importances([tmp_path])["statistic"].to_list()
    scores = [own.score(program) * chosen[name] for name, own in ranker.rankers.items()]
    np.testing.assert_allclose(ranker.score(program), np.sum(scores, axis=0), rtol=1e-5)


@pytest.mark.parametrize("n_configs", [2, 19])
def test_of_few_configs_columns_are_learned_alone(
    program: LayoutGraph, tmp_path: Path, n_configs: int
) -> None:
    cost = np.arange(program.n_configs, dtype=float)
    learned = measured(program, cost, tmp_path, n_configs)
    assert [*load(NAME, tmp_path, trained(learned, tmp_path)).rankers] == ["columns"]


def test_scores_do_not_depend_on_what_else_a_file_holds(
    program: LayoutGraph, tmp_path: Path
) -> None:
    learned = measured(program, costs(program), tmp_path, 60)
    ranker = load(NAME, tmp_path, trained(learned, tmp_path, 40))
    few = read_layout(write_configs(program, np.arange(60, 70), tmp_path / "few", "test"))
    rows = np.isin(distinct_configs(program)[1], np.arange(60, 70))
    whole, part = ranker.score(program)[rows], ranker.score(few)
    np.testing.assert_allclose(whole - whole[0], part - part[0], atol=1e-4)


def test_a_damaged_or_missing_file_is_named(program: LayoutGraph, tmp_path: Path) -> None:
    recipe = trained(measured(program, costs(program), tmp_path, 60), tmp_path, 40)
    paths = [path for path in tmp_path.iterdir() if path.suffix in (".json", ".txt")]
    known = {path: path.read_text() for path in paths}
    other = known[tmp_path / COLUMNS_FILE].replace('"columns":', '"sums":')
    assert {tmp_path / LINEAR_FILE, tmp_path / FILES["both"]} <= known.keys()
    for path, text in known.items():
        for damaged in ("{}", other, None):
            path.unlink() if damaged is None else path.write_text(damaged)
            with pytest.raises(PipelineError, match=path.name):
                load(NAME, tmp_path, recipe)
        path.write_text(text)


def test_other_programs_are_refused_in_one_line(
    program: LayoutGraph, tiny_tree: Path, tmp_path: Path
) -> None:
    learned = measured(program, costs(program), tmp_path, 19)
    ranker = load(NAME, tmp_path, trained(learned, tmp_path))
    graphs = [read_layout(f) for f in find_graphs(tiny_tree) if f.collection.kind == "layout"]
    other = next(g for g in graphs if g.n_nodes != learned.n_nodes)
    with pytest.raises(PipelineError, match=f"another program than {learned.file.name}") as error:
        ranker.score(other)
    assert "\n" not in str(error.value)
    files = [graph.file for graph in graphs[:2]]
    with pytest.raises(PipelineError, match=r"2 graphs .* expected one train file"):
        train(TrainJob(NAME, Recipe(), files, 0, tmp_path))
