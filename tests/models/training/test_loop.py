"""The training loop: it learns, resumes exactly, and stops on a loss that is not finite or early.

And weights on disk: they come back, and equal ones are equal bytes.
"""

import json
import math
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import time_limit
from common.settings import SAMPLE
from data.tree import collection_named, find_graphs
from models.config.networks import TrainingConfig
from models.config.recipe import Recipe, load_recipe
from models.registry import TrainJob
from models.run_folder import METRICS
from models.train import train_model
from models.training import loop
from models.training.device import CPU
from models.training.loop import (
    CHECKPOINT,
    StepLoss,
    TrainingTask,
    learning_rate_factor,
    load_tensors,
    save_tensors,
)


def fit(
    model: nn.Module, task: TrainingTask, config: TrainingConfig, *, seed: int, run_dir: Path
) -> None:
    loop.fit(model, task, config, TrainJob("line", Recipe(), [], seed, run_dir), CPU)


class Line:
    """A task that fits y = 3 x on random points.

    Held-out values rise until the weight is `peak`, and fall beyond it.

    Args:
        spoil: Changes the loss of step 23, for example to NaN.
    """

    def __init__(self, *, stop_at: int | None = None, spoil=None, peak: float = 3.0) -> None:
        self.stop_at, self.spoil, self.peak = stop_at, spoil, peak
        # The steps to prefetch.
        self.ahead: list[int] = []
        self.calls = 0
        # The weight before each step.
        self.weights: list[float] = []

    def prefetch(self, step: int) -> None:
        self.ahead.append(step)

    def evaluate(self, model: nn.Module) -> float:
        assert not model.training
        return -abs(next(model.parameters()).mean().item() - self.peak)

    def step_loss(self, model: nn.Module, step: int, rng: np.random.Generator) -> StepLoss:
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        points = rng.normal(size=(8, 1))
        x = torch.from_numpy(points).float()
        loss = (model(x) - 3 * x).square().mean()
        if self.spoil and self.calls == 23:
            loss = self.spoil(loss, model)
        self.calls += 1
        self.weights.append(next(model.parameters())[0].item())
        return loss, "line"


CONFIG = TrainingConfig(
    steps=40, learning_rate=0.4, warmup_steps=4, checkpoint_every=10, log_every=7
)


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(1, 1)


VARIANTS = {
    "plain": {},
    "averaged": {"swa_start": 0.4},
    "stopped": {"early_stop": 3, "eval_interval": 4},
    "averaged-stopped": {"swa_start": 0.3, "early_stop": 30, "eval_interval": 3},
    "bfloat16": {"precision": "bfloat16"},
}


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))


@pytest.mark.parametrize("keys", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_way_of_training_resumes_exactly(tmp_path: Path, keys) -> None:
    config = CONFIG.model_copy(update=keys)
    undisturbed, resumed = with_dropout(), with_dropout()
    fit(undisturbed, Line(peak=2.0), config, seed=5, run_dir=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / METRICS).write_bytes(b'\xff{"step": 7')  # broken off too, and mended
    for stop_at in (3, 13, 11, 9):  # before the first checkpoint, and behind others
        with suppress(KeyboardInterrupt):
            model, task = with_dropout(), Line(stop_at=stop_at, peak=2.0)
            fit(model, task, config, seed=5, run_dir=tmp_path / "b")
    fit(resumed, Line(peak=2.0), config, seed=5, run_dir=tmp_path / "b")
    for a, b in zip(undisturbed.parameters(), resumed.parameters(), strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b)
    assert (tmp_path / "a" / METRICS).read_text() == (tmp_path / "b" / METRICS).read_text()


def test_averaged_weights_are_the_mean_of_the_last_steps(tmp_path: Path) -> None:
    last, mean, task = new_model(), new_model(), Line()
    fit(last, task, CONFIG, seed=0, run_dir=tmp_path / "last")
    config = CONFIG.model_copy(update={"swa_start": 0.75})
    fit(mean, Line(), config, seed=0, run_dir=tmp_path / "mean")
    after = [*task.weights[1:], last.weight.item()]
    assert mean.weight.item() == pytest.approx(np.mean(after[30:]), rel=1e-6)
    assert mean.weight.item() != last.weight.item()


def test_early_stop_ends_with_the_best_weights(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"early_stop": 2, "eval_interval": 3})
    model, task = new_model(), Line(peak=1.0)  # passed on the way to 3
    fit(model, task, config, seed=0, run_dir=tmp_path)
    values = held_out_values(tmp_path)
    best = int(np.argmax(values))
    assert task.calls == 3 * len(values) < 40
    assert len(values) == best + 3  # two more, no better
    assert -abs(model.weight.item() - 1.0) == pytest.approx(max(values), abs=1e-6)


