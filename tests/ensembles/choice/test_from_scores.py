"""How many labelled graphs a choice of a blend takes, and which of their configs."""

from pathlib import Path

import polars as pl

from data.tree import GraphFile, collection_named, find_graphs
from ensembles.choice.from_scores import RUNTIME_SCHEMA, Labelled, labelled
from models.predict import read_ahead, sampled, scores_table
from models.trees.baselines import FLOORS

XLA = collection_named("layout:xla:default")


def choosing(*names: str) -> Labelled:
    files = [GraphFile(XLA, "valid", name, Path(f"{name}.npz")) for name in names]
    return Labelled(files, pl.DataFrame(schema=RUNTIME_SCHEMA))


def test_the_seven_graphs_of_an_official_xla_split_suffice() -> None:
    names = ("bert", "inception", "resnet50", "resnet_v1", "tf2_bert", "unet_3d", "mlperf_ssd")
    assert choosing(*names).too_few() is None


def test_few_graphs_or_few_families_do_not() -> None:
    assert "3 labelled graphs" in str(choosing("bert", "unet_3d", "inception").too_few())
    siblings = choosing(*(f"unet_3d.{n}x{n}.fp32" for n in range(2, 12)))
    assert "10 labelled graphs of 1 families; a choice needs" in str(siblings.too_few())


def test_configs_that_nobody_has_scored_have_no_say(tiny_tree: Path) -> None:
    files = find_graphs(tiny_tree, collections=(XLA,), splits=("train",))
    by, subsets = labelled(files), sampled(files, 5)
    graphs = list(read_ahead(files, subsets))
    table = pl.concat(scores_table(graph, FLOORS["layout"].score(graph)) for graph in graphs)
    scored = by.scored_by({"a": table, "b": table}).runtimes
    assert scored.select("graph", "config").equals(table.select("graph", "config"))
    assert by.scored_by({"a": table.filter(pl.col("graph") != files[0].name)}) is by
