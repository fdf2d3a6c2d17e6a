"""Whom a study's trials judge: one model, or all of the recipe's of one kind, blended."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from data.graph_store.fingerprint import fingerprint
from data.graphs.graph import Graph
from data.tree import Collection, GraphFile, collection_named
from models.config.recipe import Recipe
from models.predict import cached_scores, predict
from models.registry import MODELS
from models.training.jobs import Ranker, TrainJob
from pipeline.tuning.space import SearchSpace
from pipeline.tuning.study_config import BLEND

# Of a recipe, what no training of one model reads; other models' tables are left out as well.
_NOT_LEARNED_FROM = {"name", "seeds", "layout", "tile", "blend"}


@dataclass(frozen=True)
class ScoredRanker:
    """A model of which only its scores are kept, of some graphs.

    Attributes:
        scores: (c,) float32 by graph name.
    """

    scores: Mapping[str, NDArray[np.float32]]

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Return the graph's scores; (c,) float32, lower = faster."""
        return self.scores[graph.file.name]


def judged_models(recipe: Recipe, model: str, kind: str) -> tuple[str, ...]:
    """Return the models that a trial trains: `model`, or for "blend" the recipe's of `kind`."""
    return recipe.models_of(kind) if model == BLEND else (model,)


def check_space_fits(space: SearchSpace, recipe: Recipe) -> None:
    """Raise UsageError where the space changes a model that is no part of the recipe's blend."""
    if space.study.model != BLEND:
        return
    kind = collection_named(space.study.collection).kind
    blended = recipe.models_of(kind)
    for key in space.parameters:
        changed = next((part for part in key.split(".") if part in MODELS), None)
        if changed and changed not in blended:
            raise UsageError(
                f"search space: '{key}' has no effect; the recipe's {kind}.models are "
                f"{', '.join(blended)}"
            )


def blended(recipe: Recipe, collection: Collection, rankers: Mapping[str, Ranker]) -> Ranker:
    """Return models as one that ranks by the recipe's own blend.

    Args:
        rankers: by member name, in the recipe's order.
    """
    # A run's blend is defined a level above the models; only here do they ask for it.
    from ensembles.choice.in_run import recipe_mixing
    from ensembles.ensemble import Ensemble

    mixing = recipe_mixing(recipe.blend, collection.kind, list(rankers))
    return Ensemble(collection, dict(rankers), mixing)


def ranker_of_kept(
    job: TrainJob, held_out: Sequence[GraphFile], kept: Path, train: Callable[[], Ranker]
) -> Ranker:
    """Return a model by its scores of `held_out`, which another trial may have left in `kept`.

    Trials that differ in what this training does not read share its scores. Two that need them at
    once both train, and write the same.

    Args:
        kept: the folder of all such scores; one file each, whole or absent.
        train: called where there are none yet.
    """
    path = kept / f"{job.model}-seed{job.seed}-{_digest(job, held_out)}.parquet"
    table = cached_scores(path, lambda: predict(train(), held_out))
    parts = table.partition_by("graph", as_dict=True, maintain_order=True)
    return ScoredRanker({str(key[0]): own["score"].to_numpy() for key, own in parts.items()})


def _digest(job: TrainJob, held_out: Sequence[GraphFile]) -> str:
    """Digest all that decides a model's scores of held-out graphs; 16 hex digits."""
    others = set(MODELS) - {job.model}
    decisive = {
        "model": job.model,
        "seed": job.seed,
        "recipe": job.recipe.model_dump(mode="json", exclude=others | _NOT_LEARNED_FROM),
        "train_data": fingerprint(job.files),
        "shared_data": fingerprint(job.shared.files) if job.shared else None,
        "held_out": fingerprint(held_out),
    }
    text = json.dumps(decisive, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
