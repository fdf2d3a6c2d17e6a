"""The configuration of each ranker on statistics, typed and frozen. The import is fast."""

from typing import Annotated, Literal

from pydantic import Field

from models.config.networks import (
    Count,
    ModelConfig,
    Positive,
    PositiveFloat,
    Several,
    StatisticsName,
)

# Limit of LightGBM.
MAX_LEAVES = 131_072


class RowsConfig(ModelConfig):
    """The configs and statistics that a ranker on statistics learns from.

    Attributes:
        statistics: Statistics of each config: "plain" or "all". "all" adds details of the config
            and statistics of the program. See docs/reference/statistics.md.
        configs_per_graph: Largest number of distinct configs of a graph in training. More configs
            are sampled at random.
    """

    statistics: StatisticsName = "plain"
    configs_per_graph: Several = 500


class BaselineConfig(ModelConfig):
    """The untrained order by tile steps, in `models/trees/baseline.py`."""


class LinearConfig(RowsConfig):
    """Ridge regression on statistics, in `models/trees/linear.py`.

    Attributes:
        penalty: Weight of the squared coefficients in the loss, on standardised statistics.
    """

    statistics: StatisticsName = "all"
    penalty: PositiveFloat = 100.0


class BoostingConfig(RowsConfig):
    """Gradient-boosted trees on statistics, in `models/trees/boosting.py`.

    Attributes:
        objective: Loss of the trees. "lambdarank" weighs the fastest configs most.
            "pairwise_logistic" weighs all pairs of configs equally. "squared_error" estimates the
            runtime of each config alone.
        relevance_levels: Number of relevance levels into which "lambdarank" divides the runtimes of
            a graph.
        linear_start: Start from the scores of a linear ranker on plain statistics, and correct its
            errors. A fold of `early_stop` starts from a linear ranker that has not learned the
            held-out graphs.
        num_boost_round: Number of trees.
        learning_rate: Factor for the contribution of each tree, for example 0.04.
        num_leaves: Largest number of leaves of a tree.
        max_leaves: If it is above `num_leaves`, the folds of `early_stop` choose the number of
            leaves. It is doubled plus one, up to this number, as long as the mean over the folds
            gets better. For example, 7 and 31 try 7, 15 and 31 leaves. 0 uses `num_leaves`.
        min_rows_per_leaf: Smallest number of configs in a leaf. A small training set lowers it to
            1/128 of the configs, but not below 2.
        feature_fraction: Share of the statistics that a tree may use, drawn for each tree.
        configs_per_group: Largest number of configs of a graph that are compared with each other.
            The time grows with this number.
        early_stop: Number of rounds without a better mean over the folds before the folds stop. The
            model then gets the best number of trees. 0 trains all `num_boost_round` trees.
        folds: Number of cross-validation folds for `early_stop`. All graphs of a family are in one
            fold.
    """

    objective: Literal["lambdarank", "pairwise_logistic", "squared_error"] = "lambdarank"
    relevance_levels: Annotated[int, Field(ge=2, le=64)] = 32
    linear_start: bool = False
    num_boost_round: Positive = 200
    learning_rate: PositiveFloat = 0.08
    num_leaves: Annotated[int, Field(ge=2, le=MAX_LEAVES)] = 31
    max_leaves: Annotated[int, Field(ge=0, le=MAX_LEAVES)] = 0
    min_rows_per_leaf: Positive = 20
    feature_fraction: Annotated[float, Field(gt=0, le=1)] = 0.7
    configs_per_group: Annotated[int, Field(ge=2, le=10_000)] = 10_000
    early_stop: Count = 0
    folds: Annotated[int, Field(ge=2, le=100)] = 3

    @property
    def leaves_to_try(self) -> tuple[int, ...]:
        """Return the numbers of leaves that folds compare, the smallest one first."""
        sizes = [self.num_leaves]
        while 2 * sizes[-1] + 1 <= self.max_leaves:
            sizes.append(2 * sizes[-1] + 1)
        return tuple(sizes)


class ConfigColumnsConfig(RowsConfig):
    """Trees on the configs of each train graph, in `models/trees/config_columns.py`.

    The number of configs determines the sizes of the trees and the kind of the third ranker.

    Attributes:
        statistics: Statistics that trees read next to the layouts of tensors: "plain" or "all".
        configs_per_graph: Largest number of distinct configs of a graph in training. More configs
            are sampled at random. The training time grows with this number.
        num_boost_round: Number of trees of a booster for at most 2,000 configs. More configs get
            five times as many.
    """

    statistics: StatisticsName = "all"
    configs_per_graph: Several = 100_000
    num_boost_round: Positive = 400
