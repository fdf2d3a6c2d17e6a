"""The plain steps do what the winners' do, and the benchmark's table names every step."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed import packing, packing_steps, plain_steps
from data.read import read_layout
from data.synthetic import GraphSize, write_sized
from data.tree import GraphFile, collection_named

SIZE = GraphSize(700, 30, 400)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GraphFile:
    folder = tmp_path_factory.mktemp("plain")
    return write_sized(folder, SIZE, collection=collection_named("layout:nlp:default"))


@pytest.mark.parametrize("by_matrix", [True, False])
def test_the_plain_steps_keep_first_configs_and_near_nodes(
    by_matrix: bool, file: GraphFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_steps, "compares_each_with_each", lambda n_configs: by_matrix)
    plain_steps.plain_steps(file.path, tmp_path / "out.npz")
    made, graph = plain_steps.load(tmp_path / "out.npz"), read_layout(file)
    configs = graph.configs.rows(np.arange(SIZE.n_configs))
    seen: dict[bytes, int] = {}
    for row, config in enumerate(configs):
        seen.setdefault(config.tobytes(), row)
    first = sorted(seen.values())
    assert 0 < len(first) < SIZE.n_configs
    digits = made["node_config_feat"][..., None] // 7 ** np.arange(6) % 7
    assert (digits.reshape(len(first), -1, 18) - 1 == configs[first]).all()
    assert (made["config_runtime"] == graph.runtime_ns[first]).all()
    near = set(graph.node_config_ids.tolist())
    for edge in graph.edge_index.tolist():
        if set(edge) & set(graph.node_config_ids.tolist()):
            near |= set(edge)
    kept = np.array(sorted(near))
    assert (made["node_feat"] == graph.node_feat[kept]).all()
    assert (kept[made["node_config_ids"]] == graph.node_config_ids).all()
    consumed = {tuple(edge) for edge in kept[made["edge_index"]].tolist()}
    assert consumed <= {tuple(edge) for edge in graph.edge_index.tolist()} and consumed


def test_matrices_are_made_only_where_they_fit() -> None:
    assert plain_steps.compares_each_with_each(50_000)
    assert not plain_steps.compares_each_with_each(70_000)


@pytest.mark.parametrize("name", packing_steps.STEPS)
def test_each_step_costs_something_and_has_a_row(
    name: str, file: GraphFile, tmp_path: Path
) -> None:
    cost = packing_steps.cost_of(packing_steps.STEPS[name], file.path, tmp_path)
    assert cost.wall_s > 0 and cost.peak_mib > 1
    assert (cost.bytes_out > 0) == (name != "inflate")
    header, _, row = packing.cost_table({name: [cost, cost]})
    assert header.count("|") == row.count("|") and packing.LABELS[name] in row


def test_ratios_compare_best_with_best() -> None:
    seconds = {
        "inflate": (1.0, 2.0, 9.0),
        "prepare": (1.5, 2.0, 2.0),
        "winners": (30.0, 60.0, 60.0),
    }
    costs = {
        step: [packing_steps.Cost(wall, wall, 1.0, 0) for wall in walls]
        for step, walls in seconds.items()
    }
    _, _, packing_row, winners_row = packing.ratio_lines(costs)
    assert "| 1.50 | 1.00 |" in packing_row and "| 20.00 | 30.00 |" in winners_row


def test_the_section_is_measured_in_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ROUNDS", 1)
    lines = packing.section(tmp_path, GraphSize(300, 10, 20))
    assert lines[0].startswith("300 nodes, 10 configurable, 20 configs")
    for label in packing.LABELS.values():
        assert sum(label in line for line in lines) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
