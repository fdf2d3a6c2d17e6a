"""The training loop: it learns, resumes exactly, and stops on a loss that is not finite."""

import copy
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import time_limit
from models.config.networks import TrainingConfig
from models.config.recipe import Recipe
from models.run_folder import METRICS
from models.training import loop
from models.training.device import CPU
from models.training.jobs import TrainJob
from models.training.loop import (
    CHECKPOINT,
    StepLoss,
    TrainingState,
    TrainingTask,
    learning_rate_factor,
)
from models.training.weights import load_tensors, save_tensors


def fit(
    model: nn.Module, task: TrainingTask, config: TrainingConfig, *, seed: int, run_dir: Path
) -> None:
    loop.fit(model, task, config, TrainJob("line", Recipe(), [], seed, run_dir), CPU)


class Line:
    """Fits y = 3 x on points drawn per step; breaks off or turns NaN where it is told to.

    Held-out values rise until the weight is `peak`, and fall beyond it.
    """

    def __init__(
        self,
        *,
        stop_at: int | None = None,
        factor_at: tuple[float, int | None] = (1, None),
        nan_gradient_at: int | None = None,
        peak: float = 3.0,
    ) -> None:
        self.calls, self.stop_at, self.factor_at = 0, stop_at, factor_at
        self.nan_gradient_at, self.peak = nan_gradient_at, peak

    def evaluate(self, model: nn.Module) -> float:
        assert not model.training
        return -abs(next(model.parameters()).mean().item() - self.peak)

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        x = torch.from_numpy(rng.normal(size=(8, 1))).float()
        loss = (model(x) - 3 * x).square().mean()
        factor, step = self.factor_at
        if self.calls == step:
            loss = loss * factor
        if self.calls == self.nan_gradient_at:
            zero = (model.weight - model.weight.detach()).square().sum()
            loss = loss + zero.sqrt()  # 0, with a gradient of 0 / 0
        self.calls += 1
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
every_variant = pytest.mark.parametrize("keys", VARIANTS.values(), ids=VARIANTS.keys())


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))


@every_variant
@pytest.mark.parametrize("make", [new_model, with_dropout])
def test_every_way_of_training_resumes_exactly(tmp_path: Path, keys, make) -> None:
    config = CONFIG.model_copy(update=keys)
    undisturbed, resumed = make(), make()
    fit(undisturbed, Line(peak=2.0), config, seed=5, run_dir=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / METRICS).write_bytes(b'\xff{"step": 7')  # broken off too, and mended
    for stop_at in (3, 13, 11, 9):  # before the first checkpoint, and behind others
        with suppress(KeyboardInterrupt):
            fit(make(), Line(stop_at=stop_at, peak=2.0), config, seed=5, run_dir=tmp_path / "b")
    fit(resumed, Line(peak=2.0), config, seed=5, run_dir=tmp_path / "b")
    assert_alike(undisturbed, resumed, tmp_path)


@every_variant
def test_a_run_in_slices_of_time_ends_as_an_undisturbed_one(tmp_path: Path, keys) -> None:
    config = CONFIG.model_copy(update=keys)
    undisturbed = new_model()
    fit(undisturbed, Line(peak=2.0), config, seed=5, run_dir=tmp_path / "a")
    for calls in range(1, 41):
        sliced, task = new_model(), Line(peak=2.0)
        try:
            with time_limit(0):
                fit(sliced, task, config, seed=5, run_dir=tmp_path / "b")
        except OutOfTime as stop:
            assert task.calls == 1
            assert f"step {calls} of 40" in str(stop)
        else:
            break
    assert_alike(undisturbed, sliced, tmp_path)


def assert_alike(one: nn.Module, other: nn.Module, folder: Path) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert (folder / "a" / METRICS).read_text() == (folder / "b" / METRICS).read_text()


def test_averaged_weights_are_the_mean_of_the_last_steps(tmp_path: Path) -> None:
    weights = []

    class Watched(Line):
        def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
            weights.append(model.weight.item())  # before the step
            return super().step_loss(model, rng)

    last, mean = new_model(), new_model()
    fit(last, Watched(), CONFIG, seed=0, run_dir=tmp_path / "last")
    config = CONFIG.model_copy(update={"swa_start": 0.75})
    fit(mean, Line(), config, seed=0, run_dir=tmp_path / "mean")
    after = [*weights[1:], last.weight.item()]
    assert mean.weight.item() == pytest.approx(np.mean(after[30:]), rel=1e-6)
    assert mean.weight.item() != last.weight.item()