def test_a_model_that_holds_nothing_out_cannot_stop_early(tmp_path: Path) -> None:
    class Unjudged:
        step_loss = Line.step_loss

    config = CONFIG.model_copy(update={"early_stop": 2})
    with pytest.raises(UsageError, match="early_stop"):
        fit(new_model(), Unjudged(), config, seed=0, run_dir=tmp_path)


def test_the_next_step_is_prefetched(tmp_path: Path) -> None:
    task = Line()
    fit(new_model(), task, CONFIG, seed=0, run_dir=tmp_path)
    assert task.ahead == list(range(1, 40))


SPOILED = {
    "loss": lambda loss, _: loss * math.nan,
    "gradient": lambda loss, model: loss + (model.weight - model.weight.detach()).sum().sqrt(),
    "norm": lambda loss, _: loss * 1e35,  # the gradient's, in float32
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_values_that_are_not_finite_stop_training_before_their_use(tmp_path: Path, spoil) -> None:
    message = "the loss or a gradient is not finite at step 23, graph line; .*checkpoint"
    with pytest.raises(PipelineError, match=message):
        fit(new_model(), Line(spoil=spoil), CONFIG, seed=0, run_dir=tmp_path)
    tensors, facts = load_tensors(tmp_path / CHECKPOINT)
    assert facts["step"] == 20
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_a_model_without_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="model 'line': has no parameters; expected some"):
        fit(nn.Identity(), Line(), CONFIG, seed=0, run_dir=tmp_path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    fit(new_model(), Line(), CONFIG, seed=0, run_dir=tmp_path)
    with pytest.raises(PipelineError, match="expected a checkpoint of this model; remove it"):
        fit(nn.Linear(1, 2), Line(), CONFIG, seed=0, run_dir=tmp_path)


def test_learning_rate_warms_up_then_decays_to_zero() -> None:
    factors = [learning_rate_factor(step, CONFIG) for step in range(41)]
    assert factors[:5] == sorted(factors[:5])
    assert factors[4] == 1.0
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[40] == pytest.approx(0)


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
    for minutes in (0.001, 0.001, None):
        with suppress(OutOfTime), time_limit(minutes):
            train_model(sliced, collection, resume=True)
    for name in (METRICS, "model.safetensors"):
        assert (whole.run_dir / name).read_bytes() == (sliced.run_dir / name).read_bytes()


def test_too_few_configs_to_judge_by_is_said(tmp_path: Path) -> None:
    job = job_of("late_fusion_sage", tmp_path, 1)  # a tenth of its configs, less than five
    with pytest.raises(PipelineError, match="early_stop: no held-out graph"):
        train_model(job, collection_named("tile:xla"), resume=False)


TENSORS = {
    "model.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4).T,  # not contiguous
    "optimiser.step.weight": torch.tensor(3.0),
    "model.half": torch.ones(2, dtype=torch.bfloat16),
}
FACTS = {"scaling": "log1p", "step": 3}


def test_tensors_and_facts_come_back_and_equal_ones_are_equal_bytes(tmp_path: Path) -> None:
    written = set()
    for number in range(8):  # the library's own order of header keys changes from call to call
        path = tmp_path / f"{number}.safetensors"
        save_tensors(path, TENSORS, FACTS)
        written.add(path.read_bytes())
        tensors, facts = load_tensors(path)
        assert facts == FACTS
        assert tensors.keys() == TENSORS.keys()
        assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert len(written) == 1
    (tmp_path / "new").touch()
    assert {file.stat().st_mode for file in tmp_path.iterdir()} == {path.stat().st_mode}
    assert len(list(tmp_path.iterdir())) == 8 + 1  # no temporary file stays


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x08\0\0\0\0\0\0\0{}      "])
def test_other_files_than_weights_are_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(PipelineError, match=r"model\.safetensors: not a weights file") as caught:
        load_tensors(path)
    assert "\n" not in str(caught.value)
