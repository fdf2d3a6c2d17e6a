"""A recipe: every choice of a run, typed and frozen, read from TOML. The import is fast.

The tables of networks are in models/config/networks.py, those of rankers on statistics in
models/config/trees.py, [layout] and [tile] in models/config/kinds.py, all others here. A custom
model is named by its class, for example "my_pkg.gat:Gat". The last part of the module, `gat`, is
the model's name in the recipe, in folders and in the blend. A table with the key `model` gives any
model another such name.
"""

import functools
from collections.abc import Collection as Container
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import tomli_w
from pydantic import AfterValidator, Field, create_model, field_validator, model_validator

from common.errors import UsageError, did_you_mean, one_of
from common.machine import granted
from common.settings import FrozenConfig, apply_overrides, read_toml, recipe_path
from data.tree import COLLECTIONS, KINDS, LAYOUTS, Collection, collection_named
from features.pruning import pruning_rule
from models.config import kinds, networks, trees
from models.config.custom import UncheckedConfig, custom_network, is_own, named_models, short_name
from models.config.networks import Count, Seeds, Splits, TrainingConfig, Weight, each_once

LAYOUT_MODELS, TILE_MODELS = get_args(kinds.LayoutModelName), get_args(kinds.TileModelName)
BUILT_IN = (*LAYOUT_MODELS, *TILE_MODELS)
# More threads than any machine has end LightGBM in a crash.
MAX_THREADS = 1_024


def _all_or_several(n_configs: int) -> int:
    if n_configs == 1:
        raise ValueError("one config has no order; expected 0, which is all, or at least 2")
    return n_configs


