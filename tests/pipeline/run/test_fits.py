"""Keys by collection, the final fit, warm starts and graphs that are left out."""

from pathlib import Path
from shutil import copytree, rmtree

import pytest

from common.files import checksum_of
from data.graph_store.stored_graph import fingerprint, read_graph
from data.tree import GraphFile, collection_named, find_graphs
from ensembles.ensemble import load_ranker
from kernels.datasets import write_weights
from models.predict import read_scores
from models.registry import load_model
from models.run_folder import read_config
from models.training.loop import WEIGHTS
from tests.drills.processes import check_same
from tests.support.command_line import call

FIRST, SECOND = collection_named("layout:xla:default"), collection_named("layout:xla:random")
MODEL, MEMBER = "cross_config_sage", "cross_config_sage-seed0"
COLUMNS = "config_columns_boosting"
OWN = f'collection."{SECOND.name}".{MODEL}'


def graphs(tree: Path, *splits: str) -> list[GraphFile]:
    return find_graphs(tree, collections=(SECOND,), splits=splits)


@pytest.fixture(scope="module")
def words(tiny_tree: Path) -> tuple[object, ...]:
    left_out = graphs(tiny_tree, "train")[0].submission_id
    keys = (
        "fit_on=[train, valid]",
        f'leave_out=["{left_out}"]',
        f"layout.models=[{MODEL}]",
        f"{MODEL}.training.steps=4",
        f"{OWN}.training.steps=3",
        f"{OWN}.training.start_from={FIRST.name}",
    )
    sets = (word for key in keys for word in ("--set", key))
    return ("--data", tiny_tree, "--recipe", "smoke", *sets)


@pytest.fixture(scope="module")
def finished(words: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run. Tests only read it."""
    out = tmp_path_factory.mktemp("fits") / "run"
    call("run", *words, "--collections", "layout:xla", "--out", out, "--workers", 1)
    return out


def test_each_training_has_its_keys_graphs_and_start(finished: Path, tiny_tree: Path) -> None:
    _, *train = graphs(tiny_tree, "train")
    for ending, learned in (("", train), ("-final", [*train, *graphs(tiny_tree, "valid")])):
        first, second = (
            finished / "models" / f"{one.slug}{ending}" / MEMBER for one in (FIRST, SECOND)
        )
        config = read_config(second)
        assert config["train_data"] == fingerprint(learned)
        assert config["recipe"]["collection"] == {}
        assert config["recipe"][MODEL]["training"]["steps"] == 3
        assert config["start"] == checksum_of((first / WEIGHTS).read_bytes())
        other = read_config(first)
        assert other["recipe"][MODEL]["training"]["steps"] == 4
        assert "start" not in other


def test_only_the_test_split_is_ranked_by_models_that_learned_valid(
    finished: Path, tiny_tree: Path
) -> None:
    for split, ending in (("valid", ""), ("test", "-final")):
        (graph,) = map(read_graph, graphs(tiny_tree, split)[:1])
        model = load_model(finished / "models" / f"{SECOND.slug}{ending}" / MEMBER)
        scores = read_scores(finished / "scores" / SECOND.slug / MEMBER / f"{split}.parquet")
        own = scores.filter(graph=graph.file.name)["score"].to_list()
        assert own == model.score(graph).tolist()
    ranker = load_ranker(finished, collection=SECOND.name)
    assert ranker.member_scores(graph)[MEMBER].tolist() == own
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "trained again on train and valid, rank the test split" in page


def test_a_resumed_run_ends_with_the_same_bytes(
    finished: Path, words: tuple[object, ...], tmp_path: Path
) -> None:
    run = ("run", *words, "--collections", "layout:xla")
    resumed = copytree(finished, tmp_path / "resumed")
    for folder in (f"models/{SECOND.slug}", f"models/{SECOND.slug}-final", "scores"):
        rmtree(resumed / folder)
    for name in ("DONE", "report.json"):
        (resumed / name).unlink()
    call(*run, "--out", resumed, "--resume", "--workers", 1)
    check_same(resumed, finished)


def test_train_writes_the_models_of_a_run_and_a_run_takes_them(
    finished: Path, words: tuple[object, ...], tmp_path: Path
) -> None:
    train, root = ("train", *words, "--collection"), tmp_path / "parts"
    said = call(*train, SECOND.name, "--out", root / "b", expect=2)
    assert f"no trained {FIRST.slug}/{MEMBER}; train {FIRST.name} first, and pass" in said
    call(*train, FIRST.name, "--out", root / "a")
    call(*train, SECOND.name, "--out", root / "b", "--resume-from", root)
    names = [f"{one.slug}{ending}" for one in (FIRST, SECOND) for ending in ("", "-final")]
    weights = tmp_path / "weights"
    assert write_weights(root, weights, title="Weights") == [f"{name}/{MEMBER}" for name in names]
    for name in names:
        own, trained = (at / "models" / name / MEMBER / WEIGHTS for at in (finished, weights))
        assert trained.read_bytes() == own.read_bytes()
    run = ("run", *words, "--collections", "layout:xla", "--models", weights)
    call(*run, "--out", tmp_path / "taken")
    for name in ("submission.csv", "submission-valid.csv"):
        assert (tmp_path / "taken" / name).read_bytes() == (finished / name).read_bytes()
    said = call(*run, "--set", f"{OWN}.blocks=1", "--out", tmp_path / "other", expect=1)
    assert f"was trained with {MODEL}.blocks" in said


def test_a_second_name_has_its_seeds_and_its_splits(tiny_tree: Path, tmp_path: Path) -> None:
    keys = (
        f"layout.models=[{MODEL},second,layout_boosting,config_columns_boosting]",
        *(f"second.model={MODEL}", "second.hidden=8", "second.training.steps=3"),
        *("second.seeds=[1,2]", "second.norm=nodes", "layout_boosting.fit_on=[train,valid]"),
        "config_columns_boosting.num_boost_round=3",
        "config_columns_boosting.fit_on=[train,valid]",
    )
    sets = (word for key in keys for word in ("--set", key))
    words = ("--data", tiny_tree, "--recipe", "smoke", *sets)
    run = tmp_path / "run"
    call("run", *words, "--collections", SECOND.name, "--out", run)
    models = run / "models"
    names = {path.parent.relative_to(models).as_posix() for path in models.rglob("DONE")}
    again = {f"{SECOND.slug}-final/{m}-seed0" for m in ("layout_boosting", COLUMNS)}
    assert names == again | {
        f"{SECOND.slug}/{member}"
        for member in (MEMBER, "second-seed1", "second-seed2", "layout_boosting-seed0")
    } | {f"{SECOND.slug}/{COLUMNS}-seed0"}
    ranker = load_ranker(run, collection=SECOND.name)
    assert sum(ranker.spec.weights.values()) == 4
    assert ranker.spec.weights["second-seed1"] == 0.5
