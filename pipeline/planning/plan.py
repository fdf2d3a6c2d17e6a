"""The plan of a recipe: time, memory and disk by collection."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from common.progress import each
from data.cache import CACHE_BYTES
from data.official.published import PartSize
from data.tree import collection_named
from features.pruning import kept_nodes
from features.statistics.configs import ALL_STATISTICS
from models.config.networks import SegmentSageConfig
from models.config.recipe import Recipe
from models.config.trees import BaselineConfig
from models.registry import model_entry
from pipeline.planning.step_costs import Card, StepCosts, step_size

STAGES = ("prepare", "train", "rank", "score")
HOUR_S, MIB = 3600.0, 2**20
# Score tables of the blend and the baseline, in addition to those of the members.
SCORE_TABLES = 2

# Seconds of one thread of an AMD EPYC, measured on synthetic graphs of the published sizes.
# Layouts: for each config of each node. Tiles: for each config, but "statistics" for each kernel.
PROCESSOR_S = {
    "layout": {"prepare": 2.5e-9, "statistics": 3.2e-8, "rank": 8e-9, "score": 8e-9},
    "tile": {"prepare": 7e-6, "statistics": 0.035, "rank": 6e-6, "score": 2.3e-5},
}
BY_GRAPH = "config_columns_boosting"
# For each row in a round of boosting.
ROW_ROUND_S = {"layout_boosting": 1.6e-6, BY_GRAPH: 6e-7, "tile_boosting": 3e-6}
# Memory of the process before it has read anything, and of a card that CUDA takes for itself.
LIBRARIES_MIB, CONTEXT_MIB = 363, 500
# Memory of trees for each row and statistic, without and with folds.
BYTES_PER_STATISTIC, BYTES_WITH_FOLDS = 3, 8
# The largest published file. Synthetic files, which were measured, compress ten times worse.
MAX_RAW_BYTES = 25e6
# Bytes of files, measured on the same graphs.
RAW_NODE_CONFIG, RAW_TILE_CONFIG = 0.11, 16.0
STORE_NODE, STORE_TILE_CONFIG = 800.0, 182.0
SCORES_OF_CONFIG = {"layout": 46.0, "tile": 25.0}


def _learned_parts(recipe: Recipe, sizes: Sequence[PartSize]) -> dict[str, PartSize]:
    """Return the graphs to learn from by collection. All layouts can be those of the first."""
    trained = [part for part in sizes if part.split == "train"]
    layouts = [part.collection for part in trained if part.kind == "layout"]
    first = dict.fromkeys(layouts, layouts[0]) if recipe.layout.together and layouts else {}
    learned: dict[str, list[PartSize]] = {
        first.get(part.collection, part.collection): [] for part in trained
    }
    for part in sizes:
        place = first.get(part.collection, part.collection)
        if part.split in recipe.fit_on and place in learned:
            learned[place].append(part)
    return {place: _joined(parts) for place, parts in learned.items()}


def _joined(parts: Sequence[PartSize]) -> PartSize:
    """Return the size of several splits as that of one split."""
    if len(parts) == 1:
        return parts[0]
    graphs = [part.graphs for part in parts]
    return replace(
        parts[0],
        graphs=sum(graphs),
        nodes=round(fmean((part.nodes for part in parts), graphs)),
        most_nodes=max(part.most_nodes for part in parts),
        configs=round(fmean((part.distinct for part in parts), graphs)),
        most_configs=max(part.most_configs for part in parts),
        repeated=0.0,
    )


def _as_ranked(recipe: Recipe, part: PartSize) -> PartSize:
    """Return a split with the number of configs that a run ranks."""
    is_sampled = part.split == "valid" and part.kind == "layout"
    at_most = (is_sampled and recipe.valid_configs) or part.configs
    return replace(part, configs=min(part.configs, at_most))


def _processor_s(stage: str, part: PartSize, n_configs: float) -> float:
    if part.kind == "layout":
        return PROCESSOR_S["layout"][stage] * part.nodes * n_configs
    return PROCESSOR_S["tile"][stage] * (1 if stage == "statistics" else n_configs)


def _training_s(recipe: Recipe, model: str, train: PartSize, steps: StepCosts) -> float:
    config: Any = getattr(recipe, model)
    if model_entry(recipe, model).network:
        size = step_size(recipe, model, train.nodes, train.distinct)
        seconds: float = config.training.steps * steps.step_s(model, size)
        # The head learns from embeddings of whole graphs.
        if isinstance(config, SegmentSageConfig):
            n_embedded = min(train.graphs, config.head_steps * config.graphs_per_step)
            n_configs = min(config.table_configs, round(train.distinct))
            whole = replace(train, configs=n_configs, repeated=0.0)
            seconds += n_embedded * _ranking_s(recipe, model, whole, steps)
        return seconds
    if isinstance(config, BaselineConfig):
        return 0.0
    n_configs = min(config.configs_per_graph, train.distinct)
    seconds = train.graphs * _processor_s("statistics", train, n_configs)
    if model in ROW_ROUND_S:
        n_fits = config.folds * len(config.leaves_to_try) if getattr(config, "early_stop", 0) else 1
        rows = train.graphs * n_configs
        seconds += config.num_boost_round * n_fits * ROW_ROUND_S[model] * rows
    return seconds


def _ranking_s(recipe: Recipe, model: str, part: PartSize, steps: StepCosts) -> float:
    if not model_entry(recipe, model).network:
        return _processor_s("rank", part, part.distinct)
    size = step_size(recipe, model, part.nodes, part.distinct)
    kept = kept_nodes(recipe.features.prune, part.nodes) if part.kind == "layout" else part.nodes
    n_scores = part.distinct * getattr(getattr(recipe, model), "permutations", 1)
    ratio = kept * n_scores / (size.n_graphs * size.nodes * size.configs)
    return steps.ranking_s(model, size, ratio)


def _disk_bytes(recipe: Recipe, parts: Sequence[PartSize]) -> dict[str, float]:
    """Return the bytes of files: upper bounds of "raw" and "store", an estimate of "run"."""
    kind, raw, store = parts[0].kind, 0.0, 0.0
    for part in parts:
        if kind == "tile":
            raw += part.graphs * RAW_TILE_CONFIG * part.configs
            store += part.graphs * STORE_TILE_CONFIG * part.configs
        else:
            raw += part.graphs * min(MAX_RAW_BYTES, RAW_NODE_CONFIG * part.nodes * part.configs)
            store += part.graphs * STORE_NODE * part.nodes
    n_tables = len(recipe.models_of(kind)) * len(recipe.seeds) + SCORE_TABLES
    n_ranked = sum(part.graphs * part.configs for part in parts if part.split != "train")
    return {"raw": raw, "store": store, "run": n_tables * SCORES_OF_CONFIG[kind] * n_ranked}


def _training_mib(recipe: Recipe, model: str, train: PartSize, steps: StepCosts) -> float:
    """Return the memory of a training in MiB, of the GPU or the process, on the largest graph."""
    config: Any = getattr(recipe, model)
    if model_entry(recipe, model).network:
        size = step_size(recipe, model, train.most_nodes, train.most_configs)
        base = CONTEXT_MIB if steps.uses_gpu(model) else LIBRARIES_MIB
        return base + (CACHE_BYTES + steps.peak_bytes(model, size)) / MIB
    if isinstance(config, BaselineConfig):
        return LIBRARIES_MIB
    # One model of each graph is trained after the other.
    n_graphs = 1 if model == BY_GRAPH else train.graphs
    rows = n_graphs * min(config.configs_per_graph, train.most_configs)
    has_folds = model in ROW_ROUND_S and getattr(config, "early_stop", 0) > 0
    n_bytes = BYTES_WITH_FOLDS if has_folds else BYTES_PER_STATISTIC
    return float(rows * n_bytes * len(ALL_STATISTICS[train.kind]) / MIB)


@dataclass(frozen=True)
class CollectionPlan:
    """The cost of a recipe on one collection.

    Attributes:
        collection: The collection.
        gpu_hours: Hours of one card, by stage.
        cpu_hours: Hours of one thread, by stage.
        disk_bytes: Bytes of files: "raw", "store" and "run".
        peak_mib: Memory of training, by model.
        training_hours: Hours of the longest training, by model. A model that learns from all layout
            collections is in the first of them.
    """

    collection: str
    gpu_hours: dict[str, float]
    cpu_hours: dict[str, float]
    disk_bytes: dict[str, float]
    peak_mib: dict[str, float]
    training_hours: dict[str, float]


def _collection_plan(
    steps: StepCosts, parts: Sequence[PartSize], learned: Sequence[PartSize]
) -> CollectionPlan:
    recipe = steps.recipe
    kind, n_seeds = parts[0].kind, len(recipe.seeds)
    models = recipe.models_of(kind)
    ranked = [_as_ranked(recipe, part) for part in parts if part.split != "train"]
    gpu_s, cpu_s = (dict.fromkeys(STAGES, 0.0) for _ in range(2))
    cpu_s["prepare"] = sum(p.graphs * _processor_s("prepare", p, p.configs) for p in parts)
    cpu_s["score"] = sum(p.graphs * _processor_s("score", p, p.distinct) for p in ranked)
    fits = {m: [_training_s(recipe, m, one, steps) for one in learned] for m in models if learned}
    training_s = {model: max(seconds) for model, seconds in fits.items()}
    for model in models:
        own_s = gpu_s if steps.uses_gpu(model) else cpu_s
        ranking_s = sum(part.graphs * _ranking_s(recipe, model, part, steps) for part in ranked)
        own_s["rank"] += n_seeds * ranking_s
        own_s["train"] += n_seeds * sum(fits.get(model, ()))
    return CollectionPlan(
        collection=parts[0].collection,
        gpu_hours={stage: seconds / HOUR_S for stage, seconds in gpu_s.items()},
        cpu_hours={stage: seconds / HOUR_S for stage, seconds in cpu_s.items()},
        disk_bytes=_disk_bytes(recipe, parts),
        peak_mib={
            model: max(_training_mib(recipe, model, one, steps) for one in learned)
            for model in training_s
        },
        training_hours={model: seconds / HOUR_S for model, seconds in training_s.items()},
    )


@dataclass(frozen=True)
class Plan:
    """The cost of a recipe.

    Attributes:
        recipe: Name of the recipe.
        seeds: Number of trainings of each model.
        collections: Cost by collection.
        card: The GPU, None without one.
        n_cards: Number of GPUs.
        n_cores: Number of cores.
        min_run_hours: Lower bound for the wall time of `run`, the largest of three: GPU time by
            cards, thread time by cores, the longest training.
        card_gib: Memory that the training of each network needs of a card, in GiB.
    """

    recipe: str
    seeds: int
    collections: list[CollectionPlan]
    card: Card | None
    n_cards: int
    n_cores: int
    min_run_hours: float
    card_gib: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain values, with totals over stages and collections."""
        card = self.card and {"name": self.card.name, "memory_gib": self.card.memory_gib}
        tables = ("gpu_hours", "cpu_hours", "disk_bytes")
        totals = {table: total(self.collections, table) for table in tables}
        return {**asdict(self), "card": card, "total": totals}


