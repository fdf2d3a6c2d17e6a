"""Load the trained models of a run folder as one ranker.

A collection without a train split is ranked by the models of a sibling collection. The order of
preference is: same source and other search (the same programs), other source and same search,
both different. Without any trained model the untrained baseline ranks. The report names the source
of the models and the reason.
"""

from collections.abc import Collection as Container
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError, blame
from data.graphs.graph import Graph
from data.tree import COLLECTIONS, Collection, GraphFile, collection_named
from ensembles.blend import BlendSpec, apply_blend, run_blend
from ensembles.scores import scores_path
from models.config.recipe import Recipe
from models.predict import read_scores, scores_table
from models.registry import Ranker
from models.run_folder import (
    CONFIG,
    check_done,
    check_finished,
    is_done,
    read_config,
    read_recipe,
)
from models.trees.baseline import BASELINES

BASELINE = "baseline"
# Ending of the folder of models that learned from the valid split, too.
FINAL = "-final"


@dataclass(frozen=True)
class Member:
    """One model of an ensemble. The folder of BASELINE does not exist."""

    model: str
    seed: int
    folder: Path
    kind: str
    trust: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model}-seed{self.seed}"

    @property
    def is_trained(self) -> bool:
        return self.model != BASELINE

    def load(self) -> Ranker:
        """Load the trained model, or return the baseline."""
        from models.registry import load_model

        return load_model(self.folder, self.trust) if self.is_trained else BASELINES[self.kind]


class Source(NamedTuple):
    """Collection whose models rank another one, and the reason. None is the baseline."""

    collection: Collection | None
    reason: str | None = None


def choose_source(
    collection: Collection, trainable: Container[str], reasons: Mapping[str, str]
) -> Source:
    """Choose the models that rank a collection. Models learn from `trainable` collections."""
    if collection.name in trainable:
        return Source(collection)
    reason = reasons.get(collection.name, "no train split")
    parts = collection.name.split(":")

    def distance(sibling: Collection) -> tuple[bool, ...]:
        return tuple(a != b for a, b in zip(parts, sibling.name.split(":"), strict=True))

    siblings = [c for c in COLLECTIONS if c.kind == collection.kind and c.name in trainable]
    if siblings:
        return Source(min(siblings, key=distance), reason)
    return Source(None, f"{reason}; and no sibling collection has anything to learn from")


def members_of(
    recipe: Recipe,
    collection: Collection,
    out: Path,
    source: Source | None = None,
    *,
    final: bool = False,
) -> list[Member]:
    """List the members that rank a collection.

    Args:
        source: Source of the models. If it has no collection, the baseline is the only member.
        final: List the models of the test split, some of which may have learned the valid split.
    """
    if source is not None and source.collection is None:
        return [Member(BASELINE, 0, out / "models" / BASELINE, collection.kind)]
    place = recipe.learned_as(collection)
    settings, kind = recipe.of(place), collection.kind
    return [
        Member(model, seed, folder / f"{model}-seed{seed}", kind, recipe.trust)
        for model in settings.models_of(kind)
        for ending in [FINAL if final and settings.fits(model)[-1].is_final else ""]
        for folder in [out / "models" / f"{place.slug}{ending}"]
        for seed in settings.seeds_of(model)
    ]


def scores_of_run(run: Path, collection: Collection, split: str) -> pl.DataFrame:
    """Blend the scores of a run's members for the split "valid" or "test"."""
    check_finished(run)
    recipe = read_recipe(run)
    folder = scores_path(run, collection, BASELINE, split).parent.parent
    paths = sorted(folder.glob(f"*/{split}.parquet"))
    members = {
        path.parent.name: path for path in paths if path.parent.name not in ("blend", BASELINE)
    }
    if not members:
        raise PipelineError(f"{run}: has no scores of the {split} split of {collection.name}")
    tables = {name: read_scores(path) for name, path in members.items()}
    return apply_blend(tables, run_blend(run, recipe.blend, collection, list(members)))


