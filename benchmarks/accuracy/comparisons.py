"""What is compared: the models of one kind, on the tasks of that kind."""

from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.accuracy.tasks import TASKS, WITHIN_GRAPH, Task
from benchmarks.accuracy.tile_tasks import TILE_TASKS
from common.settings import CONFIGS
from models.config.recipe import load_recipe
from models.layout.networks import LAYOUT_NETS
from models.registry import MODELS


@dataclass(frozen=True)
class Contender:
    """Models of the registry, by a recipe with overrides; for some tasks, or for all.

    Several models, or seeds, are blended as the recipe says.

    Attributes:
        within_graph: the recipe for tasks that ask for further configs of one graph, where that is
            another one; `within_graph_models` the models.
        n_seeds: so many trainings of each model.
        models: none for the floor, which ranks without training.
        part_of: the contender that trains it on the way; it has no training of its own.
    """

    models: tuple[str, ...]
    recipe: str
    overrides: tuple[str, ...] = ()
    tasks: tuple[str, ...] | None = None
    within_graph: str | None = None
    within_graph_models: tuple[str, ...] | None = None
    n_seeds: int = 1
    part_of: str | None = None

    def models_for(self, task: str) -> tuple[str, ...]:
        """Return the models that are trained."""
        return self.within_graph_models or self.models if task in WITHIN_GRAPH else self.models

    def recipe_for(self, task: str) -> str:
        """Return the name of the recipe."""
        return self.within_graph or self.recipe if task in WITHIN_GRAPH else self.recipe

    def is_for(self, task: str) -> bool:
        """Tell whether the model can learn what a task asks."""
        return self.part_of is None and (self.tasks is None or task in self.tasks)

    def why_absent(self) -> str | None:
        """Say what is missing of it, or None if it can be trained."""
        for model in (*self.models, *(self.within_graph_models or ())):
            if model not in MODELS:
                return f"no model '{model}'"
        for recipe in (self.recipe, self.within_graph or self.recipe):
            if not (CONFIGS / f"{recipe}.toml").is_file():
                return f"no recipe '{recipe}'"
        return None


@dataclass(frozen=True)
class Comparison:
    """Tasks and contenders by name.

    Attributes:
        with_curves: models whose checkpoints are judged too.
    """

    tasks: dict[str, Task]
    contenders: dict[str, Contender]
    with_curves: Collection[str] = ()


CONTENDERS = {
    "ours": Contender(("cross_config_sage",), "cpu", within_graph="within_graph"),
    "no-attention": Contender(
        ("cross_config_sage",), "cpu", ("cross_config_sage.cross_config=false",)
    ),
    "zero-padding": Contender(
        ("cross_config_sage",),
        "cpu",
        ("features.padding=zero",),
        within_graph="within_graph",
    ),
    "plain": Contender(
        ("cross_config_sage",),
        "cpu",
        ("features.padding=zero", "cross_config_sage.cross_config=false"),
        within_graph="within_graph",
    ),
    "two-seeds": Contender(
        ("cross_config_sage",), "cpu", within_graph="within_graph", n_seeds=2, part_of="blend"
    ),
    "blend": Contender(
        ("cross_config_sage", "layout_boosting"),
        "cpu",
        within_graph="within_graph",
        within_graph_models=("cross_config_sage", "config_columns_boosting"),
        n_seeds=2,
    ),
    "tuned": Contender(("cross_config_sage",), "cpu_tuned", tasks=("private",)),
    "reference": Contender(("reference_sage",), "reference"),
    "gcn": Contender(("baseline_gcn",), "cpu"),
    "boosting": Contender(("layout_boosting",), "cpu"),
    "linear": Contender(("layout_linear",), "cpu"),
    "columns": Contender(("config_columns_boosting",), "within_graph", tasks=WITHIN_GRAPH),
}
_BEST_FIRST = "blend.tile_spread=0"
TILE_CONTENDERS = {
    "ours": Contender(load_recipe("cpu").tile.models, "cpu"),
    "best-first": Contender(load_recipe("cpu").tile.models, "cpu", (_BEST_FIRST,), part_of="ours"),
    "late-fusion": Contender(("late_fusion_sage",), "cpu", (_BEST_FIRST,)),
    "no-attention": Contender(
        ("late_fusion_sage",), "cpu", (_BEST_FIRST, "late_fusion_sage.cross_config=false")
    ),
    "early-fusion": Contender(("early_fusion_sage",), "cpu", (_BEST_FIRST,)),
    "early-spread": Contender(("early_fusion_sage",), "cpu", part_of="early-fusion"),
    "boosting": Contender(("tile_boosting",), "cpu", (_BEST_FIRST,)),
    "boosting-spread": Contender(("tile_boosting",), "cpu", part_of="boosting"),
    "linear": Contender(("tile_linear",), "cpu", (_BEST_FIRST,)),
    "floor": Contender((), "cpu", (_BEST_FIRST,), part_of="linear"),
    "floor-spread": Contender((), "cpu", part_of="linear"),
}
COMPARISONS = {
    "layout": Comparison(TASKS, CONTENDERS, with_curves=LAYOUT_NETS),
    "tile": Comparison(TILE_TASKS, TILE_CONTENDERS),
}