def test_a_model_has_its_own_weights_again_though_judging_failed() -> None:
    model, state = nn.Linear(2, 1), TrainingState()
    state.average(model)
    own = model.weight.detach() + 1
    with torch.no_grad():
        model.weight.copy_(own)
    with pytest.raises(KeyboardInterrupt), state.averaged(model):
        assert not torch.equal(model.weight, own)
        raise KeyboardInterrupt
    assert torch.equal(model.weight, own)


def test_early_stop_ends_with_the_best_weights(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"early_stop": 2, "eval_interval": 3})
    model, task = new_model(), Line(peak=1.0)  # passed on the way to 3
    fit(model, task, config, seed=0, run_dir=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    values = [line["held_out"] for line in lines if "held_out" in line]
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


def test_bfloat16_keeps_weights_in_float32_and_still_learns(tmp_path: Path) -> None:
    full, half = new_model(), new_model()
    fit(full, Line(), CONFIG, seed=0, run_dir=tmp_path / "full")
    config = CONFIG.model_copy(update={"precision": "bfloat16"})
    fit(half, Line(), config, seed=0, run_dir=tmp_path / "half")
    assert half.weight.dtype == torch.float32
    assert half.weight.item() != full.weight.item()
    assert half.weight.item() == pytest.approx(full.weight.item(), abs=0.05)
    assert full.weight.item() == pytest.approx(3, abs=0.2)  # from 0


def test_the_next_steps_draws_are_prefetched_and_change_nothing(tmp_path: Path) -> None:
    class Foresighted(Line):
        def __init__(self) -> None:
            super().__init__()
            self.ahead: list[float] = []
            self.taken: list[float] = []

        def prefetch(self, rng: np.random.Generator) -> None:
            self.ahead.append(float(rng.normal()))

        def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
            self.taken.append(float(copy.deepcopy(rng).normal()))
            return super().step_loss(model, rng)

    task, plain, ahead = Foresighted(), new_model(), new_model()
    fit(plain, Line(), CONFIG, seed=0, run_dir=tmp_path / "plain")
    fit(ahead, task, CONFIG, seed=0, run_dir=tmp_path / "ahead")
    assert task.ahead == task.taken[1:]
    assert torch.equal(plain.weight, ahead.weight)


@pytest.mark.parametrize(
    "task",
    [
        Line(factor_at=(float("nan"), 23)),
        Line(nan_gradient_at=23),
        Line(factor_at=(1e35, 23)),  # the gradient's norm, in float32
    ],
    ids=["loss", "gradient", "norm"],
)
def test_what_is_not_finite_stops_before_it_is_used(tmp_path: Path, task) -> None:
    said = "the loss or a gradient is not finite at step 23, graph line; .*checkpoint"
    with pytest.raises(PipelineError, match=said):
        fit(new_model(), task, CONFIG, seed=0, run_dir=tmp_path)
    tensors, facts = load_tensors(tmp_path / CHECKPOINT)
    assert facts["step"] == 20
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    fit(new_model(), Line(), CONFIG, seed=0, run_dir=tmp_path)
    with pytest.raises(PipelineError, match="written by another model"):
        fit(nn.Linear(1, 2), Line(), CONFIG, seed=0, run_dir=tmp_path)
    tensors, facts = load_tensors(tmp_path / CHECKPOINT)
    save_tensors(tmp_path / CHECKPOINT, tensors, facts | {"another": 1})
    with pytest.raises(PipelineError, match="written by another model"):
        fit(new_model(), Line(), CONFIG, seed=0, run_dir=tmp_path)


def test_learning_rate_warms_up_then_decays_to_zero() -> None:
    factors = [learning_rate_factor(step, CONFIG) for step in range(41)]
    assert factors[:5] == sorted(factors[:5])
    assert factors[4] == 1.0
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[40] == pytest.approx(0)
