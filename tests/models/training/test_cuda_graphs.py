"""Recorded training steps, with CUDA graphs that call operations of a CPU again in place."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from common.errors import PipelineError
from common.settings import SAMPLE
from data.tree import collection_named, find_graphs
from models.config.recipe import load_recipe
from models.layout import network
from models.layout.inputs import LayoutInputs
from models.registry import TrainJob
from models.train import train_model
from models.training import loop
from models.training.cuda_graphs import RecordedSteps
from models.training.loop import WEIGHTS, load_tensors

SAGE = "cross_config_sage"
STEPS = ("training.steps=12", "training.warmup_steps=2", "training.swa_start=0.5", "hidden=8")


class Tape(TorchDispatchMode):
    """A list of operations. `replay` calls them again, and writes to the same results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(function), "a recording cannot wait for a value"
        if function._schema.is_mutable:
            leaves = tree_leaves((args, kwargs))
            self.before += [(leaf, leaf.clone()) for leaf in leaves if isinstance(leaf, Tensor)]
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, result in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor):
                    old.copy_(new)


@contextmanager
def record(tape: Tape, **_: object) -> Iterator[None]:
    state = torch.default_generator.get_state()
    with tape:
        yield
    torch.default_generator.set_state(state)
    for tensor, before in reversed(tape.before):
        tensor.data.copy_(before)


def train(folder: Path, *settings: str) -> dict[str, Tensor]:
    files = find_graphs(SAMPLE, collections=(collection_named("layout:xla:random"),))[:3]
    keys = [f"{SAGE}.{key}" for key in (*STEPS, *settings)]
    recipe = load_recipe("cpu", ["accelerator=cpu", *keys])
    train_model(TrainJob(SAGE, recipe, files, 0, folder), files[0].collection, resume=False)
    return load_tensors(folder / WEIGHTS)[0]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", record)
    with_copies = lambda inputs, device: replace(inputs, on_gpu=inputs.copies(device))  # noqa: E731
    monkeypatch.setattr(LayoutInputs, "to", with_copies)

    def recorded(model, _):
        return RecordedSteps(model, lambda *sample: network.sample_loss(model, *sample))

    monkeypatch.setattr(network, "recorded_steps", recorded)


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    # A CPU lacks sparse products of float16, so only the scale of the loss is that of float16.
    monkeypatch.setattr(loop, "precision_on", lambda *_: torch.float16)


@pytest.mark.usefixtures("on_cpu", "scaled")
@pytest.mark.parametrize("n_graphs", [1, 2])
def test_replayed_steps_give_the_bytes_of_plain_ones(
    n_graphs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = f"graphs_per_step={n_graphs}", "dropout=0.3"
    replayed = train(tmp_path / "replayed", *settings)
    monkeypatch.setattr(RecordedSteps, "run", lambda _, __, function: function())
    plain = train(tmp_path / "plain", *settings)
    assert replayed.keys() == plain.keys()
    assert all(torch.equal(replayed[key], plain[key]) for key in plain)


@pytest.mark.usefixtures("scaled")
def test_gradients_that_stay_infinite_in_float16_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(scores: Tensor, runtime: Tensor) -> Tensor:
        # The loss is finite, and its gradient is not.
        return (scores - scores.detach()).abs().sqrt().sum() + 1 + 0 * runtime.sum()

    monkeypatch.setitem(network.LOSSES, "list_mle", spoiled)
    monkeypatch.setattr(loop, "MIN_SCALE", 65_536.0 / 8)
    with pytest.raises(PipelineError, match="gradients are not finite in float16, with any scale"):
        train(tmp_path, "loss=list_mle")
