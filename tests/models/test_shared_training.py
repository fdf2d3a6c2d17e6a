"""One model for all layout collections, and each collection's own that begins from it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from common.errors import UsageError
from common.locks import alone_in
from common.progress import watched_by
from data.graph_store.stored_graph import fingerprint
from data.read import read_graph
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named, find_graphs
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS, NETWORKS
from models.run_folder import is_done, read_config
from models.train import load_model, train_model
from models.training.folds import family_of, grouped_folds
from models.training.jobs import SharedModel, TrainJob, shared_model
from models.training.weights import load_tensors
from pipeline.tuning.objective import cross_validate
from tests.command_line import call

XLA, NLP = collection_named("layout:xla:random"), collection_named("layout:nlp:random")
SAGE = "cross_config_sage"


def recipe_of(*keys: str, model: str = SAGE) -> Recipe:
    training = [f"{model}.training.{key}" for key in ("pretrain_steps=5", *keys)]
    return load_recipe("smoke", ["threads=1", f'layout.models=["{model}"]', *training])


@pytest.fixture(scope="module")
def files(tiny_tree: Path) -> list[GraphFile]:
    """Two train graphs of each of the four layout collections."""
    return find_graphs(tiny_tree, collections=LAYOUT_COLLECTIONS, splits=("train",))


def job_in(folder: Path, files: Sequence[GraphFile], collection=XLA, recipe=None) -> TrainJob:  # type: ignore[no-untyped-def]
    recipe = recipe or recipe_of()
    own = [file for file in files if file.collection == collection]
    shared = shared_model(recipe, SAGE, 0, files, folder / "layout-shared")
    return TrainJob(SAGE, recipe, own, 0, folder / collection.slug, shared=shared)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def kill(stage: str, done: int, total: int) -> None:
    """Told of progress, end the shared training, not on a checkpoint."""
    if (done, total) == (4, 5):
        raise KeyboardInterrupt


def test_a_run_trains_the_shared_model_once(tiny_tree: Path, tmp_path: Path) -> None:
    sets = [f"--set={SAGE}.training.pretrain_steps=5", f'--set=layout.models=["{SAGE}"]']
    call("run", "--data", tiny_tree, "--recipe", "smoke", *sets, "--out", tmp_path / "run")
    models = tmp_path / "run" / "models"
    shared = models / "layout-shared" / f"{SAGE}-seed0"
    assert is_done(shared)
    config = read_config(shared)
    assert config["collections"] == [collection.name for collection in LAYOUT_COLLECTIONS]
    assert config["recipe"][SAGE]["training"]["steps"] == 5
    scaler = load_tensors(shared / "model.safetensors")[0]["nodes.shift"]
    for collection in LAYOUT_COLLECTIONS:
        own = models / collection.slug / f"{SAGE}-seed0"
        assert read_config(own)["shared_data"] == config["train_data"]
        assert load_tensors(own / "model.safetensors")[0]["nodes.shift"].equal(scaler)
        assert (shared / "DONE").stat().st_mtime_ns < (own / "DONE").stat().st_mtime_ns


def test_the_shared_model_ranks_each_of_its_collections(
    files: Sequence[GraphFile], tiny_tree: Path, tmp_path: Path
) -> None:
    job = job_in(tmp_path, files)
    train_model(job, XLA, resume=False)
    assert job.shared is not None
    words = ("rank", "--run", job.shared.run_dir, "--top", 1)
    xla, nlp = (next(f for f in files if f.collection == c) for c in (XLA, NLP))
    for file in (xla, nlp):
        assert f"{SAGE}-seed0" in call(*words, file.path)
    tile = find_graphs(tiny_tree, splits=("train",))[0]
    assert "ranks layout configs, not tile:xla" in call(*words, tile.path, expect=1)
    predict = ("predict", "--run", job.shared.run_dir, "--data", tiny_tree, "--split", "valid")
    assert "many collections; pass --collection" in call(*predict, expect=1)


@pytest.mark.parametrize("name", [name for name, (kind, _) in NETWORKS.items() if kind == "layout"])
def test_a_model_begins_from_the_shared_one(
    name: str, files: Sequence[GraphFile], tmp_path: Path
) -> None:
    plain = recipe_of("pretrain_steps=0", model=name)
    train_model(TrainJob(name, plain, files, 0, tmp_path / "shared"), XLA, resume=False)
    still = recipe_of("steps=1", "learning_rate=1e-12", model=name)
    shared = SharedModel(files, tmp_path / "shared")
    own = [file for file in files if file.collection == XLA]
    ends = tmp_path / "own"
    MODELS[name].train(TrainJob(name, still, own, 7, ends, shared=shared))
    graph = read_graph(own[0])
    expected = load_model(tmp_path / "shared").score(graph)
    assert np.ptp(expected) > 0
    found = MODELS[name].load(ends, still).score(graph)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_killed_in_the_shared_part_it_ends_in_the_same_bytes(
    files: Sequence[GraphFile], tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_model(job_in(whole, files), XLA, resume=False)
    job = job_in(killed, files)
    with pytest.raises(KeyboardInterrupt), watched_by(kill):
        train_model(job, XLA, resume=False)
    assert job.shared is not None
    assert not is_done(job.shared.run_dir) and not is_done(job.run_dir)
    train_model(job, XLA, resume=True)
    assert contents(killed) == contents(whole)


def test_a_shared_model_is_trained_by_one_process_at_a_time(
    files: Sequence[GraphFile], tmp_path: Path
) -> None:
    job = job_in(tmp_path, files)
    assert job.shared is not None
    with pytest.raises(KeyboardInterrupt), watched_by(kill):
        train_model(job, XLA, resume=False)
    with (
        alone_in(job.shared.run_dir),
        pytest.raises(UsageError, match=r"layout-shared.*another process works in it"),
    ):
        train_model(job, XLA, resume=True)


def test_what_a_fold_holds_out_is_held_out_of_every_collection(
    files: Sequence[GraphFile], tmp_path: Path
) -> None:
    own = [file for file in files if file.collection == XLA]
    folds = grouped_folds(own, 2, seed=0)
    cross_validate(recipe_of(), SAGE, folds, tmp_path, shared=files)
    for number, held_out in enumerate(folds):
        (family,) = {family_of(file) for file in held_out}
        others = [file for file in files if family_of(file) != family]
        assert len(others) == len(files) - 2  # it is in both searches of its source
        shared = tmp_path / "layout-shared" / f"fold-{number}" / f"{SAGE}-seed0"
        assert read_config(shared)["train_data"] == fingerprint(others)
        begun_from = read_config(tmp_path / f"fold-{number}")["shared_data"]
        assert begun_from == fingerprint(others)
