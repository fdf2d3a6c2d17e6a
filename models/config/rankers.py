"""The configuration of each ranker that is no network, typed and frozen; light to import."""

from typing import Annotated, Literal

from pydantic import Field

from common.settings import FrozenConfig
from models.config.networks import Positive, PositiveFloat, StatisticsName


class RowsConfig(FrozenConfig):
    """Which configs of each graph a ranker on statistics learns from, and which statistics.

    Attributes:
        statistics: "plain" are those that networks read as well, "all" add details of each config
            and statistics of the program; features/statistics/STATISTICS.md has the formulas.
        configs_per_graph: distinct configs of a graph that are learned from, at most; drawn.
        relevance_levels: into how many levels of relevance "lambdarank" cuts a graph's runtimes.
    """

    statistics: StatisticsName = "plain"
    configs_per_graph: Annotated[int, Field(ge=2)] = 500
    relevance_levels: Annotated[int, Field(ge=2, le=64)] = 32


class LinearConfig(RowsConfig):
    """The linear rankers; see models/trees/linear.py.

    Attributes:
        penalty: of the squares of the weights, on standardised statistics.
    """

    statistics: StatisticsName = "all"
    penalty: PositiveFloat = 100.0


class BoostingConfig(RowsConfig):
    """The gradient-boosting rankers; see models/trees/boosting.py.

    Attributes:
        objective: "lambdarank", or "pairwise_logistic": every pair alike.
        linear_start: trees begin from the scores of the linear ranker, fitted to the same configs'
            plain statistics, and mend what it gets wrong; folds of `early_stop` begin alike.
        num_boost_round: trees, one after the other.
        learning_rate: how much of each tree is taken.
        num_leaves: of a tree, at most.
        min_rows_per_leaf: a leaf holds at least so many configs, of all graphs; fewer where there
            are few.
        feature_fraction: the share of the statistics that a tree may read, drawn for each.
        configs_per_group: configs are compared within groups of at most so many of a graph's; time
            grows with it.
        early_stop: take as many rounds as are best on folds of the train graphs, at most
            `num_boost_round`, each fold given up after so many rounds without progress; 0 = take
            all rounds.
        folds: of those, families kept apart.
    """

    objective: Literal["lambdarank", "pairwise_logistic"] = "lambdarank"
    linear_start: bool = False
    num_boost_round: Positive = 200
    learning_rate: PositiveFloat = 0.08
    num_leaves: Annotated[int, Field(ge=2)] = 31
    min_rows_per_leaf: Positive = 20
    feature_fraction: Annotated[float, Field(gt=0, le=1)] = 0.7
    configs_per_group: Annotated[int, Field(ge=2, le=10_000)] = 10_000
    early_stop: Annotated[int, Field(ge=0)] = 0
    folds: Annotated[int, Field(ge=2)] = 3


class ConfigColumnsConfig(BoostingConfig):
    """Boosting on one program's own configs; see models/trees/one_program.py.

    Chosen on configs of one real graph that docs/results/accuracy.md never reports, three splits of
    them. 800 rounds for 200, on four other splits: .809 of tau for .797 of 545 configs, .760 for
    .752 of 100; slower rounds (.04) .748.

    Attributes:
        statistics: what a second booster reads beside these columns, "plain" or "all"; it is kept
            where it surely helps.
        folds: of the program's configs, which tell whether statistics help; those of `early_stop`
            too.
    """

    statistics: StatisticsName = "all"
    configs_per_graph: Annotated[int, Field(ge=2)] = 100_000
    objective: Literal["lambdarank", "pairwise_logistic"] = "pairwise_logistic"
    num_boost_round: Positive = 800
    num_leaves: Annotated[int, Field(ge=2)] = 7
    min_rows_per_leaf: Positive = 2  # small trees that may split off two configs
    feature_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5
    configs_per_group: Annotated[int, Field(ge=2, le=10_000)] = 512
    folds: Annotated[int, Field(ge=2)] = 5
    linear_start: Literal[False] = False
