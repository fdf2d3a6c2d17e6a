"""The stages on their own: `train` out of time, `blend`, a recipe's blend.choose."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.checksums import write_table
from common.settings import SAMPLE
from data.read import read_graph
from data.tree import GraphFile, collection_named, find_graphs
from ensembles.blend import blend
from ensembles.choice.choose import BEST_MEMBER, RECIPE
from ensembles.choice.in_run import write_choice
from models.predict import scores_table
from models.training.dataset import family_of
from tests.command_line import call

TILE = collection_named("tile:xla")


# A few kernels of each split: all of the sample's would take a minute.
FAMILIES = ("matmul", "matmul_bias_gelu", "conv3x3_relu", "conv1x1", "softmax", "layernorm")
FAMILIES += ("scale_transpose", "channels_first", "column_sum", "row_sum", "attention_scores")
FAMILIES += ("gelu_gate", "max_pool", "gram", "dilated_conv_relu", "rotary")  # so far of train
FAMILIES += ("batched_matmul", "depthwise_relu", "residual_rmsnorm", "mean_pool")  # of valid
N_TEST = 13  # whose names tell no family


def kernels(split: str) -> list[GraphFile]:
    files = find_graphs(SAMPLE, collections=(TILE,), splits=(split,))
    if split == "test":
        return files[:N_TEST]
    return [file for file in files if family_of(file) in FAMILIES]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Run folders with scores of valid and test; two that err on their own, and one of noise."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    for split in ("valid", "test"):
        graphs = [read_graph(file) for file in kernels(split)]
        for name, noise in (("one-seed0", 0.3), ("two-seed0", 0.3), ("blind-seed0", 9.0)):
            tables = []
            for graph in graphs:
                seen = np.log(np.maximum(graph.runtime_ns, 1)) + noise * rng.normal(
                    size=graph.n_configs
                )
                tables.append(scores_table(graph, seen.astype(np.float32)))
            (folder / name).mkdir(exist_ok=True)
            write_table(folder / name / f"scores-{split}.parquet", pl.concat(tables))
    return sorted(folder.iterdir())


def test_bad_input_is_one_line(runs: list[Path], tmp_path: Path) -> None:
    empty, none, few = tmp_path / "empty-seed0", tmp_path / "none", tmp_path / "few.parquet"
    empty.mkdir()
    whole = runs[1] / "scores-valid.parquet"
    table = pl.read_parquet(runs[0] / "scores-valid.parquet")
    table.filter(pl.col("graph") != table["graph"][0]).write_parquet(few)
    plain = ("--method", "rank-mean")
    cases: list[tuple[int, list[Path], tuple[object, ...], str]] = [
        (2, runs[:2], ("--method", "best"), "expected one of minmax-mean, rank-mean"),
        (2, runs[:1] * 2, plain, "--runs: the same run is given twice"),
        (1, [runs[0], empty], plain, "expected what `predict --run RUN --split test` writes"),
        (1, [runs[0], none], plain, f"error: {none}: no such file; expected"),
        (1, [whole, few], plain, f"member {few} has no score for some configs of graph"),
    ]
    for code, members, words, said in cases:
        text = call("blend", "--runs", *members, *words, "--out", tmp_path / "out", expect=code)
        assert said in text and text.count("\n") == 1


@pytest.fixture(scope="module")
def chosen_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished smoke run of the sample's tiles, and a layout collection of too few graphs."""
    folder = tmp_path_factory.mktemp("choose")
    shutil.copytree(SAMPLE / "npz/layout/nlp/default", folder / "tree/npz/layout/nlp/default")
    for file in (file for split in ("train", "valid", "test") for file in kernels(split)):
        copy = folder / "tree" / file.path.relative_to(SAMPLE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.path, copy)
    out = folder / "run"
    text = call(
        *("run", "--data", folder / "tree", "--recipe", "smoke", "--out", out),
        *("--set", "blend.choose=true"),
    )
    assert "layout:nlp:default: 1 labelled graphs of 1 families" in text
    assert "tile:xla: " in text
    return out


