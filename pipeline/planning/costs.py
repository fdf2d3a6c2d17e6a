"""What a recipe takes on a collection by measured laws: processor seconds by stage, and disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import UsageError
from data.official.sizes import PartSize
from models.config.recipe import Recipe
from pipeline.planning.laws import Laws

LAYOUT_NETWORKS = ("cross_config_sage", "global_attention_sage")
TILE_NETWORKS = ("late_fusion_sage", "early_fusion_sage")
TREES = ("layout_boosting", "tile_boosting")
LINEAR = ("layout_linear", "tile_linear")
NETWORKS = (*LAYOUT_NETWORKS, *TILE_NETWORKS)
MEASURED_BLOCKS = 2  # of the networks that were measured; cost is taken to grow with blocks
RANKED = ("valid", "test")
# The largest published file. Synthetic ones, which the law was fitted to, compress ten times worse.
MOST_RAW_BYTES = 25e6
SCORE_TABLES = 2  # beside those of the members: the blend's, and the floor's
# Configurable nodes by nodes: the largest published graph has 3,143 of 43,615. The seven real files
# at hand have .020 to .078.
CONFIGURABLE_SHARE = 3_143 / 43_615
# Kept nodes by configurable ones, the most of the six real graphs at hand (hops-1: 3.0 to 3.6), by
# `features.pruning.rules.prune`.
KEPT_PER_CONFIGURABLE = {"config": 1.0, "config-graph": 1.0, "hops-1": 3.6, "hops-2": 7.0}


@dataclass(frozen=True)
class StageCost:
    """What one stage takes, on one thread of the processor that was measured.

    Attributes:
        stage: "prepare", "train", "rank" or "score".
        model: "" where the stage has none.
        seed: of a training, else None.
        on_gpu: a GPU does it where there is one.
    """

    collection: str
    stage: str
    model: str
    seed: int | None
    cpu_s: float
    on_gpu: bool


def stage_costs(recipe: Recipe, sizes: Sequence[PartSize], laws: Laws) -> list[StageCost]:
    """Return the cost of every stage of a recipe on collections of these sizes.

    Raises:
        UsageError: the recipe has a model whose cost was not measured.
    """
    known = (*NETWORKS, *TREES, *LINEAR)
    for model in recipe.all_models:
        if model not in known:
            raise UsageError(
                f"recipe {recipe.name}: what {model} costs was not measured; expected models "
                f"among {', '.join(known)}"
            )
    collections = dict.fromkeys(part.collection for part in sizes)
    return [
        cost
        for name in collections
        for cost in _collection_costs(
            recipe, name, {part.split: part for part in sizes if part.collection == name}, laws
        )
    ]


def _collection_costs(
    recipe: Recipe, name: str, parts: Mapping[str, PartSize], laws: Laws
) -> Iterator[StageCost]:
    kind = name.split(":", 1)[0]
    models = recipe.models_of(kind)
    prepare = sum(
        part.graphs * laws.seconds[f"{kind} prepare"](**axes_of(part)) for part in parts.values()
    )
    yield StageCost(name, "prepare", "", None, prepare, False)
    train = parts.get("train")
    ranked = [parts[split] for split in RANKED if split in parts]
    for model in models:
        for seed in recipe.seeds:
            if train:
                cpu_s = training_s(recipe, model, train, laws)
                # Several processes that share a training stay on the processor.
                alone = model in NETWORKS and getattr(recipe, model).training.processes == 1
                on_gpu = may_use_gpu(recipe, model) and alone
                yield StageCost(name, "train", model, seed, cpu_s, on_gpu)
            cpu_s = sum(part.graphs * ranking_s(recipe, model, part, laws) for part in ranked)
            yield StageCost(name, "rank", model, seed, cpu_s, may_use_gpu(recipe, model))
    score = sum(part.graphs * laws.seconds[f"{kind} score"](**axes_of(part)) for part in ranked)
    yield StageCost(name, "score", "", None, score, False)


def may_use_gpu(recipe: Recipe, model: str) -> bool:
    return model in NETWORKS and recipe.accelerator != "cpu"


def axes_of(part: PartSize, rule: str = "none") -> dict[str, float]:
    """Return the sizes of a part's mean graph, as laws know them."""
    configurable = configurable_nodes(part.nodes)
    return {
        "nodes": part.nodes,
        "kept": kept_nodes(rule, part.nodes, configurable),
        "configs": part.configs,
        "distinct": part.distinct,
    }


