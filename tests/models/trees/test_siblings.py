"""Programs and their siblings are recognised."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.graphs.graph import LayoutGraph, program_content
from models.trees.siblings import Signature, are_near, used_programs
from tests.features.graphs import random_layout_graph
from tests.models.rearrange import relabel_nodes
from tests.models.trees.programs import costs, measured, other_program, resized
from tests.support.real_data import REAL, requires_real_data


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


def test_only_programs_that_rank_a_graph_are_learned(program: LayoutGraph, tmp_path: Path) -> None:
    for factor in (1, 4, 64):
        measured(resized(program, factor), costs(program), tmp_path, 60)
    files = sorted((tmp_path / "npz").rglob("*.npz"))
    files = [replace(program.file, name=file.stem, path=file) for file in files]
    other = measured(other_program(program), costs(program), tmp_path / "other", 60).file
    near = measured(resized(program, 5), costs(program), tmp_path / "near", 60).file
    assert used_programs([*files, other], [near]) == files
    assert used_programs([*files, other], [files[1]]) == [files[1]]
    assert used_programs(files, [other]) == []
    # Without graphs to rank, all programs are learned.
    assert used_programs(files, []) == files