@dataclass(frozen=True)
class Ensemble:
    """Models that rank one collection together."""

    collection: Collection
    rankers: dict[str, Ranker]
    spec: BlendSpec

    def __repr__(self) -> str:
        return f"<ranker of {self.collection.name}: {', '.join(self.rankers)}>"

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Return the score of every config of one graph, (c,) float32, lower = faster."""
        return self.blended(graph, self.member_scores(graph))

    def member_scores(self, graph: Graph) -> dict[str, NDArray[np.float32]]:
        """Return the scores of one graph, (c,) float32, by each member that ranks the graph."""
        by_member = ((name, ranker.score(graph)) for name, ranker in self.rankers.items())
        scores = {name: scores for name, scores in by_member if scores is not None}
        if not scores:
            raise unranked(graph.file, [*self.rankers])
        return scores

    def blended(
        self, graph: Graph, members: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Blend the members' scores, (c,) each, to (c,). A single member's are not scaled."""
        tables = {
            name: scores_table(graph, scores, ranker=name) for name, scores in members.items()
        }
        table = tables.popitem()[1] if len(tables) == 1 else apply_blend(tables, self.spec)
        return table["score"].to_numpy()


def unranked(file: GraphFile, members: Sequence[str]) -> PipelineError:
    """Return the error about a graph that no member ranks."""
    return PipelineError(
        f"{file.submission_id}: neither this program nor the same program in another size is a "
        f"train graph of {', '.join(members)}; expected one of them, or a model of another kind"
    )


def ranked_by(folder: Path, target: Collection | None) -> Collection:
    """Return the collection whose models of a run folder rank a collection.

    Args:
        target: Collection to rank. None for the collection that a single model learned from.
    """
    config = read_config(folder)
    if target is None:
        if "collection" in config:
            return collection_named(config["collection"])
        remedy = "pass --collection (from Python collection=), such as layout:xla:random"
        raise UsageError(f"{folder}: ranks more than one collection; {remedy}")
    if "model" in config:
        with blame(folder / CONFIG, "the config of a trained model"):
            origin = collection_named(config.get("collection") or config["collections"][0])
        if target.kind != origin.kind:
            raise PipelineError(f"{folder}: ranks {origin.kind} configs, not {target.name}")
        return origin if "collection" in config else target
    check_finished(folder)
    check_done(folder)
    recipe = read_recipe(folder)
    # One trained member is enough here. Loading raises an error for a missing one.
    trained_names = {
        c.name
        for c in COLLECTIONS
        if any(is_done(m.folder) for m in members_of(recipe, c, folder, final=True))
    }
    source = choose_source(target, trained_names, {}).collection
    if source is None:
        raise PipelineError(f"{folder}: no trained model can rank {target.name}")
    return source


def load_ranker(
    run: Path | str, *, collection: str | None = None, trust: Container[str] = ()
) -> Ensemble:
    """Load the trained models of a run folder.

    Args:
        run: Folder of a run, or of one model.
        collection: Collection to rank, for example "layout:xla:random". If the run has no models
            for it, those of a sibling collection rank. The default is the collection that a
            single model learned from.
        trust: Custom models that may be imported, as "package.module:Class".
            docs/explain/trust.md has the reason.

    Raises:
        PipelineError: The folder is not a run folder, is unfinished or damaged, or has no models
            for the collection.
        UsageError: The collection does not exist, or a custom model is not in `trust`.
    """
    from models.registry import load_model

    folder, target = Path(run), collection_named(collection) if collection else None
    source, config = ranked_by(folder, target), read_config(folder)
    if "model" in config:
        rankers = {folder.name: load_model(folder, trust)}
        return Ensemble(source, rankers, BlendSpec("minmax-mean", {folder.name: 1.0}))
    recipe = read_recipe(folder, trust)
    # The last digits of a sum depend on the order, so this is the order of the run.
    members = members_of(recipe, source, folder, final=True)
    rankers = {member.name: member.load() for member in members}
    spec = run_blend(folder, recipe.blend, target or source, list(rankers))
    return Ensemble(source, rankers, spec)
