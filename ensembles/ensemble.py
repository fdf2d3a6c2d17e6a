"""The trained models of a run folder as one ranker, for graphs that come one at a time.

Which of them rank a collection that has nothing to learn from, in order: those of its own train
split; else of a sibling layout collection with the same source and the other search (the very same
programs), with the other source and the same search, with both different; else a baseline that
needs no training. Never silently: the report names what was taken, and why.
"""

from collections.abc import Collection as Container
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError, blame
from data.graphs.graph import Graph
from data.tree import COLLECTIONS, Collection, collection_named
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
from models.trees.linear import BASELINES

BASELINE = "baseline"


@dataclass(frozen=True)
class Member:
    """One model of an ensemble."""

    model: str  # its name in the registry, or BASELINE, which needs no training
    seed: int
    folder: Path  # where the trained model lies; nothing is there of what needs none
    kind: str
    trust: tuple[str, ...] = ()  # custom models that may be imported

    @property
    def name(self) -> str:
        return f"{self.model}-seed{self.seed}"

    @property
    def is_trained(self) -> bool:
        """Tell whether there is anything to train."""
        return self.model != BASELINE

    def load(self) -> Ranker:
        """Load the trained model, or what needs no training.

        Raises:
            PipelineError: its training has not ended, or its files are damaged.
        """
        from models.registry import load_model

        return load_model(self.folder, self.trust) if self.is_trained else BASELINES[self.kind]


class Source(NamedTuple):
    """Where a collection's models come from."""

    collection: Collection | None  # whose train split they learned from; None for a baseline
    reason: str | None = None  # why it is not the collection's own; None if it is


def choose_source(
    collection: Collection, trainable: Container[str], reasons: Mapping[str, str]
) -> Source:
    """Choose whose models rank `collection`.

    Args:
        trainable: names of collections with at least one graph to learn from.
        reasons: for the others, why there is nothing to learn from.
    """
    if collection.name in trainable:
        return Source(collection)
    reason = reasons.get(collection.name, "no train split")
    parts = collection.name.split(":")

    def distance(other: Collection) -> tuple[bool, ...]:
        return tuple(a != b for a, b in zip(parts, other.name.split(":"), strict=True))

    siblings = [c for c in COLLECTIONS if c.kind == collection.kind and c.name in trainable]
    if siblings:
        return Source(min(siblings, key=distance), reason)
    return Source(None, f"{reason}; and no sibling collection has anything to learn from")


def members_of(
    recipe: Recipe, collection: Collection, out: Path, source: Source | None = None
) -> list[Member]:
    """List the members that learned from `collection`; the baseline alone if `source` is one."""
    if source is not None and source.collection is None:
        return [Member(BASELINE, 0, out / "models" / BASELINE, collection.kind)]
    folder = out / "models" / recipe.learned_as(collection).slug
    return [
        Member(model, seed, folder / f"{model}-seed{seed}", collection.kind, recipe.trust)
        for model in recipe.models_of(collection.kind)
        for seed in recipe.seeds
    ]


def scores_of_run(run: Path, collection: Collection, split: str) -> pl.DataFrame:
    """Blend the scores of a run's members.

    Args:
        run: Folder of a finished run.
        collection: Collection to read.
        split: Split to read, "valid" or "test".

    Returns:
        Blended scores, with the columns of SCORE_SCHEMA.

    Raises:
        PipelineError: The run is unfinished, or has no scores of this collection and split.
    """
    check_finished(run)
    recipe = read_recipe(run)
    folder = scores_path(run, collection, BASELINE, split).parent.parent
    paths = sorted(folder.glob(f"*/{split}.parquet"))
    members = {
        path.parent.name: path for path in paths if path.parent.name not in ("blend", BASELINE)
    }
    if not members:
        told = f"{collection.name} is not ranked there"
        raise PipelineError(f"{run}: has no scores of its {split} split: {told}")
    tables = {name: read_scores(path) for name, path in members.items()}
    return apply_blend(tables, run_blend(run, recipe.blend, collection, list(members)))


