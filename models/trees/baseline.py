"""The untrained baseline as a member of a tile blend.

It reads no runtimes, so its scores do not depend on the hardware of the train split.
"""

from pathlib import Path

from models.config.recipe import Recipe
from models.registry import TrainJob
from models.trees.linear import BASELINES, Baseline


def train(job: TrainJob) -> None:
    """Write nothing, because the baseline has nothing to learn."""


def load(name: str, run_dir: Path, recipe: Recipe) -> Baseline:
    return BASELINES["tile"]
