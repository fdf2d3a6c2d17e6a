"""The embedded sample: all collections and splits, small files and no withheld labels."""

import json

import pytest

from common.settings import SAMPLE
from data.audit import audit
from data.graph_store.stored_graph import read_graph
from data.labels import labels_of, read_withheld
from data.tree import find_graphs, missing_parts

MIN_SPREAD = 1.2

FILES = find_graphs(SAMPLE)
MANIFEST = json.loads((SAMPLE / "manifest.json").read_text())


def test_sample_is_small_and_has_every_collection_and_split() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*")) < 12 << 20
    assert missing_parts(FILES) == []
    layouts = [file for file in FILES if file.collection.kind == "layout"]
    entries = [MANIFEST["graphs"][file.submission_id] for file in layouts]
    assert len({entry["program"] for entry in entries}) >= 60
    assert len({entry["family"] for entry in entries}) >= 36
    assert max(entry["n_nodes"] for entry in entries) > 2_000
    assert all(entry["n_configs"] >= 80 for entry in entries)
    kernels = [file.split for file in FILES if file.collection.kind == "tile"]
    assert len(kernels) >= 300 and kernels.count("valid") >= 100
    assert all(row.error is None for row in audit(FILES))


def test_every_graph_is_in_the_manifest_as_it_was_measured() -> None:
    withheld = read_withheld(SAMPLE)
    names = {file.submission_id for file in FILES if file.split == "test"}
    assert withheld.keys() == names
    assert set(MANIFEST["graphs"]) == {file.submission_id for file in FILES}
    for file in FILES:
        entry = MANIFEST["graphs"][file.submission_id]
        graph = read_graph(file)
        runtime_ns = withheld.get(file.submission_id, labels_of(graph)).runtime_ns
        assert graph.is_labelled == (file.split != "test")
        assert entry["split"] == file.split
        assert entry["n_configs"] == len(runtime_ns) == graph.n_configs
        assert entry["spread"] == pytest.approx(runtime_ns.max() / runtime_ns.min(), rel=1e-5)
        assert entry["spread"] >= MIN_SPREAD
        assert entry["environment"] in MANIFEST["environments"]