def test_a_run_chooses_on_valid_and_reports_the_nested_value(chosen_run: Path) -> None:
    report = json.loads((chosen_run / "report.json").read_text())
    choice = report["models"]["tile:xla"]["blend"]
    assert choice["chosen"] in {RECIPE, BEST_MEMBER, *choice["candidates"]}
    assert choice["n_graphs"] == 13
    assert isinstance(choice["nested_value"], float)
    kept = choice["chosen"] == RECIPE
    assert ("Nothing beat" if kept else "is what to believe") in choice["note"]
    assert choice["member_values"] == pytest.approx(report["models"]["tile:xla"]["member_values"])
    assert choice["recipe_value"] is not None
    few = report["models"]["layout:nlp:default"]["blend"]
    assert few["chosen"] == RECIPE
    assert few["nested_value"] is None
    page = (chosen_run / "report.html").read_text()
    assert ("nothing beat it" if kept else "had no part in the choice (nested)") in page
    assert "Blend: the recipe's, since there are 1 labelled" in page


def test_a_run_blends_both_splits_by_its_choice_and_so_does_rank(chosen_run: Path) -> None:
    folder = chosen_run / "scores/tile-xla"
    choice = json.loads((folder / "blend/choice.json").read_text())
    for split in ("valid", "test"):
        tables = {n: pl.read_parquet(folder / n / f"{split}.parquet") for n in choice["weights"]}
        want = blend(tables, method=choice["method"], weights=choice["weights"])
        assert pl.read_parquet(folder / "blend" / f"{split}.parquet").equals(want)
    choice |= {"method": "minmax-mean"}
    choice["weights"] = {name: float(i == 0) for i, name in enumerate(choice["weights"])}
    other = chosen_run.with_name("other")
    shutil.copytree(chosen_run, other)
    write_choice(other / "scores/tile-xla/blend/choice.json", choice)
    graph = find_graphs(SAMPLE, collections=(TILE,), splits=("test",))[0]
    first = next(iter(choice["weights"]))
    alone = call("rank", graph.path, "--run", chosen_run / "models/tile-xla" / first, "--json")
    ranked = call("rank", graph.path, "--run", other, "--json")
    configs = [[c["config"] for c in json.loads(text)["configs"]] for text in (alone, ranked)]
    assert configs[0] == configs[1]


def test_a_damaged_choice_is_named(chosen_run: Path) -> None:
    other = chosen_run.with_name("damaged")
    shutil.copytree(chosen_run, other)
    path = other / "scores/tile-xla/blend/choice.json"
    graph = find_graphs(SAMPLE, collections=(TILE,), splits=("test",))[0]
    path.write_text(path.read_text().replace("n_graphs", "n_graphz"))  # all can be read
    assert f"{path}: damaged" in call("rank", graph.path, "--run", other, expect=1)
    for damaged in ("{}", "[]", "{", '{"method": "x", "weights": {}}'):
        path.write_text(damaged)
        text = call("rank", graph.path, "--run", other, expect=1)
        assert f"{path}: " in text and "expected a choice with method and weights" in text


def test_a_training_that_is_out_of_time_goes_on_later(tmp_path: Path) -> None:
    """One line, exit code 0, no DONE mark, and the same bytes once resumed."""
    arguments = ["train", "--data", SAMPLE, "--collection", "layout:xla:random"]
    arguments += ["--recipe", "smoke", "--model", "cross_config_sage", "--set", "threads=1"]
    said = call(*arguments, "--out", tmp_path / "a", "--max-minutes", 0)
    (stop,) = (line for line in said.splitlines() if "--max-minutes" in line)
    assert "--resume" in stop
    assert not list(tmp_path.glob("a/*/DONE"))
    call(*arguments, "--out", tmp_path / "a", "--resume")
    call(*arguments, "--out", tmp_path / "b")
    for name in ("metrics.jsonl", "model.safetensors"):
        first, second = (next(tmp_path.glob(f"{run}/*/{name}")) for run in "ab")
        assert first.read_bytes() == second.read_bytes()