def _graph_ids(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in each_once(names):
        if not name.startswith(tuple(f"{collection.name}:" for collection in COLLECTIONS)):
            raise ValueError(f"'{name}' names no graph; expected such as layout:xla:default:NAME")
    return names


class FeaturesConfig(FrozenConfig):
    """The features that models read of a graph.

    Attributes:
        prune: Nodes and edges that layout networks read. "none" keeps all nodes. "config" keeps
            only configurable nodes. "hops-k" keeps nodes at most k edges from a configurable node,
            for example "hops-1", with k from 1 to 99.
        scaling: Scaling of numeric node features: logarithms, standardisation, or both.
        padding: Number in the empty places of lists of dimension numbers that networks read. "zero"
            keeps the dataset's padding, which is also the number of a dimension. "minus_one" is the
            padding of the competition's winners. Layouts always have -1 there.
    """

    prune: str = "hops-1"
    scaling: Literal["log1p", "standardise", "log1p-standardise"] = "log1p-standardise"
    padding: Literal["zero", "minus_one"] = "zero"

    @field_validator("prune")
    @classmethod
    def _known_rule(cls, rule: str) -> str:
        try:
            pruning_rule(rule)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return rule


class BlendConfig(FrozenConfig):
    """The blend: the weighted mean of the scores of all models.

    Attributes:
        method: Scaling of the scores before averaging. "minmax-mean" maps the scores of a graph to
            0..1. "rank-mean" replaces them by their ranks.
        choose: Choose the weights, and the error of the diversified tile configs, by the labels of
            the valid split. Collections with fewer than 12 valid graphs choose together with the
            other search of their source, for example `xla:default` with `xla:random`. The recipe's
            values stay unless others are better beyond noise.
        weights: Weight of each model, for example {layout_boosting = 0.25}. The default of each
            model is 1. The seeds of a model share its weight.
    """

    method: Literal["minmax-mean", "rank-mean"] = "minmax-mean"
    weights: dict[str, Weight] = Field(default={})
    choose: bool = False


class Recipe(FrozenConfig):
    """All settings of a run except for the data and the output folder.

    Attributes:
        name: Name of the recipe. The default is the name of its file.
        seeds: Seeds of the trainings. Each model is trained once per seed, unless its table has
            other seeds.
        threads: Number of threads of PyTorch and LightGBM. 0 uses all available cores. On a CPU,
            the last digits of a network's scores depend on this number. Scores of trees do not.
        valid_configs: Number of configs of each layout graph in the valid split that are ranked and
            scored. 0 takes all configs, and 1 is an error. The same configs are chosen in every
            run. The test split is always ranked completely.
        accelerator: Device for the networks. "auto" uses a CUDA GPU if there is one, and otherwise
            the CPU.
        collection: Keys of models and of `features` that differ in one collection, for example
            the table `[collection."layout:xla:random".tgraph]`. Not for layouts that train
            together.
        fit_on: Splits that the models that rank the test split learn from. With
            ["train", "valid"], each model is trained twice: on train, to score and blend on valid,
            and then on both splits. A model's table can have the key too.
        leave_out: Graphs that no model learns from, for example ["layout:xla:default:NAME"].
    """

    # By name, the classes of the custom models that may be imported; see models/config/custom.py.
    custom_classes: ClassVar[Mapping[str, Any]] = {}

    name: str = "unnamed"
    seeds: Annotated[Seeds, Field(min_length=1)] = (0,)
    threads: Annotated[int, Field(ge=0, le=MAX_THREADS)] = 1
    valid_configs: Annotated[Count, AfterValidator(_all_or_several)] = 1000
    accelerator: Literal["auto", "cpu"] = "auto"
    collection: dict[str, dict[str, Any]] = Field(default={})
    fit_on: Annotated[Splits, Field(min_length=1)] = ("train",)
    leave_out: Annotated[tuple[str, ...], AfterValidator(_graph_ids)] = ()
    features: FeaturesConfig = FeaturesConfig()
    layout: kinds.LayoutConfig = kinds.LayoutConfig()
    tile: kinds.TileConfig = kinds.TileConfig()
    cross_config_sage: networks.CrossConfigSageConfig = networks.CrossConfigSageConfig()
    segment_sage: networks.SegmentSageConfig = networks.SegmentSageConfig()
    tgraph: networks.TgraphConfig = networks.TgraphConfig()
    baseline_gcn: networks.BaselineGcnConfig = networks.BaselineGcnConfig()
    late_fusion_sage: networks.LateFusionSageConfig = networks.LateFusionSageConfig()
    early_fusion_sage: networks.EarlyFusionSageConfig = networks.EarlyFusionSageConfig()
    layout_boosting: trees.BoostingConfig = trees.BoostingConfig()
    tile_boosting: trees.BoostingConfig = trees.BoostingConfig()
    layout_linear: trees.LinearConfig = trees.LinearConfig()
    tile_linear: trees.LinearConfig = trees.LinearConfig()
    tile_baseline: trees.BaselineConfig = trees.BaselineConfig()
    config_columns_boosting: trees.ConfigColumnsConfig = trees.ConfigColumnsConfig()
    blend: BlendConfig = BlendConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._check_models("layout", self.layout.models, LAYOUT_MODELS)
        self._check_models("tile", self.tile.models, TILE_MODELS)
        names = (*BUILT_IN, *self.named_models)
        for name in self.blend.weights:
            if name not in names:
                raise ValueError(
                    f"blend.weights.{name}: no such model; expected {one_of(name, names)}"
                )
        for models in map(self.models_of, ("layout", "tile")):
            if not sum(self.blend.weights.get(model, 1.0) for model in models):
                raise ValueError(
                    f"blend.weights: those of {', '.join(models)} sum to 0; expected one above 0"
                )
        together = self.layout.together
        kinds.check_collections(self.collection, self.named_models, together=together)
        return self

    def _check_models(self, kind: str, models: Sequence[str], built_in: Sequence[str]) -> None:
        for place, model in enumerate(models):
            target = self.named_models.get(short_name(model), model)
            if target not in built_in and not is_own(target):
                raise ValueError(
                    f"key '{kind}.models[{place}]' is '{model}': ranks no {kind} configs; expected "
                    f"{', '.join(built_in)}, a name whose table has the key 'model', or a model of "
                    f"your own as 'package.module:Class'{did_you_mean(model, built_in)}"
                )

    @classmethod
    def from_table(
        cls,
        table: dict[str, Any],
        *,
        source: str,
        above: str = "",
        trust: Container[str] = (),
    ) -> Self:
        """Check a table, with the config classes of trusted custom models.

        Args:
            trust: Custom models that may be imported, as "package.module:Class". The tables of
                other custom models are not checked, and `custom_class` rejects these models.
        """
        names = tuple(sorted(named_models(table).items()))
        # `in` would also find parts of names in a text.
        trust = (trust,) if isinstance(trust, str) else trust
        imports = frozenset(model for _, (model, _) in names if is_own(model) and model in trust)
        try:
            recipe_class = _with_named_models(names, imports) if names else cls
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from error
        recipe = super(Recipe, recipe_class).from_table(table, source=source, above=above)
        for name, network in recipe_class.custom_classes.items():
            if (loss := getattr(recipe, name).loss) not in network.losses:
                raise UsageError(
                    f"{source}: {above}{name}.loss is '{loss}'; expected one of the `losses` of "
                    f"{recipe.custom_models[name]}: {', '.join(network.losses)}"
                )
        for collection in recipe.collection:
            recipe.of(collection_named(collection), source=source)
        return recipe  # type: ignore[return-value]

    def of(self, collection: Collection, *, source: str = "recipe") -> "Recipe":
        """Return the recipe of a collection: with its keys of `collection`, without that table."""
        changes = self.collection.get(collection.name)
        if changes is None:
            return self.model_copy(update={"collection": {}}) if self.collection else self
        table = kinds.merge(self.model_dump(mode="json", exclude={"collection"}), changes)
        above = f'collection."{collection.name}".'
        return Recipe.from_table(table, source=source, above=above, trust=self.trust)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a table, because a recipe with custom models has a class of run time."""
        read = functools.partial(Recipe.from_table, source="recipe", trust=self.trust)
        return read, (self.model_dump(mode="json"),)

    def custom_class(self, model: str) -> Any:
        """Return the class of a custom model, if the recipe was read with trust in the model."""
        if model not in self.custom_classes:
            place = self.custom_models[model]
            raise UsageError(
                f"model '{place}': its code is not imported, because a run folder names it and no "
                f"recipe of yours; if you know the code, pass --trust {place} (from Python "
                f"trust=['{place}'])"
            )
        return self.custom_classes[model]

    @property
    def trust(self) -> tuple[str, ...]:
        """Return the custom models that may be imported, as "package.module:Class"."""
        return tuple(
            place for name, place in self.custom_models.items() if name in self.custom_classes
        )

    def models_of(self, kind: str) -> tuple[str, ...]:
        """Return the names of the models that rank "layout" or "tile" configs."""
        return tuple(map(short_name, self.layout.models if kind == "layout" else self.tile.models))

    def learned_as(self, collection: Collection) -> Collection:
        """Return LAYOUTS if one model learns all layouts, else the collection itself."""
        return LAYOUTS if collection.kind == "layout" and self.layout.together else collection

    @property
    def all_models(self) -> tuple[str, ...]:
        return (*self.models_of("layout"), *self.models_of("tile"))

    @property
    def n_threads(self) -> int:
        """Return the number of threads in this process."""
        return self.threads or granted()[0]

    @property
    def named_models(self) -> dict[str, str]:
        """Return the model, for example "tgraph" or "my_pkg.gat:Gat", by name in the recipe."""
        custom = {short_name(m): m for m in (*self.layout.models, *self.tile.models) if is_own(m)}
        fields = [name for name in type(self).model_fields if name not in Recipe.model_fields]
        return {name: custom.get(name) or getattr(self, name).model for name in fields}

    @property
    def custom_models(self) -> dict[str, str]:
        """Return the class of each custom model, "package.module:Class", by the model's name."""
        return {name: model for name, model in self.named_models.items() if is_own(model)}

    @property
    def is_final(self) -> bool:
        """Return whether the models learn from the valid split, too."""
        return "valid" in self.fit_on

    def seeds_of(self, model: str) -> tuple[int, ...]:
        """Return the seeds of a model's trainings."""
        return getattr(self, model).seeds or self.seeds

    def fits(self, model: str = "") -> "tuple[Recipe, ...]":
        """Return the recipes of a model's trainings. The last ranks test, the first all else.

        Args:
            model: "" takes the recipe's `fit_on`.
        """
        last = (getattr(self, model).fit_on if model else ()) or self.fit_on
        splits = dict.fromkeys([("train",), last])
        return tuple(self.model_copy(update={"fit_on": split}) for split in splits)

    def is_idle(self, key: str, collections: Iterable[Collection] = COLLECTIONS) -> bool:
        """Return True if a key has no effect on the ranking of some collections."""
        by_name = {collection.name: collection for collection in collections}
        if key.startswith("collection."):
            _, name, *inner = key.split(".")
            if name not in by_name:
                return True
            return self.of(by_name[name]).is_idle(".".join(inner), [by_name[name]])
        name = key.removeprefix("blend.weights.").partition(".")[0]
        if name in KINDS:
            return name not in {collection.kind for collection in by_name.values()}
        readers = [
            collection
            for collection in by_name.values()
            if name == "features" or name in self.models_of(collection.kind)
        ]
        if not readers:
            return name in BUILT_IN or name in self.named_models
        tables = [self.collection.get(collection.name, {}) for collection in readers]
        return all(kinds.has_key(table, key) for table in tables)

    def training_of(self, model: str) -> TrainingConfig | None:
        """Return the training config of a model, or None if it is no network."""
        return getattr(getattr(self, model), "training", None)

    def to_toml(self) -> str:
        """Write the whole recipe, defaults included, as TOML."""
        return tomli_w.dumps(self.model_dump(mode="json"))


@functools.cache
def _with_named_models(
    names: tuple[tuple[str, tuple[str, str]], ...], trust: frozenset[str]
) -> type[Recipe]:
    tables: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    for name, (model, kind) in names:
        if name in Recipe.model_fields or hasattr(Recipe, name) or name.startswith("_"):
            raise UsageError(
                f"model '{model}': '{name}' is taken; give it or its module another name"
            )
        config: Any = UncheckedConfig
        if is_own(model):
            if model in trust:
                classes[name] = custom_network(model, kind)
                config = classes[name].Config
        elif model in BUILT_IN:
            config = type(Recipe.model_fields[model].default)
        else:
            raise UsageError(
                f"{name}.model: no model '{model}'; expected {one_of(model, BUILT_IN)}"
            )
        if short_name(model) != name or not is_own(model):
            key: Any = Literal[model], model
            config = create_model(config.__name__, __base__=config, model=key)
        tables[name] = (config, config())
    recipe_class = create_model("Recipe", __base__=Recipe, **tables)
    recipe_class.custom_classes = classes
    return recipe_class


def load_recipe(
    name_or_file: str,
    overrides: Sequence[str] = (),
    *,
    seed: int | None = None,
    trust: Container[str] = (),
) -> Recipe:
    """Read a recipe by name, from a .toml file, or from a run's config.toml.

    Custom models that a recipe or an override names are imported. Custom models that only a run's
    config.toml names are not.

    Args:
        name_or_file: Name in `configs/`, or path of a file.
        overrides: Changes "dotted.key=value", which are applied before the check.
        seed: First seed of the recipe. The others follow it. None keeps the recipe's seeds.

    Raises:
        UsageError: There is no such recipe, no TOML, an unknown key, a wrong value, or a custom
            model without permission.
    """
    path = recipe_path(name_or_file)
    read = read_toml(path, UsageError)
    is_of_run = isinstance(read.get("recipe"), dict)
    table = {"name": path.stem, **(read["recipe"] if is_of_run else read)}
    table = apply_overrides(table, overrides)
    by_user = apply_overrides({}, overrides) if is_of_run else table
    consent = {model for model, _ in named_models(by_user).values()}
    source = f"recipe {path.stem}"
    recipe = Recipe.from_table(table, source=source, trust={*trust, *consent})
    for model in recipe.custom_models:
        recipe.custom_class(model)
    if seed is None:
        return recipe
    table = recipe.model_dump(mode="json")
    table["seeds"] = list(range(seed, seed + len(recipe.seeds)))
    return Recipe.from_table(table, source=f"--seed {seed}", trust=recipe.trust)
