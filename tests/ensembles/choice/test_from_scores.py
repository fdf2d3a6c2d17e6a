"""How many labelled graphs a choice of a blend takes."""

from pathlib import Path

import polars as pl

from data.tree import GraphFile, collection_named
from ensembles.choice.from_scores import RUNTIME_SCHEMA, Labelled

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
