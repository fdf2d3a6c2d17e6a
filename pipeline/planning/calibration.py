"""How this machine's GPU, or processor, compares with what is computed for it: one step, timed."""

import time
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch

from common.errors import UsageError
from models.config.recipe import Recipe
from models.training.device import torch_prepared, training_device
from pipeline.planning.cards import CARDS, Card
from pipeline.planning.costs import COUNTED, Machine, is_network
from pipeline.planning.made_up import Case, Size, count_step, make_case, steps

ON_GPU = COUNTED
ON_CPU = Size(nodes=250, edges=425, configurable=70, configs=1_000)
TIMED = 8  # steps, of which the first ones fill caches


def calibrated(machine: Machine, recipe: Recipe) -> Machine:
    """Time a step of the recipe's first layout network, and scale networks by what it takes.

    On a GPU those that it computes; without one, those on the processor.

    Raises:
        UsageError: there is no such network, or the GPU at hand is not the machine's.
    """
    networks = [name for name in recipe.models_of("layout") if is_network(recipe, name)]
    if not networks:
        raise UsageError(f"--calibrate: recipe {recipe.name} has no layout network to time")
    device = training_device(recipe.accelerator)
    on_gpu = device.type != "cpu"
    if on_gpu and (
        machine.card is None or card_named(torch.cuda.get_device_name()) != machine.card
    ):
        name = torch.cuda.get_device_name()
        raise UsageError(f"--calibrate: this machine's GPU is {name}; expected --gpu to say so")
    case = make_case(recipe, networks[0], ON_GPU if on_gpu else ON_CPU)
    counts = count_step(case, machine.card)
    with torch_prepared(threads=recipe.threads if on_gpu else 1, device=device):
        seconds = step_seconds(make_case(recipe, networks[0], ON_GPU if on_gpu else ON_CPU), device)
    scale = seconds / machine.seconds(counts, on_gpu=on_gpu)
    told = f"a training step of {networks[0]} took {scale:.2f} times as long as computed on this"
    if on_gpu:
        return replace(machine, gpu_scale=scale, measured=f"{told} machine's GPU")
    return replace(machine, cpu_scale=scale, measured=f"{told} machine's processor, one thread")


def card_named(name: str) -> Card | None:
    """Return the card that torch calls by a name such as "Tesla T4"; None if it is not known."""
    words = name.lower().replace("-", " ").split()
    return next((card for key, card in CARDS.items() if key in words), None)


def step_seconds(case: Case, device: torch.device) -> float:
    """Return the median seconds of a training step; on a CPU those of the processor."""
    ends: list[float] = []

    def ended(_: int) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter() if device.type == "cuda" else time.process_time())

    steps(case, device, TIMED, ended)
    return median(after - before for before, after in pairwise(ends[2:-1]))
