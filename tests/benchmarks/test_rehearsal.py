"""The rehearsal: what a case measures, and the laws that follow from made-up cases."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.rehearsal.cases import (
    GRID,
    TILE_GRID,
    TREES_GRID,
    Case,
    largest_cases,
    layout_settings,
)
from benchmarks.rehearsal.laws import laws_of
from benchmarks.rehearsal.run import run_case
from benchmarks.rehearsal.tree import write_case
from data.synthetic import GraphSize

MEMBERS = {
    "layout": ("cross_config_sage", "global_attention_sage", "layout_boosting", "layout_linear"),
    "tile": ("late_fusion_sage", "early_fusion_sage", "tile_boosting", "tile_linear"),
}


def made_up(case: Case) -> dict[str, Any]:
    """Return what a case would print if a step and a ranking took time by a known law."""
    axes = case.axes
    kind = case.collection.split(":")[0]
    place = f"train {case.collection}"
    graphs, configs = axes["graphs"], axes["configs"]
    kept = axes.get("nodes", 40) / 5
    size = axes.get("configs_per_step", 64 * axes.get("kernels_per_step", 0)) * axes["hidden"]
    networks, trees = MEMBERS[kind][:2], MEMBERS[kind][2:]
    rows = graphs * axes.get("configs_per_graph", 500)
    trained = {
        trees[1]: graphs * 2.0,
        trees[0]: graphs * 2.0 + axes["rounds"] * rows * 1e-5,
        **dict.fromkeys(networks, 1.0),
    }
    ranked = configs if kind == "layout" else graphs / 4 * configs
    splits = ("valid",) if kind == "layout" else ("valid", "test")
    cpu_s = {
        "prepare and audit": (graphs + 1 if kind == "layout" else 1.5 * graphs) * configs * 1e-3,
        **{f"{place} {model}-seed0": seconds for model, seconds in trained.items()},
        f"predict {case.collection}": 1000.0 + configs,
    }
    predict_s = {f"{split} {model}": ranked * 1e-3 for split in splits for model in MEMBERS[kind]}
    shape = {"nodes": axes.get("nodes", 40), "edges": 1, "configurable": 1, "kept": kept}
    return {
        "name": case.name,
        "axes": dict(axes),
        "cpu_seconds": cpu_s,
        "seconds": cpu_s,
        "peak_mib": dict.fromkeys(cpu_s, 300.0 + size),
        "libraries_mib": 200.0,
        "step_s": dict.fromkeys(networks, kept * size * 1e-06),
        "predict_s": predict_s,
        "bytes": {"raw": 1e6 * configs, "store": 1e6 * configs, "run": 4e3 * configs},
        "shape": {**shape, "configs": configs, "distinct": configs} if kind == "layout" else {},
        "ranked_shape": {"distinct": 200},
    }


LARGEST = [case for case in largest_cases() if "tile" not in case.name]
LARGEST_TREES = [case for case in LARGEST if "trees" in case.name]
LARGEST_NETWORKS = [case for case in LARGEST if "networks" in case.name]
RESULTS = [made_up(case) for case in (*GRID, *TREES_GRID, *TILE_GRID, *LARGEST)]


def test_the_laws_behind_made_up_cases_are_found() -> None:
    laws = laws_of(RESULTS)["seconds"]
    step = laws["step cross_config_sage"]
    assert step["exponents"] == pytest.approx({"kept": 1, "configs_per_step": 1, "hidden": 1})
    assert step["coefficient"] == pytest.approx(1e-6)
    boosting = laws["round layout_boosting"]
    assert boosting["exponents"]["rows"] == pytest.approx(1)
    assert boosting["coefficient"] == pytest.approx(1e-5)
    prepare = laws["layout prepare"]
    assert prepare["exponents"] == pytest.approx({"nodes": 0, "configs": 1}, abs=1e-9)
    tile = laws["rank tile_boosting"]  # two splits of a quarter of the kernels each
    assert tile["coefficient"] == pytest.approx(1e-3)
    assert tile["exponents"]["configs"] == pytest.approx(1)


@pytest.mark.slow
def test_a_case_measures_every_part(tmp_path: Path) -> None:
    size = GraphSize(400, 20, 40)
    models = ("cross_config_sage", "layout_linear")
    settings = layout_settings(models, hidden=8, configs_per_step=8, steps=3)
    case = Case("small", "layout:xla:random", (size,), (size,), settings=settings)
    write_case(tmp_path / "tree", tmp_path / "made", case)
    found = run_case({"settings": settings}, tmp_path / "tree")
    assert set(found["step_s"]) == {"cross_config_sage"}
    assert set(found["predict_s"]) == {"valid cross_config_sage", "valid layout_linear"}
    assert found["shape"]["nodes"] == 400
    assert 0 < found["shape"]["kept"] <= 400
    assert min(found["bytes"].values()) > 0
    assert found["cpu_seconds"].keys() == found["seconds"].keys()