@dataclass(frozen=True)
class Ensemble:
    """Models that rank one collection together."""

    collection: Collection  # whose train split they learned from
    rankers: dict[str, Ranker]
    spec: BlendSpec

    def __repr__(self) -> str:
        """Say what it is in one line."""
        return f"<ranker of {self.collection.name}: {', '.join(self.rankers)}>"

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of one graph; (c,) float32, lower = faster.

        Raises:
            PipelineError: scores that are not finite.
        """
        return self.blended(graph, self.member_scores(graph))

    def member_scores(self, graph: Graph) -> dict[str, NDArray[np.float32]]:
        """Score every config of one graph with each member; (c,) float32, lower = faster."""
        return {name: ranker.score(graph) for name, ranker in self.rankers.items()}

    def blended(
        self, graph: Graph, members: Mapping[str, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Blend the members' scores of a graph; the scores of a single member stay as they are.

        Args:
            graph: Graph of c configs.
            members: Scores by member, (c,) each.

        Returns:
            (c,) float32, lower = faster.

        Raises:
            PipelineError: A score is not finite.
        """
        tables = {
            name: scores_table(graph, scores, ranker=name) for name, scores in members.items()
        }
        table = tables.popitem()[1] if len(tables) == 1 else apply_blend(tables, self.spec)
        return table["score"].to_numpy()


def ranked_by(folder: Path, wanted: Collection | None) -> Collection:
    """Return whose models rank a collection in a run folder, without loading them.

    Args:
        wanted: None = what a model's run folder learned from; where a run has no model of it, a
            sibling's serve.

    Raises:
        UsageError: the models rank more than one collection, and none is named.
        PipelineError: no run folder, an unfinished run, or models of another kind.
    """
    config = read_config(folder)
    if wanted is None:
        if "collection" in config:
            return collection_named(config["collection"])
        raise UsageError(
            f"{folder}: ranks more than one collection; pass --collection (from "
            "Python collection=), such as layout:xla:random"
        )
    if "model" in config:
        with blame(folder / CONFIG, "the config of a trained model"):
            own = collection_named(config.get("collection") or config["collections"][0])
        if wanted.kind != own.kind:
            raise PipelineError(f"{folder}: ranks {own.kind} configs, not {wanted.name}")
        return own if "collection" in config else wanted
    check_finished(folder)
    check_done(folder)
    recipe = read_recipe(folder)
    have = {  # those of which some are trained; a hole shows in loading
        c.name for c in COLLECTIONS if any(is_done(m.folder) for m in members_of(recipe, c, folder))
    }
    source = choose_source(wanted, have, {}).collection
    if source is None:
        raise PipelineError(f"{folder}: no trained model can rank {wanted.name}")
    return source


def load_ranker(
    run: Path | str, *, collection: str | None = None, trust: Container[str] = ()
) -> Ensemble:
    """Load the trained models of a run folder.

    Args:
        collection: whose models, such as "layout:xla:random"; of one model's folder by default the
            one that it was trained on. Where the run has none of it, a sibling's serve.
        trust: Custom models that may be imported, as "package.module:Class".
            docs/explain/trust.md has the reason.

    Raises:
        PipelineError: not a run folder, unfinished, damaged, or no fitting models.
        UsageError: no such collection, or a custom model that is not in `trust`.
    """
    from models.registry import load_model

    folder, wanted = Path(run), collection_named(collection) if collection else None
    source, config = ranked_by(folder, wanted), read_config(folder)
    if "model" in config:
        alone = {folder.name: load_model(folder, trust)}
        return Ensemble(source, alone, BlendSpec("minmax-mean", {folder.name: 1.0}))
    recipe = read_recipe(folder, trust)
    # In the recipe's order, as in the run itself: a sum's last digits depend on it.
    rankers = {member.name: member.load() for member in members_of(recipe, source, folder)}
    spec = run_blend(folder, recipe.blend, wanted or source, list(rankers))
    return Ensemble(source, rankers, spec)
