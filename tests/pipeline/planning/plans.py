"""Made-up sizes and laws for tests of plans: every unit costs a round number."""

from data.official.sizes import PartSize
from pipeline.planning.laws import Laws, PowerLaw

LAYOUT, TILE = "layout:xla:random", "tile:xla"
NETWORKS = ("cross_config_sage", "global_attention_sage", "late_fusion_sage", "early_fusion_sage")


def part(
    collection: str, split: str, graphs: int, *, nodes: int = 1000, configs: int = 100
) -> PartSize:
    """Return a part whose graphs are all alike and repeat no config."""
    return PartSize(
        collection, split, graphs, nodes, nodes, 2 * nodes, configs, configs, 0.0, "files"
    )


SIZES = [
    part(LAYOUT, "train", 10),
    part(LAYOUT, "valid", 2),
    part(LAYOUT, "test", 3),
    part(TILE, "train", 20, nodes=40),
    part(TILE, "test", 5, nodes=40),
]


def made_up_laws() -> Laws:
    """Return laws of round numbers: a step takes 1 s, ranking a graph 36, packing one 2."""
    seconds = {"layout statistics": 5.0, "tile statistics": 6.0}
    for kind in ("layout", "tile"):
        seconds |= {f"{kind} prepare": 2.0, f"{kind} score": 4.0, f"rank {kind}_linear": 0.5}
        seconds |= {f"rank {kind}_boosting": 3.0, f"round {kind}_boosting": 0.25}
    seconds |= {f"step {model}": 1.0 for model in NETWORKS}
    seconds |= {f"rank {model}": 36.0 for model in NETWORKS}
    mib = {f"{kind} {what}": 1.0 for kind in ("layout", "tile") for what in ("raw", "store")}
    mib |= {f"{kind} scores of a config": 0.001 for kind in ("layout", "tile")}
    laws = {name: PowerLaw(value, {}) for name, value in mib.items()}
    for model in ("cross_config_sage", "global_attention_sage"):
        laws[f"train {model}"] = PowerLaw(0.01, {"kept": 1.0, "configs_per_step": 1.0})
        laws[f"rank {model}"] = PowerLaw(10.0, {})
    for model in ("late_fusion_sage", "early_fusion_sage"):
        laws[f"train {model}"] = PowerLaw(1.0, {"pairs": 1.0})
    return Laws(
        {name: PowerLaw(value, {}) for name, value in seconds.items()},
        laws,
        libraries_mib=300.0,
        machine={"processor": "made up"},
    )