def total(rows: Sequence[CollectionPlan], table: str) -> float:
    """Return the sum of a table over stages and collections.

    Args:
        rows: Costs by collection.
        table: "gpu_hours", "cpu_hours" or "disk_bytes".
    """
    return float(sum(sum(getattr(row, table).values()) for row in rows))


def make_plan(
    steps: StepCosts, sizes: Sequence[PartSize], *, n_cards: int = 1, n_cores: int = 8
) -> Plan:
    """Return the cost of a recipe.

    Args:
        steps: Costs of training steps, with the recipe and the card.
        sizes: Sizes of the splits of all collections.
        n_cards: Number of GPUs. A training takes one of them.
        n_cores: Number of cores.
    """
    recipe = steps.recipe
    fits = [_learned_parts(fit, sizes) for fit in recipe.fits()]
    parts: dict[str, list[PartSize]] = {}
    for part in sizes:
        parts.setdefault(part.collection, []).append(part)
    rows = [
        _collection_plan(
            steps.of(collection_named(name)),
            parts[name],
            [fit[name] for fit in fits if name in fit],
        )
        for name in each("estimate", list(parts))
    ]
    threads = recipe.threads or n_cores
    trainings = [
        hours / (1 if steps.uses_gpu(model) else threads)
        for row in rows
        for model, hours in row.training_hours.items()
    ]
    shares = total(rows, "gpu_hours") / n_cards, total(rows, "cpu_hours") / n_cores
    return Plan(
        recipe=recipe.name,
        seeds=len(recipe.seeds),
        collections=rows,
        card=steps.card,
        n_cards=n_cards,
        n_cores=n_cores,
        min_run_hours=max(*shares, *trainings),
        card_gib={
            model: max(row.peak_mib.get(model, 0.0) for row in rows) / 1024
            for model in recipe.all_models
            if steps.uses_gpu(model)
        },
    )
