"""Small models of LightGBM, as text."""

import lightgbm
import numpy as np
from numpy.typing import NDArray

NAMES = ["one", "two", "three", "four"]


def rows() -> NDArray[np.float64]:
    """Return rows to rank (r, 4), some of whose values are 0 or missing."""
    rng = np.random.default_rng(1)
    x = rng.random((200, len(NAMES)))
    x[rng.random(x.shape) < 0.2] = 0
    x[rng.random(x.shape) < 0.2] = np.nan
    return x


def booster_text(*, is_constant: bool = False) -> str:
    """Return a model of three trees of five leaves, or of one without a split."""
    x = np.random.default_rng(0).random((300, len(NAMES)))
    y = np.ones(300) if is_constant else x[:, 0] + x[:, 1] * x[:, 2]
    dataset = lightgbm.Dataset(x, y, feature_name=NAMES)
    parameters = {"num_leaves": 5, "verbose": -1, "objective": "regression", "num_threads": 1}
    return lightgbm.train(parameters, dataset, 3).model_to_string()
