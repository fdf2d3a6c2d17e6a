"""What a search is judged by, and how it goes: the [study] table of a search space."""

from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator

from common.errors import PipelineError
from common.settings import FrozenConfig
from data.tree import collection_named
from models.config.recipe import LayoutModelName, TileModelName

BLEND = "blend"
JudgedName = Literal[LayoutModelName, TileModelName, "blend"]
PrunerName = Literal["none", "hyperband", "wilcoxon"]
ObjectivesName = Literal["score", "score-and-training-time", "score-and-inference-time"]
LATER_KEYS = ("pruner", "objectives")  # in the order they came


class StudyConfig(FrozenConfig):
    """What a trial is judged by: a model or a blend, cross-validated on a train split.

    Attributes:
        collection: such as "layout:xla:default".
        model: its name in the registry; or "blend": all models by which the recipe ranks the
            collection's kind, a seed each, blended as the recipe says.
        folds: of whole architectures; each is held out once.
        seed: of the folds and of the search; the training's is the recipe's first.
        pruner: gives a trial up after a fold, see pipeline/tuning/pruning.py. "hyperband" compares
        the
            mean of its folds so far with other trials'; "wilcoxon" its graphs so far with the best
            trial's, one by one.
        finalists: so many of the best trials, and the baseline, are trained again with other seeds,
            see pipeline/tuning/finalists.py; 0 = the best trial wins.
        seeds: with how many.
        objectives: "score", or that and as few seconds of training, or of inference per 1,000
            configs, as can be: then the search tries for recipes of which none is both better and
            faster. best.toml stays the best by score.
    """

    collection: str
    model: JudgedName
    folds: Annotated[int, Field(ge=2)] = 2
    seed: Annotated[int, Field(ge=0)] = 0
    pruner: PrunerName = "none"
    finalists: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1)] = 3
    objectives: ObjectivesName = "score"

    @field_validator("objectives")
    @classmethod
    def _one_if_pruned(cls, objectives: str, info: ValidationInfo) -> str:
        if objectives != "score" and info.data.get("pruner") != "none":
            raise ValueError('trials with two objectives are not pruned; expected pruner = "none"')
        return objectives

    @field_validator("collection")
    @classmethod
    def _known_collection(cls, name: str) -> str:
        try:
            return collection_named(name).name
        except PipelineError as error:
            raise ValueError(str(error)) from None

    @field_validator("model")
    @classmethod
    def _ranks_the_collection(cls, model: str, info: ValidationInfo) -> str:
        kind = str(info.data.get("collection", "")).split(":", 1)[0]
        known = (*get_args(LayoutModelName if kind == "layout" else TileModelName), BLEND)
        if kind and model not in known:
            raise ValueError(f"{kind} configs are ranked by {' and '.join(known)}")
        return model
