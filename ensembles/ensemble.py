"""The trained models of a run folder as one ranker, for graphs that come one at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.graph import Graph
from data.tree import COLLECTIONS, Collection, collection_named
from ensembles.blend import Mixing, blend
from ensembles.choice.in_run import recipe_mixing, written_mixing
from ensembles.diversify_picks import diversify_scores
from ensembles.members import choose_source, members_of
from models.config.recipe import BlendConfig, Recipe
from models.predict import scores_table
from models.registry import Ranker
from models.run_folder import CONFIG, check_done, is_done, read_config


@dataclass(frozen=True)
class Ensemble:
    """Models that rank one collection together."""

    collection: Collection  # whose train split they learned from
    rankers: dict[str, Ranker]
    mixing: Mixing

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
        """Make one of the members' scores (c,) of a graph; (c,) float32, lower = faster.

        Raises:
            PipelineError: scores that are not finite.
        """
        tables = {name: scores_table(graph, scores) for name, scores in members.items()}
        method, weights, diversity = self.mixing
        if len(tables) == 1 and diversity is None:  # as a run blends
            return tables.popitem()[1]["score"].to_numpy()
        blended = blend(tables, method=method, weights=weights)["score"].to_numpy()
        return diversify_scores(graph, blended, diversity) if diversity else blended


def ranked_by(folder: Path, wanted: Collection | None) -> Collection:
    """Return whose models rank a collection in a run folder, without loading them.

    Args:
        wanted: None = what a model's run folder learned from; where a run has no model of it, a
            sibling's serve.

    Raises:
        PipelineError: no run folder, an unfinished run, or models of another kind.
    """
    config = read_config(folder)
    if wanted is None:
        if "collection" in config:
            return collection_named(config["collection"])
        raise PipelineError(
            f"{folder}: holds models of many collections; pass --collection, such as "
            "layout:xla:random"
        )
    if "model" in config:
        own = collection_named(config.get("collection") or config["collections"][0])
        if wanted.kind != own.kind:
            raise PipelineError(f"{folder}: ranks {own.kind} configs, not {wanted.name}")
        return own if "collection" in config else wanted
    if not is_done(folder):
        raise PipelineError(
            f"{folder}: an unfinished run; finish it with `run … --out {folder} --resume`"
        )
    check_done(folder)
    recipe = Recipe.from_table(config["recipe"], source=str(folder / CONFIG))
    have = {  # those of which some are trained; a hole shows in loading
        c.name for c in COLLECTIONS if any(is_done(m.folder) for m in members_of(recipe, c, folder))
    }
    source = choose_source(wanted, have, {}).collection
    if source is None:
        raise PipelineError(f"{folder}: no trained model can rank {wanted.name}")
    return source


def load_ranker(run: Path | str, *, collection: str | None = None) -> Ensemble:
    """Load the trained models of a run folder.

    Args:
        collection: whose models, such as "layout:xla:random"; of one model's folder by default the
            one that it was trained on. Where the run has none of it, a sibling's serve.

    Raises:
        PipelineError: not a run folder, unfinished, damaged, or no fitting models.
        UsageError: no such collection.
    """
    from models.train import load_model

    folder, wanted = Path(run), collection_named(collection) if collection else None
    source, config = ranked_by(folder, wanted), read_config(folder)
    if "model" in config:
        alone = recipe_mixing(BlendConfig(), source.kind, [folder.name])
        return Ensemble(source, {folder.name: load_model(folder)}, alone)
    recipe = Recipe.from_table(config["recipe"], source=str(folder / CONFIG))
    # In the recipe's order, as in the run itself: a sum's last digits depend on it.
    rankers = {member.name: member.load() for member in members_of(recipe, source, folder)}
    mixing = written_mixing(folder, recipe.blend, wanted or source, list(rankers))
    return Ensemble(source, rankers, mixing)
