"""Several processes end with the weights of one, and fail as one does."""

from pathlib import Path

import pytest
import torch

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import time_limit
from common.settings import SAMPLE
from data.tree import collection_named, find_graphs
from models.config.recipe import load_recipe
from models.run_folder import is_done
from models.train import train_model
from models.training.jobs import TrainJob
from models.training.weights import load_tensors

XLA_RANDOM = collection_named("layout:xla:random")
SEED = 1  # by seed 0 a gradient is next to nothing: Adam divides by it, and magnifies rounding


def job_on(n_processes: int, folder: Path, *keys: str) -> TrainJob:
    """Three graphs a step: one process takes two of them, the other one."""
    sets = [
        "threads=1",
        "cross_config_sage.graphs_per_step=3",
        f"cross_config_sage.training.processes={n_processes}",
        *keys,
    ]
    files = find_graphs(SAMPLE, collections=(XLA_RANDOM,), splits=("train",))[:4]
    return TrainJob("cross_config_sage", load_recipe("smoke", sets), files, SEED, folder)


@pytest.mark.slow
def test_two_processes_end_with_the_weights_of_one(tmp_path: Path) -> None:
    one, two = (job_on(n, tmp_path / str(n)) for n in (1, 2))
    train_model(one, XLA_RANDOM, resume=False)
    soon = 0.5 / 60  # over before the processes have begun
    with time_limit(soon), pytest.raises(OutOfTime, match="step 1 of 6"):
        train_model(two, XLA_RANDOM, resume=False)
    assert not is_done(two.run_dir)
    train_model(two, XLA_RANDOM, resume=True)
    expected, _ = load_tensors(one.run_dir / "model.safetensors")
    weights, _ = load_tensors(two.run_dir / "model.safetensors")
    assert expected.keys() == weights.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=1e-6)
    names = [{path.name for path in job.run_dir.iterdir()} for job in (one, two)]
    assert names[0] == names[1]


@pytest.mark.slow
def test_a_fault_on_several_processes_is_one_line(tmp_path: Path) -> None:
    diverges = "cross_config_sage.training.learning_rate=1e30"
    job = job_on(2, tmp_path / "run", diverges)
    with pytest.raises(PipelineError, match=r"training: .*at step \d, graph ") as caught:
        train_model(job, XLA_RANDOM, resume=False)
    assert "\n" not in str(caught.value)


def test_more_processes_than_a_steps_graphs_or_for_segments_are_refused() -> None:
    with pytest.raises(UsageError, match="graphs_per_step"):
        load_recipe("smoke", ["cross_config_sage.training.processes=2"])
    keys = ["segment_sage.graphs_per_step=2", "segment_sage.training.processes=2"]
    with pytest.raises(UsageError, match=r"'segment_sage.training'.*processes = 2.*expected 1"):
        load_recipe("smoke", keys)
