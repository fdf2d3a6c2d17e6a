"""A run as jobs: in what order, in how many parts, and that the bytes do not depend on it."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.progress import time_limit
from data.tree import GraphFile, collection_named, find_graphs
from ensembles.members import FLOOR, Member
from models.config.recipe import load_recipe
from models.predict import read_scores
from models.registry import TrainJob
from models.run_folder import CONFIG, mark_done
from pipeline.jobs.workers import HERE
from pipeline.planning.cards import CARDS
from pipeline.planning.costs import Machine
from pipeline.planning.plan import part_size
from pipeline.run import jobs
from pipeline.run.jobs import UNKNOWN_S, Law, Ranking, ranking_jobs, training_jobs
from tests.command_line import call
from tests.drills.outcome import check_same

TILE, XLA = collection_named("tile:xla"), collection_named("layout:xla:random")
RECIPE = load_recipe("smoke", ["tile.models=[tile_linear]"])
WHOLE = "predict tile:xla/test"


@pytest.fixture(scope="module")
def kernels(tiny_tree: Path) -> list[GraphFile]:
    return find_graphs(tiny_tree, collections=(TILE,), splits=("test",))


@pytest.fixture(scope="module")
def law(kernels: list[GraphFile]) -> Law:
    return Law(RECIPE, [part_size(kernels)], Machine(None))


@pytest.fixture
def ranking(kernels: list[GraphFile], tmp_path: Path) -> Ranking:
    floor = Member(FLOOR, 0, tmp_path, "tile")
    members = {tmp_path / name / "test.parquet": floor for name in ("a", "b")}
    return Ranking(TILE, "test", kernels, members, ["tile_linear"] * 2, 0)


def cut(n: int, ranking: Ranking, law: Law, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let rankings be cut into n parts; return the names of the jobs that are left then."""
    monkeypatch.setattr(jobs, "BLOCK_S", ranking.seconds(law) / (n - 0.5))
    return [job.name for job in ranking_jobs([ranking], set(), law)]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.parquet")}


def test_a_ranking_in_parts_is_the_whole_one(
    ranking: Ranking, law: Law, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And goes on in another number of them, after a kill in one, or where parts are joined."""
    assert cut(1, ranking, law, monkeypatch) == [WHOLE]
    with time_limit(0.0), pytest.raises(Exception, match="out of time"):
        HERE.do(list(ranking_jobs([ranking], set(), law)))
    HERE.do(list(ranking_jobs([ranking], set(), law)))
    whole = files_below(tmp_path)
    first, second = ranking.members
    second.rename(tmp_path / "kept")
    first.unlink()
    first.with_name("test.begun.parquet").write_bytes(b"of a call with one part")
    assert cut(2, ranking, law, monkeypatch) == [f"{WHOLE} 1 of 2", f"{WHOLE} 2 of 2"]
    HERE.do(list(ranking_jobs([ranking], set(), law))[1:])
    assert cut(2, ranking, law, monkeypatch) == [f"{WHOLE} 1 of 2"]
    assert len(cut(3, ranking, law, monkeypatch)) == 3
    HERE.do(list(ranking_jobs([ranking], set(), law)))
    (tmp_path / "kept").rename(second)  # joined just before the kill
    assert cut(3, ranking, law, monkeypatch) == []
    ranking.join(law)
    assert files_below(tmp_path) == whole
    assert read_scores(first)["graph"].unique().len() == len(ranking.files)


def test_rankings_wait_for_the_trainings_that_they_take(
    kernels: list[GraphFile], tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", ["layout.models=[cross_config_sage, layout_boosting]"])
    law = Law(recipe, [part_size(kernels)], Machine(CARDS["t4"]))
    folder = tmp_path / "models/layout-xla-random"
    trainings = [
        (XLA, TrainJob("cross_config_sage", recipe, [], 0, folder / "net")),
        (XLA, TrainJob("cross_config_sage", recipe, [], 1, folder / "other")),
        (XLA, TrainJob("layout_boosting", recipe, [], 0, folder / "trees")),
    ]
    net, other, trees = training_jobs(trainings, law)
    assert not net.after and not other.after and not trees.after
    assert net.on_gpu and not trees.on_gpu
    assert net.seconds == UNKNOWN_S  # there is no train graph to count by
    names = ("cross_config_sage", "net"), ("layout_boosting", "trees"), (FLOOR, "no training")
    members = {
        tmp_path / model / "valid.parquet": Member(model, 0, folder / name, "layout")
        for model, name in names
    }
    asked = Ranking(XLA, "valid", kernels, members, [model for model, _ in names], 0)
    (job,) = ranking_jobs([asked], {net.name, other.name, trees.name}, law)
    assert job.after == {net.name, trees.name} and job.on_gpu
    assert {path.parent.name for path in job.makes} == {model for model, _ in names}


def test_what_is_done_takes_no_time_and_of_valid_graphs_what_is_ranked_counts(
    tiny_tree: Path, tmp_path: Path
) -> None:
    """A model whose cost is not known stops nothing."""
    files = find_graphs(tiny_tree, collections=(XLA,), splits=("valid",))
    size = part_size(files)
    parts = [size, replace(size, split="train")]
    unknown = "config_columns_boosting"
    recipes = [load_recipe("smoke", [f"valid_configs={n}"]) for n in (0, 4)]
    whole, some = (Law(recipe, parts, Machine(None)) for recipe in recipes)
    seconds = [law.ranking_s(XLA, "valid", "layout_linear") for law in (whole, some)]
    assert seconds[1] == pytest.approx(4 / size.configs * seconds[0])
    assert whole.ranking_s(XLA, "valid", unknown) == 0
    models = ("layout_linear", unknown)
    assert all(whole.left_s(XLA, model, tmp_path) > 0 for model in models)
    (tmp_path / CONFIG).touch()
    mark_done(tmp_path)
    assert whole.left_s(XLA, "layout_linear", tmp_path) == 0


SHORT = (  # each kind of training, a blend that is chosen, subsets of valid configs
    "cross_config_sage.training.early_stop=1",
    "cross_config_sage.training.eval_interval=2",
    "cross_config_sage.training.steps=6",
    "late_fusion_sage.training.steps=6",
    "layout_boosting.num_boost_round=10",
    "layout_boosting.early_stop=2",
    "tile_boosting.num_boost_round=10",
    "blend.choose=true",
    "valid_configs=8",
)


@pytest.mark.parametrize(
    ("recipe", "n"),
    [("smoke", 2), *(pytest.param("cpu", n, marks=pytest.mark.slow) for n in (2, 3))],
)
def test_the_bytes_are_the_same_whoever_the_workers_are(
    recipe: str, n: int, tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--data", tiny_tree, "--recipe", recipe, "--store", tmp_path / "store"]
    words += ["--collections", "tile:xla,layout:xla:random"]
    for key in SHORT:
        words += ["--set", key]
    call(*words, "--workers", 1, "--out", tmp_path / "one")
    monkeypatch.setattr(jobs, "BLOCK_S", 1e-4)
    call(*words, "--workers", n, "--out", tmp_path / "many")
    check_same(tmp_path / "many", tmp_path / "one")
