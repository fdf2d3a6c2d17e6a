"""Early stop of the real models: judged on held-out graphs or configs, resumed exactly."""

import json
from pathlib import Path

import pytest

from common.errors import OutOfTime, PipelineError
from common.progress import time_limit
from common.settings import SAMPLE
from data.tree import collection_named, find_graphs
from models.config.recipe import load_recipe
from models.run_folder import METRICS
from models.train import train_model
from models.training.jobs import TrainJob

MODELS = {"cross_config_sage": "layout:xla:random", "late_fusion_sage": "tile:xla"}


def job_of(model: str, folder: Path, n_graphs: int | None = None) -> TrainJob:
    keys = ["steps=8", "early_stop=2", "eval_interval=2", "swa_start=0.25"]
    sets = ["threads=1", *(f"{model}.training.{key}" for key in keys)]
    collection = collection_named(MODELS[model])
    files = find_graphs(SAMPLE, collections=(collection,), splits=("train",))[:n_graphs]
    return TrainJob(model, load_recipe("smoke", sets), files, 0, folder)


def held_out_values(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / METRICS).read_text().splitlines())
    return [line["held_out"] for line in lines if "held_out" in line]


@pytest.mark.parametrize(
    ("model", "n_graphs"),
    [("cross_config_sage", 8), ("cross_config_sage", 1), ("late_fusion_sage", None)],
    ids=["layout-families", "layout-configs", "tile-families"],
)
def test_a_held_out_part_is_judged_and_training_resumes(
    model: str, n_graphs: int | None, tmp_path: Path
) -> None:
    collection = collection_named(MODELS[model])
    whole, sliced = (job_of(model, tmp_path / name, n_graphs) for name in ("whole", "sliced"))
    train_model(whole, collection, resume=False)
    values = held_out_values(whole.run_dir)
    assert 1 <= len(values) <= 4 and max(values) <= 1
    for seconds in (0.05, 0.05, None):
        try:
            with time_limit(seconds and seconds / 60):
                train_model(sliced, collection, resume=True)
        except OutOfTime:
            assert seconds is not None
    for name in (METRICS, "model.safetensors"):
        assert (whole.run_dir / name).read_bytes() == (sliced.run_dir / name).read_bytes()


def test_too_few_configs_to_judge_by_is_said(tmp_path: Path) -> None:
    job = job_of("late_fusion_sage", tmp_path, 1)  # a tenth of its configs, less than five
    with pytest.raises(PipelineError, match="early_stop: no held-out graph"):
        train_model(job, collection_named("tile:xla"), resume=False)
