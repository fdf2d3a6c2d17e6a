"""Run folders, and model training into them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import PipelineError, UsageError
from common.files import create_text, write_text
from data.tree import collection_named, find_graphs
from models import run_folder
from models.config.recipe import load_recipe
from models.registry import TrainJob, load_model
from models.run_folder import DONE, begin, check_done, missing_run, read_config
from models.train import train_model

XLA_RANDOM = collection_named("layout:xla:random")


def test_missing_run_lists_the_runs_next_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match=r"^runs/a: no such file or folder; expected a run"):
        read_config(Path("runs/a"))
    for n in range(10):
        write_text(tmp_path / f"runs/trial{n}/config.toml", "")
    listed = ", ".join(f"runs/trial{n}" for n in range(8))
    for wrong in ("runs/trail3", "trail3", "rums/trail3"):
        line = str(missing_run(Path(wrong)))
        assert line.endswith(f"; runs: {listed} and 2 more; did you mean runs/trial3?")
    assert str(missing_run(Path("runs/other"))).endswith(f"; runs: {listed} and 2 more")


def job_in(folder: Path, tree: Path, **changes: object) -> TrainJob:
    files = find_graphs(tree, collections=(XLA_RANDOM,), splits=("train",))
    job = TrainJob("layout_boosting", load_recipe("smoke"), files, 0, folder)
    return replace(job, **changes)


def test_a_finished_model_has_no_checkpoint_and_is_not_trained_again(
    tiny_tree: Path, tmp_path: Path
) -> None:
    job = job_in(tmp_path / "model", tiny_tree, model="cross_config_sage")
    train_model(job, XLA_RANDOM, resume=False)
    # Some versions of filelock leave `.lock`.
    before = {path.name: path.stat().st_mtime_ns for path in job.run_dir.glob("[!.]*")}
    assert set(before) == {"config.toml", "metrics.jsonl", "model.safetensors", "DONE"}
    train_model(job, XLA_RANDOM, resume=True)
    assert {path.name: path.stat().st_mtime_ns for path in job.run_dir.glob("[!.]*")} == before
    (job.run_dir / DONE).unlink()
    with pytest.raises(PipelineError, match="has not ended"):
        load_model(job.run_dir)


@pytest.fixture(scope="module")
def boosted(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainJob:
    """The job of a trained model. Copy its folder before a change."""
    job = job_in(tmp_path_factory.mktemp("boosted") / "model", tiny_tree)
    train_model(job, XLA_RANDOM, resume=False)
    return job


@pytest.mark.parametrize("name", ["booster.txt", "config.toml", "importances.parquet"])
def test_a_finished_model_that_changed_is_refused(
    name: str, boosted: TrainJob, tmp_path: Path
) -> None:
    job = replace(boosted, run_dir=shutil.copytree(boosted.run_dir, tmp_path / "model"))
    path = job.run_dir / name
    path.write_bytes(path.read_bytes() + b"\n")
    for use in (lambda: load_model(job.run_dir), lambda: train_model(job, XLA_RANDOM, resume=True)):
        with pytest.raises(PipelineError, match=f"{name}: damaged: it is not as it was written"):
            use()
    if name != "config.toml":
        path.unlink()
        with pytest.raises(PipelineError, match=f"{name}: missing; expected a file of"):
            load_model(job.run_dir)


@pytest.mark.parametrize("name", ["../up.txt", "/etc/passwd", "a/b", "..", ".", "n" * 256])
def test_mark_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    (tmp_path / DONE).write_text(f"done\n00000000 {name}\n")
    with pytest.raises(PipelineError, match=r"DONE: names .*; expected the name of a file in the"):
        check_done(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"), [({"seed": 3}, "seed = 0, now 3"), ({"files": ()}, "train_data")]
)
def test_a_folder_of_another_run_is_refused(
    boosted: TrainJob, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        train_model(replace(boosted, **changes), XLA_RANDOM, resume=True)
    with pytest.raises(PipelineError, match="ranks layout configs"):
        train_model(boosted, collection_named("tile:xla"), resume=True)


def test_a_begun_folder_needs_resume_and_one_of_something_else_is_left_alone(
    tmp_path: Path,
) -> None:
    begin(tmp_path / "run", {"seed": 1}, resume=False)
    begin(tmp_path / "run", {"seed": 1}, resume=True)
    with pytest.raises(UsageError, match="--resume"):
        begin(tmp_path / "run", {"seed": 1}, resume=False)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="no run folder"):
        begin(other, {"seed": 1}, resume=True)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]


BEGUN = {"seed": 1, "model": "a", "name": "n", "source": {"f.py": "0"}}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (BEGUN | {"seed": 2}, "seed = 1, now 2; choose another --out, or"),
        (BEGUN | {"seed": 2, "model": "b"}, "model = 'a', now 'b'"),
        (BEGUN | {"seed": 2, "model": "b", "name": "m"}, "name = 'n', now 'm'"),
        (BEGUN | {"more": 3}, "more = unset, now 3"),
        ({"seed": 1, "name": "n", "source": {"f.py": "0"}}, "model = 'a', now unset"),
        (BEGUN | {"data": ["x"]}, r"other graphs \(by --data or --collections\)"),
        (BEGUN | {"source": {"f.py": "1"}}, "now '1'; choose another --out, bring the file back"),
    ],
)
def test_a_folder_begun_with_other_or_further_keys_is_refused(
    config: dict[str, object], said: str, tmp_path: Path
) -> None:
    begin(tmp_path, BEGUN, resume=False)
    with pytest.raises(UsageError, match=said):
        begin(tmp_path, config, resume=True)


def test_of_two_processes_that_begin_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process writes its config after the first check of this one."""
    folder = tmp_path / "run"

    def create_second(path: Path, text: str) -> bool:
        write_text(path, "seed = 7\n")
        return create_text(path, text)

    monkeypatch.setattr(run_folder, "create_text", create_second)
    with pytest.raises(UsageError, match="--resume"):
        begin(folder, {"seed": 1}, resume=False)
    (folder / "config.toml").unlink()
    with pytest.raises(UsageError, match="seed = 7, now 1"):
        begin(folder, {"seed": 1}, resume=True)
