"""Train a layout ranker in plain PyG, and judge it on held-out programs.

    python -m examples.train_with_pyg --data data/sample

It takes about a minute on two cores. docs/guides/pyg.md lists the fields of a graph.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import DataLoader

from common.settings import SAMPLE
from examples.gat import GatNet
from features.pyg import ConfigSampler, TpuGraph, TpuGraphsLayout
from models.training.losses import pairwise_hinge
from submissions.evaluator import Evaluator

WARMUP_STEPS = 20
# Number of configs that are ranked at a time.
RANKED_AT_ONCE = 128


def endless_graphs(train: TpuGraphsLayout, seed: int) -> Iterator[TpuGraph]:
    """Yield graphs without end. Each epoch samples other configs."""
    sampler = ConfigSampler(64, seed=seed)
    train.transform = sampler
    order = torch.Generator().manual_seed(seed)
    loader: DataLoader[TpuGraph] = DataLoader(train, batch_size=None, shuffle=True, generator=order)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader


def train_model(train: TpuGraphsLayout, steps: int, seed: int) -> GatNet:
    """Train a model with a pairwise loss over the configs of each graph."""
    torch.manual_seed(seed)
    model = GatNet(hidden=32, layers=2)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / WARMUP_STEPS, 1, WARMUP_STEPS)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps - WARMUP_STEPS))
    rate = torch.optim.lr_scheduler.SequentialLR(optimiser, [warmup, cosine], [WARMUP_STEPS])
    for step, graph in enumerate(islice(endless_graphs(train, seed), steps), start=1):
        loss = pairwise_hinge(model(graph), graph.runtime).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if step % 100 == 0 or step == 1:
            print(f"step {step}: loss {loss.item():.3f}")  # noqa: T201
    return model.eval()


@torch.no_grad()
def predict(model: GatNet, graph: TpuGraph) -> Tensor:
    """Score all configs of a graph, in batches to bound memory.

    Returns:
        Scores, (c,), lower = faster.
    """
    parts = torch.arange(len(graph.configs)).split(RANKED_AT_ONCE)
    return torch.cat([model(graph.take(rows))[0] for rows in parts])


def judge(
    valid: TpuGraphsLayout, score: Callable[[TpuGraph], ArrayLike]
) -> dict[str, dict[str, Any]]:
    """Return the metrics of each collection."""
    by_collection: dict[str, dict[str, dict[str, Any]]] = {}
    for graph in valid:
        values = by_collection.setdefault(graph.collection, {"y_pred": {}, "y_true": {}})
        values["y_pred"][graph.name] = score(graph)
        values["y_true"][graph.name] = graph.configs.runtime
    return {name: Evaluator(name).eval(values) for name, values in by_collection.items()}


def main() -> None:
    """Train on the train split, and print the metrics of the valid split."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, default=SAMPLE)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # With one thread, equal seeds give equal results.
    torch.set_num_threads(1)
    train = TpuGraphsLayout(args.data, "train", prune="hops-1", scaling="log1p-standardise")
    valid = TpuGraphsLayout(args.data, "valid", prune="hops-1", scaling=train.scaler)
    model = train_model(train, args.steps, args.seed)
    for name, metrics in judge(valid, partial(predict, model)).items():
        values = (f"{key} {metrics[key]:.3f}" for key in ("kendall_tau", "opa", "slowdown@5"))
        print(f"{name}: {', '.join(values)}, {metrics['n_graphs']} graphs")  # noqa: T201


if __name__ == "__main__":
    main()
