"""What a study asks: which recipe near this one ranks the train split's graphs best."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UsageError
from data.graph_store.fingerprint import fingerprint
from data.graph_store.prepare import stored_graphs
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named
from models.config.recipe import Recipe
from models.run_folder import CONFIG, begin, read_config
from models.training.dataset import split_usable
from models.training.folds import grouped_folds
from models.training.jobs import Progress
from pipeline.tuning.space import Parameters, SearchSpace, own_value, with_values

TRIALS, MEMBER_SCORES = "trials", "member-scores"
OF_THE_MACHINE = ("threads", "accelerator")  # of a recipe: what decides on how long, not on what


@dataclass(frozen=True)
class Question:
    """Which recipe near this one ranks these graphs best; can be handed to another process.

    `shared` are graphs of all layout collections, where some trial may begin from a shared model.
    """

    recipe: Recipe
    space: SearchSpace
    files: list[GraphFile]
    shared: list[GraphFile]
    folds: tuple[tuple[GraphFile, ...], ...]
    out: Path

    @property
    def table(self) -> dict[str, Any]:
        """Return the recipe as TOML values, a new table each time."""
        return self.recipe.model_dump(mode="json")

    def config(self) -> dict[str, Any]:
        """Return all that decides a trial's value, as TOML values.

        Where and with how many threads it is computed is no part of it, unless time is judged too.
        """
        recipe = self.table
        if self.space.study.objectives == "score":
            for key in OF_THE_MACHINE:
                del recipe[key]
        shared = {"shared_data": fingerprint(self.shared)} if self.shared else {}
        return {
            "train_data": fingerprint(self.files),
            **shared,
            "recipe": recipe,
            "space": self.space.decisive(),
        }

    def begin(self) -> None:
        """Make `out`, or go on with what was begun there.

        Raises:
            UsageError, PipelineError: as `models.run_folder.begin`.
        """
        config = self.config()
        if (self.out / CONFIG).exists():  # maybe with keys of the machine, as all once were
            begun = read_config(self.out).get("recipe", {})
            older = [key for key in OF_THE_MACHINE if key in begun]
            config["recipe"] = {key: begun[key] for key in older} | config["recipe"]
        begin(self.out, config, resume=True)

    def study_name(self) -> str:
        """Return a name that no other question has; the recipe's own name is no part of it.

        It is made of what `out` was begun with, which may be of a time before a key was added.
        """
        config = read_config(self.out)
        del config["recipe"]["name"]
        digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=6)
        study = self.space.study
        return f"{study.collection}:{study.model}:{digest.hexdigest()}"

    def recipe_with(self, params: Parameters) -> Recipe:
        """Return the recipe with `params` in the place of its own values."""
        return Recipe.from_table(with_values(self.table, params), source="trial")

    def baseline_params(self) -> Parameters:
        """Return the recipe's own values, as far as the search space holds them."""
        table = self.table
        own = {key: own_value(table, key) for key in self.space.parameters}
        return {k: v for k, v in own.items() if self.space.parameters[k].holds(v)}

    def outside(self) -> list[str]:
        """Name the recipe's own values that the search space does not hold."""
        held, table = self.baseline_params(), self.table
        keys = [key for key in self.space.parameters if key not in held]
        return [f"{key} = {own_value(table, key)!r}" for key in keys]

    @property
    def kept_scores(self) -> Path | None:
        """Return where trials of a blend share members' scores; None where trainings are timed."""
        return self.out / MEMBER_SCORES if self.space.study.objectives == "score" else None

    def trial_numbers(self) -> list[int]:
        """Return the numbers of the trials that `out` has folders of."""
        folders = (self.out / TRIALS).glob("*")
        return sorted(int(folder.name) for folder in folders if folder.name.isdecimal())


def ask(
    recipe_table: dict[str, Any],
    space: SearchSpace,
    data_dir: Path,
    out: Path,
    *,
    say: Callable[[str], None],
    progress: Progress | None,
) -> Question:
    """Read the recipe and the train split, and cut the folds.

    Raises:
        UsageError: a recipe that does not fit.
        PipelineError: damaged or too little data.
    """
    from models.shared_training import shared_steps
    from pipeline.tuning.judged_models import check_space_fits, judged_models

    recipe = Recipe.from_table(recipe_table, source="recipe")
    collection = collection_named(space.study.collection)
    check_space_fits(space, recipe)
    shares = any(
        shared_steps(recipe, model) or f"{model}.training.shared_steps" in space.parameters
        for model in judged_models(recipe, space.study.model, collection.kind)
    )
    needed = LAYOUT_COLLECTIONS if shares else (collection,)
    files = stored_graphs(data_dir, collections=needed, splits=("train",), progress=progress)
    usable, unusable = split_usable(files)
    for graph in unusable:
        say(f"left out: {graph.file.name}: {graph.reason}")
    own = [file for file in usable if file.collection == collection]
    folds = grouped_folds(own, space.study.folds, space.study.seed)
    return Question(recipe, space, own, usable if shares else [], folds, out)


def check_belongs(question: Question, numbers: list[int], known: int) -> None:
    """Raise UsageError where `out` had folders of trials that the storage has never heard of.

    Args:
        numbers: `trial_numbers`, listed before the storage was read: others may be adding to both.
        known: how many trials the storage has.
    """
    unknown = [number for number in numbers if number >= known]
    if unknown:
        raise UsageError(
            f"{question.out / TRIALS / str(unknown[0])}: the storage knows no such trial; give the "
            "storage that the folder was begun with, or another --out"
        )
