"""The training loop: it learns, resumes exactly, and stops on a loss that is not finite."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from data.errors import PipelineError
from models.engine import CHECKPOINT, METRICS, StepLoss, fit, learning_rate_factor
from models.model_configs import TrainingConfig
from models.weights import load_tensors, save_tensors


class Line:
    """Fits y = 3 x on points drawn per step; breaks off or turns NaN where it is told to."""

    def __init__(self, *, stop_at: int | None = None, nan_at: int | None = None) -> None:
        self.calls, self.stop_at, self.nan_at = 0, stop_at, nan_at

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        x = torch.from_numpy(rng.normal(size=(8, 1))).float()
        loss = (model(x) - 3 * x).square().mean()
        if self.calls == self.nan_at:
            loss = loss * float("nan")
        self.calls += 1
        return StepLoss(loss, "line")


CONFIG = TrainingConfig(
    steps=40, learning_rate=0.4, warmup_steps=4, checkpoint_every=10, log_every=7
)


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(1, 1)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    fit(new_model(), Line(), CONFIG, seed=0, run_dir=tmp_path)
    losses = [json.loads(line)["loss"] for line in (tmp_path / METRICS).read_text().splitlines()]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("stop_at", [3, 10, 27, 39])
def test_a_broken_off_run_ends_as_an_undisturbed_one(tmp_path: Path, stop_at: int) -> None:
    undisturbed, broken = new_model(), new_model()
    fit(undisturbed, Line(), CONFIG, seed=5, run_dir=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        fit(broken, Line(stop_at=stop_at), CONFIG, seed=5, run_dir=tmp_path / "b")
    resumed, rest = new_model(), Line()
    fit(resumed, rest, CONFIG, seed=5, run_dir=tmp_path / "b")
    assert rest.calls == 40 - stop_at // 10 * 10
    for one, other in zip(undisturbed.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    assert (tmp_path / "a" / METRICS).read_text() == (tmp_path / "b" / METRICS).read_text()


def test_another_seed_takes_another_way(tmp_path: Path) -> None:
    one, other = new_model(), new_model()
    fit(one, Line(), CONFIG, seed=0, run_dir=tmp_path / "a")
    fit(other, Line(), CONFIG, seed=1, run_dir=tmp_path / "b")
    assert not torch.equal(one.weight, other.weight)


def test_a_loss_that_is_not_finite_stops_with_step_graph_and_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nan at step 23, graph line; .*checkpoint"):
        fit(new_model(), Line(nan_at=23), CONFIG, seed=0, run_dir=tmp_path)
    _, facts = load_tensors(tmp_path / CHECKPOINT)
    assert facts["step"] == 20


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    fit(new_model(), Line(), CONFIG, seed=0, run_dir=tmp_path)
    with pytest.raises(PipelineError, match="written by another model"):
        fit(nn.Linear(1, 2), Line(), CONFIG, seed=0, run_dir=tmp_path)


def test_learning_rate_warms_up_then_decays_to_zero() -> None:
    factors = [learning_rate_factor(step, CONFIG) for step in range(41)]
    assert factors[:5] == sorted(factors[:5])
    assert factors[4] == 1.0
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[40] == pytest.approx(0)


@pytest.mark.parametrize(
    "content", [b"", b"not safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "]
)
def test_damaged_weights_give_one_line_with_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(PipelineError, match=r"model\.safetensors") as caught:
        load_tensors(path)
    assert "\n" not in str(caught.value)


def test_tensors_come_back_as_they_were_saved(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4).T, "b": torch.arange(3)}
    save_tensors(tmp_path / "t.safetensors", tensors, {"step": 4})
    loaded, facts = load_tensors(tmp_path / "t.safetensors")
    assert facts == {"step": 4}
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
