"""Trees on the configs of one program, and the weights of the rankers of a program.

One booster reads the features. A second one, for at most 10,000 configs, also reads the statistics
of each config. A program with few configs has a third ranker. If it also has few features, the
third ranker is a random forest (Breiman, 2001), because deep trees see combinations of layouts.
Cross-validation on the program's configs then chooses the weights of the three (Breiman, 1996,
"Stacked regressions"). Otherwise the third ranker is a linear one on statistics, because the cost
of a layout is nearly a sum over tensors.

All rankers predict the normal deviate of a config's rank by runtime, so their scores have one
scale. Sizes of trees were chosen on the sample's train split and on synthetic costs of up to 24,000
configs.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import norm, rankdata

from data.graphs.graph import LayoutGraph
from features.statistics.configs import StatisticsSet
from models.config.trees import BoostingConfig, ConfigColumnsConfig
from models.trees.column_features import ColumnFeatures
from models.trees.rows import GraphRows, bin_rows, dataset_parameters

if TYPE_CHECKING:
    import lightgbm

TreesName = Literal["columns", "both", "forest"]
RankerName = Literal["columns", "both", "forest", "linear"]
# More configs are learned by larger trees, and without a third ranker.
MAX_FEW_CONFIGS = 2_000
# Statistics take time, and help no more for more configs.
MAX_STATISTICS_CONFIGS = 10_000
# A forest needs this number of configs for each feature.
FOREST_CONFIGS_PER_FEATURE = 3
# A linear ranker counts as much as a booster up to this number of configs, and then less and less.
LINEAR_CONFIGS = 100
# Folds of the configs that choose the weights next to a forest.
STACKING_FOLDS = 5


class TreeSettings(NamedTuple):
    """The trees of one ranker. program_trees.toml explains the fields."""

    rounds: float
    min_rows_per_leaf: int
    parameters: Mapping[str, float | int | str]


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FEW, MANY = (
    {name: TreeSettings(**settings) for name, settings in _TABLES[size].items()}
    for size in ("few", "many")
)


def ranker_weights(n_configs: int, n_features: int) -> dict[RankerName, float]:
    """Return the rankers of a program and their default weights, which sum to 1."""
    weights: dict[RankerName, float] = {"columns": 1.0}
    if n_configs <= MAX_STATISTICS_CONFIGS:
        weights["both"] = 1.0
    if n_configs <= MAX_FEW_CONFIGS:
        if FOREST_CONFIGS_PER_FEATURE * n_features <= n_configs:
            weights["forest"] = 1.0
        else:
            weights["linear"] = min(1.0, LINEAR_CONFIGS / n_configs)
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def statistics_read_by(name: RankerName, statistics: StatisticsSet) -> StatisticsSet | None:
    """Return the statistics that trees read next to the features."""
    return statistics if name == "both" else None


@dataclass(frozen=True)
class ProgramTrees:
    """Fits trees to some configs of one program."""

    graph: LayoutGraph
    features: ColumnFeatures
    config: ConfigColumnsConfig
    seed: int
    threads: int

    def fit(self, name: TreesName, configs: GraphRows) -> "lightgbm.Booster":
        """Fit the trees of one ranker to normal deviates. A higher prediction means faster."""
        import lightgbm

        n_configs, statistics = len(configs.rows), statistics_read_by(name, self.config.statistics)
        settings = (FEW if n_configs <= MAX_FEW_CONFIGS else MANY)[name]
        compute = self.features.rows_of(self.graph, statistics)
        binning = BoostingConfig(min_rows_per_leaf=settings.min_rows_per_leaf)
        names = self.features.names(statistics)
        dataset = bin_rows([configs], binning, lambda _, rows: compute(rows), names)
        dataset.set_label(-normal_deviates(configs.runtime))
        parameters: dict[str, Any] = {
            **dataset_parameters(binning, n_configs),
            **settings.parameters,
            "objective": "regression",
            "metric": "none",
            "seed": self.seed,
            "num_threads": self.threads,
        }
        rounds = max(1, round(settings.rounds * self.config.num_boost_round))
        return lightgbm.train(parameters, dataset, rounds)

    def stacked_weights(self, configs: GraphRows) -> dict[RankerName, float]:
        """Choose the weights of trees by nonnegative least squares on held-out configs.

        Returns:
            Weights of the useful rankers, which sum to 1. If no ranker is useful, equal weights.
        """
        names: tuple[TreesName, ...] = tuple(FEW)
        held_out_scores = np.empty((len(configs.rows), len(names)))
        fold_of = np.arange(len(configs.rows)) % STACKING_FOLDS
        for fold in np.unique(fold_of):
            train, held_out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
            part = replace(configs, rows=configs.rows[train], runtime=configs.runtime[train])
            for column, name in enumerate(names):
                compute = self.features.rows_of(
                    self.graph, statistics_read_by(name, self.config.statistics)
                )
                held_out_scores[held_out, column] = self.fit(name, part).predict(
                    compute(configs.rows[held_out]), num_threads=self.threads
                )
        weights, _ = nnls(held_out_scores, -normal_deviates(configs.runtime))
        if not weights.any():
            weights = np.ones(len(names))
        share = weights / weights.sum()
        return {name: float(w) for name, w in zip(names, share, strict=True) if w > 0}


def normal_deviates(runtime: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the normal deviates of the ranks of runtimes (r,). Equal runtimes share their rank."""
    return np.asarray(norm.ppf((rankdata(runtime) - 0.5) / len(runtime)))