def training_s(recipe: Recipe, model: str, train: PartSize, laws: Laws) -> float:
    config = getattr(recipe, model)
    if model in NETWORKS:
        steps = config.training.steps + config.training.pretrain_steps  # shared ones in each
        return float(steps * step_s(recipe, model, train, laws))
    sampled = min(config.configs_per_graph, train.distinct)
    axes = {**axes_of(train), "sampled": sampled, "rows": train.graphs * sampled}
    kind = train.collection.split(":", 1)[0]
    statistics = laws.seconds[f"{kind} statistics"](**axes) * train.graphs
    if model in LINEAR:
        return statistics
    return statistics + boosting_rounds(config) * laws.seconds[f"round {model}"](**axes)


def boosting_rounds(config: Any) -> float:
    """Return the rounds on all rows at most; each fold learns from all rows but its own part."""
    return float(config.num_boost_round * (1 + (config.folds - 1 if config.early_stop else 0)))


def step_s(recipe: Recipe, model: str, train: PartSize, laws: Laws) -> float:
    config = getattr(recipe, model)
    if model in TILE_NETWORKS:
        pairs = config.kernels_per_step * config.configs_per_kernel
        return laws.seconds[f"step {model}"](pairs=pairs, hidden=config.hidden)
    axes = axes_of(train, recipe.features.prune)
    configs = min(config.configs_per_step, train.distinct)
    one = laws.seconds[f"step {model}"](
        kept=axes["kept"], configs_per_step=configs, hidden=config.hidden
    )
    return one * config.graphs_per_step * config.blocks / MEASURED_BLOCKS


def ranking_s(recipe: Recipe, model: str, part: PartSize, laws: Laws) -> float:
    """Return the processor seconds in which a model ranks one graph."""
    config = getattr(recipe, model)
    axes = {**axes_of(part, recipe.features.prune), "hidden": getattr(config, "hidden", 1)}
    blocks = config.blocks / MEASURED_BLOCKS if model in LAYOUT_NETWORKS else 1.0
    return laws.seconds[f"rank {model}"](**axes) * blocks


def configurable_nodes(n_nodes: float) -> float:
    """Return about how many of a real layout graph's nodes are configurable."""
    return CONFIGURABLE_SHARE * n_nodes


def kept_nodes(rule: str, n_nodes: float, n_configurable: float) -> float:
    """Return about how many nodes a pruning rule leaves, rather too many than too few.

    Of rules that were not counted, all nodes.
    """
    share = KEPT_PER_CONFIGURABLE.get(rule)
    return n_nodes if share is None else min(n_nodes, share * n_configurable)


def disk_bytes(recipe: Recipe, parts: Sequence[PartSize], laws: Laws) -> dict[str, float]:
    """Return the bytes of one collection's files: "raw" and "store" at most, "run" about."""
    kind = parts[0].collection.split(":", 1)[0]
    n_tables = len(recipe.models_of(kind)) * len(recipe.seeds) + SCORE_TABLES
    ranked = [part for part in parts if part.split != "train"]
    per_row = laws.mib[f"{kind} scores of a config"]() * 2**20

    def of_a_graph(what: str, part: PartSize) -> float:
        return laws.mib[f"{kind} {what}"](**axes_of(part)) * 2**20

    return {
        "raw": sum(p.graphs * min(MOST_RAW_BYTES, of_a_graph("raw", p)) for p in parts),
        "store": sum(p.graphs * of_a_graph("store", p) for p in parts),
        "run": n_tables * per_row * sum(part.graphs * part.configs for part in ranked),
    }
