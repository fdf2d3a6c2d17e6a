"""The comparison of tile models: what is held out, the command, and the report's intervals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy import tile as tile_accuracy
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.command import cells_of
from benchmarks.accuracy.comparisons import TILE_CONTENDERS
from benchmarks.accuracy.judge import judge
from benchmarks.accuracy.tasks import Sources, sample_families
from benchmarks.accuracy.tile_table import report
from benchmarks.accuracy.tile_tasks import ALEXNET, TILE_TASKS, alexnet_kernels, labelled
from benchmarks.speed import tile_inference
from common.metrics import slowdown_at_k, tile_score
from common.settings import SAMPLE
from data.graphs.graph import Graph
from data.read import read_tile
from models.config.recipe import load_recipe
from models.training.folds import family_of
from tests.real_data import REAL

SMALL = (
    "late_fusion_sage.hidden=8",
    "late_fusion_sage.training.steps=3",
    "early_fusion_sage.hidden=8",
    "early_fusion_sage.training.steps=3",
    "tile_boosting.rounds=3",
)


def test_no_family_is_on_both_sides_and_tuning_sees_no_valid_kernel(tmp_path: Path) -> None:
    here, families = Sources(SAMPLE, None), sample_families(SAMPLE)
    tuning = TILE_TASKS["sample-folds"].tuning_parts
    assert tuning is not None
    for make, splits in (
        (TILE_TASKS["sample"].parts, {"valid"}),
        (TILE_TASKS["sample-folds"].parts, {"train", "valid"}),
        (tuning, {"train"}),
    ):
        parts = make(here, 0, tmp_path)
        judged = [file.submission_id for part in parts for file in part.judged]
        expected = [file.submission_id for file in labelled(here, sorted(splits))]
        assert sorted(judged) == sorted(expected)  # each once
        for part in parts:
            learned = {families[file.submission_id] for file in part.train}
            assert not learned & {families[file.submission_id] for file in part.judged}
            assert {file.split for file in part.train} <= splits | {"train"}


@pytest.mark.skipif(not (REAL / ALEXNET).is_file(), reason=f"needs {ALEXNET} at {REAL}")
def test_the_real_kernels_are_judged_and_never_learned_from(tmp_path: Path) -> None:
    sources = Sources(SAMPLE, REAL)
    (part,) = TILE_TASKS["alexnet"].parts(sources, 0, tmp_path)
    assert part.train == tuple(labelled(sources))
    kernels = [read_tile(file) for file in part.judged]
    assert len(kernels) == 15 and sum(kernel.n_configs for kernel in kernels) == 752
    assert not {family_of(file) for file in part.judged} & set(sample_families(SAMPLE).values())
    assert part.judged == alexnet_kernels(REAL, tmp_path)


def test_what_is_missing_is_left_out_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for real in (None, tmp_path):
        cells = cells_of(
            ["sample", "alexnet"], ["boosting"], [0], Sources(SAMPLE, real), kind="tile"
        )
        assert list(cells) == [Cell("sample", "boosting", 0, kind="tile")]
    first, second = capsys.readouterr().out.splitlines()
    assert "TPUGRAPHS_REAL" in first and f"{tmp_path / ALEXNET} is missing" in second
    here = Sources(SAMPLE, REAL)
    assert not list(cells_of(["sample", "alexnet"], ["ours"], [0], here, tuning=True, kind="tile"))


def test_the_command_trains_resumes_and_reports(
    tiny_tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--out", str(tmp_path), "--sample", str(tiny_tree)]
    settings = [word for setting in SMALL for word in ("--set", setting)]
    run = [*base, *settings, "--tasks", "sample", "--seeds", "0"]
    assert tile_accuracy.main(run) == 0
    assert tile_accuracy.main(run) == 0
    trained = [known for known in TILE_CONTENDERS.values() if known.part_of is None]
    assert capsys.readouterr().out.count("was there") == len(trained)
    names = {path.name.split("--")[1] for path in (tmp_path / "cells").iterdir()}
    assert names == set(TILE_CONTENDERS)
    (cell,) = (tmp_path / "cells").glob("*--early-fusion--0.json")
    made = json.loads(cell.read_text())
    assert made["model"] == "early_fusion_sage" and made["steps"] == 3
    (cell,) = (tmp_path / "cells").glob("*--floor--0.json")
    made = json.loads(cell.read_text())
    assert (made["model"], made["steps"], made["cpu_s"]) == ("floor", 0, 0.0)
    page = tmp_path / "page.md"
    assert tile_accuracy.main([*base, "--report", str(page)]) == 0
    assert "early-fusion − ours" in page.read_text()


def test_picks_are_spread_where_the_name_says_so() -> None:
    cells = {name: Cell("sample", name, 0, kind="tile") for name in TILE_CONTENDERS}
    spread = {name for name, cell in cells.items() if cell.recipe().blend.spread_for("tile")}
    assert spread == {"ours", "boosting-spread", "early-spread", "floor-spread"}
    assert cells["best-first"].members == cells["ours"].members


class _Backwards:
    def score(self, graph: Graph) -> np.ndarray:
        return np.arange(graph.n_configs, 0, -1, dtype=np.float32)


def test_a_kernel_is_judged_by_runtimes_over_their_normalizers(tiny_tree: Path) -> None:
    graph = read_tile(labelled(Sources(tiny_tree, None))[0])
    found = judge(_Backwards(), graph)
    ranking = np.arange(graph.n_configs)[::-1]
    assert found["tile_score"] == tile_score(ranking, graph.normalized_runtime)
    for k in (1, 5, 10):
        expected = slowdown_at_k(ranking, graph.normalized_runtime, k) - 1
        assert found[f"top{k}_error"] == pytest.approx(expected)


def _cell(contender: str, seed: int, scores: dict[str, float]) -> dict[str, Any]:
    errors = {"top1_error": 0.5, "top5_error": 0.25, "top10_error": 0.0, "kendall_tau": 0.6}
    graphs = {
        name: {"family": name[0], "split": "valid", "tile_score": score, **errors}
        for name, score in scores.items()
    }
    known = {"task": "sample", "contender": contender, "seed": seed, "graphs": graphs}
    costs = {"cpu_s": 4.0, "wall_s": 5.0, "steps": 10}
    return {**known, **costs, "revision": "abc", "environment": {"system": "Linux"}}


def test_intervals_are_over_kernels_and_those_of_differences_are_paired() -> None:
    scores = {"a0": 0.2, "a1": 0.4, "b0": 0.9}
    ours = [_cell("ours", seed, scores) for seed in (0, 1)]
    worse = {"a0": 0.1, "a1": 0.3, "b0": 0.8}
    lines = report([*ours, *(_cell("boosting", seed, worse) for seed in (0, 1))])
    # of three equally likely kernels: all three draws alike is likely enough for a tail of 2.5 %
    (row,) = [line for line in lines if line.startswith("| ours |")]
    assert row.startswith("| ours | 2 | 0.5000 [0.2000, 0.9000] | 0.5000 [0.5000, 0.5000] |")
    (row,) = [line for line in lines if line.startswith("| boosting − ours")]
    assert row.startswith("| boosting − ours | 2 | -0.1000 [-0.1000, -0.1000] | +0.0000 [")
    assert "Held out: kernels 3, families 2." in lines
    (row,) = [line for line in lines if line.startswith("| boosting | -0.1")]
    assert row == "| boosting | -0.1000 [-0.1000, -0.1000] | 0 | 2 | a 67% |"


def test_inference_is_timed_on_kernels_of_the_size_asked_for(tmp_path: Path) -> None:
    small = read_tile(tile_inference.train_files()[-1])
    kernel = read_tile(tile_inference.write_kernel(tmp_path, small, 50))
    assert abs(kernel.n_nodes - tile_inference.N_NODES) <= small.n_nodes / 2
    assert kernel.n_configs == 50 and not kernel.is_labelled
    assert len(kernel.edge_index) * small.n_nodes == len(small.edge_index) * kernel.n_nodes
    bounds = kernel.config_feat.reshape(50, 3, 8)
    np.testing.assert_allclose(bounds[:, :, 7], bounds[:, :, :6].prod(axis=2))
    recipe = load_recipe("smoke", ["tile_boosting.rounds=2"])
    seconds = tile_inference.seconds_of("tile_boosting", recipe, [kernel.file] * 2, tmp_path)
    assert 0 < seconds < 60
