"""The plan of a recipe: time, memory and disk, with a row for each model of each collection."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.cache import CACHE_BYTES
from data.tree import collection_named
from features.pruning import kept_nodes
from features.statistics.configs import ALL_STATISTICS
from models.config.recipe import Recipe
from models.config.trees import BaselineConfig
from models.registry import model_entry
from pipeline.planning.costs import COSTS, Card, StepCosts, step_of

HOUR_S, MIB = 3600.0, 2**20
PROCESSOR_S, ROW_ROUND_S = COSTS["processor_s"], COSTS["row_round_s"]
# Bytes of the inputs of a network: for each kept node, and for each distinct config.
INPUT_NODE_BYTES, INPUT_CONFIG_BYTES = 850, 35
BY_GRAPH = "config_columns_boosting"
# Memory of the process before it has read anything, of its CUDA libraries, and of a card that CUDA
# takes for itself.
LIBRARIES_MIB, CUDA_MIB, CONTEXT_MIB = 363, 1500, 500
# Memory of trees for each row and statistic, without and with folds.
BYTES_PER_STATISTIC, BYTES_WITH_FOLDS = 3, 8
# The largest published file. Synthetic files, which were measured, compress ten times worse.
MAX_RAW_BYTES = 25e6
# Bytes of files, measured on the same graphs.
RAW_NODE_CONFIG, RAW_TILE_CONFIG = 0.11, 16.0
STORE_NODE, STORE_LAYOUT_CONFIG, STORE_TILE_CONFIG = 580.0, 25.0, 182.0
SCORES_OF_CONFIG = {"layout": 46.0, "tile": 25.0}
# A network has about 12 float32 for each pair of channels. A booster has about 100 bytes a leaf.
WEIGHTS_BYTES, LEAF_BYTES = 48, 100
# Ranking has no backward pass, and takes this share of a training step.
RANKING_SHARE = 1 / 3
# Score tables of the blend and the baseline, in addition to those of the members.
SCORE_TABLES = 2


@dataclass(frozen=True)
class Graphs:
    """The sizes of g graphs of one collection.

    Attributes:
        nodes: (g,) nodes before pruning.
        configs: (g,) configs.
        repeated: Share of configs that repeat another one of their graph, in [0, 1].
    """

    collection: str
    split: str
    nodes: NDArray[Any]
    configs: NDArray[Any]
    repeated: float = 0.0

    @property
    def kind(self) -> str:
        return self.collection.split(":", 1)[0]

    @property
    def distinct(self) -> NDArray[Any]:
        """Return the number of distinct configs of each graph, (g,)."""
        return self.configs * (1 - self.repeated)

    def at_most(self, n_configs: int) -> "Graphs":
        return replace(self, configs=np.minimum(self.configs, n_configs))


def official_graphs() -> list[Graphs]:
    """Return the sizes of the public dataset."""
    from data.official.published import graph_sizes, official_sizes

    return [
        Graphs(part.collection, part.split, *graph_sizes(part), part.repeated)
        for part in official_sizes()
    ]


def _fits(recipe: Recipe, model: str, collection: str, graphs: Iterable[Graphs]) -> list[Graphs]:
    """Return the graphs of each training of a seed on a collection.

    If one model learns all layouts, its trainings are those of the first collection.
    """
    place = recipe.learned_as(collection_named(collection))
    group = [g for g in graphs if recipe.learned_as(collection_named(g.collection)) == place]
    if collection != next((part.collection for part in group if part.split == "train"), None):
        return []
    fits = []
    for fit in recipe.fits(model):
        group_of_fit = [part for part in group if part.split in fit.fit_on]
        nodes, distinct = (
            np.concatenate([getattr(g, k) for g in group_of_fit]) for k in ("nodes", "distinct")
        )
        fits.append(Graphs(collection, "train", nodes, distinct))
    return fits


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """The cost of a model on one collection.

    Attributes:
        runs: Number of trainings: seeds, times two for a model that fits on valid too.
        steps: Steps of one training of a network, else 0.
        step_ms: Mean time of a step's kernels, or of the processor without a GPU.
        host_ms: Mean time in which the host launches a step and reads its graphs.
        on_gpu: Whether the hours are those of a card.
        card_mib: Memory of a card in training, 0 without a GPU.
    """

    collection: str
    model: str
    runs: int
    steps: int = 0
    step_ms: float = 0.0
    host_ms: float = 0.0
    train_hours: float
    rank_hours: float
    on_gpu: bool = False
    card_mib: float = 0.0
    process_mib: float
    files_bytes: float


def _network_plan(
    costs: StepCosts, recipe: Recipe, model: str, sizes: Graphs, to_rank: Sequence[Graphs]
) -> ModelPlan:
    config: Any = getattr(recipe, model)
    n_seeds = len(recipe.seeds_of(model))
    on_gpu = costs.on_gpu(recipe, model)
    step = step_of(recipe, model, sizes.nodes, sizes.distinct)
    kernels_ms, host_ms = costs.step_ms(recipe, model, step)
    reads_s, _ = _reading(recipe, model, sizes)
    host_ms = host_ms + 1e3 * step.n_graphs * reads_s
    # The host launches and reads while the card computes. A processor does one after the other.
    times_ms = np.maximum(kernels_ms, host_ms) if on_gpu else kernels_ms + host_ms
    train_s = config.training.steps * float(times_ms.mean()) / 1e3
    card_mib, process_mib = network_mib(costs, recipe, model, sizes)
    ranking_s = sum(_ranking_s(costs, recipe, model, part) for part in to_rank)
    return ModelPlan(
        collection=sizes.collection,
        model=model,
        runs=n_seeds,
        steps=config.training.steps,
        step_ms=float(kernels_ms.mean()),
        host_ms=float(host_ms.mean()),
        train_hours=train_s / HOUR_S,
        rank_hours=n_seeds * ranking_s / HOUR_S,
        on_gpu=on_gpu,
        card_mib=card_mib,
        process_mib=process_mib,
        files_bytes=n_seeds * WEIGHTS_BYTES * getattr(config, "hidden", 1) ** 2,
    )


def network_mib(
    costs: StepCosts, recipe: Recipe, model: str, sizes: Graphs, *, n_graphs: int = 1
) -> tuple[float, float]:
    """Return the memory of a network's training in MiB: of the card, and of the process.

    There are `n_graphs` times as many graphs as `sizes` has.
    """
    largest = step_of(recipe, model, sizes.nodes, sizes.distinct, most=True)
    activations_mib = costs.peak_bytes(recipe, model, largest) / MIB
    cached_mib = min(CACHE_BYTES, n_graphs * _reading(recipe, model, sizes)[1]) / MIB
    if costs.on_gpu(recipe, model):
        return CONTEXT_MIB + cached_mib + activations_mib, LIBRARIES_MIB + cached_mib + CUDA_MIB
    return 0.0, LIBRARIES_MIB + cached_mib + activations_mib


def _reading(recipe: Recipe, model: str, graphs: Graphs) -> tuple[float, float]:
    """Return the mean seconds to read a graph of a step, and the bytes of all inputs.

    Rounds are permutations. If a share f of the inputs fits the cache, an input is still there with
    the chance f + (1 - f) log(1 - f).
    """
    config: Any = getattr(recipe, model)
    has_statistics = graphs.kind == "layout" and getattr(config, "statistics", False)
    stage = "read statistics" if has_statistics else "read"
    read_s = _processor_s(stage, graphs, graphs.distinct) / len(graphs.nodes)
    n_bytes = INPUT_CONFIG_BYTES * graphs.distinct
    if graphs.kind == "layout":
        n_bytes = n_bytes + INPUT_NODE_BYTES * kept_nodes(recipe.features.prune, graphs.nodes)
    share = min(1.0, CACHE_BYTES / n_bytes.sum())
    is_hit = share + (1 - share) * np.log(max(1 - share, 1e-9))
    per_step = getattr(config, "graphs_per_step", 0) or config.kernels_per_step
    n_reads = config.training.steps * per_step
    first = min(1.0, len(graphs.nodes) / n_reads)
    return read_s * max(first, 1 - is_hit), float(n_bytes.sum())


def _ranking_s(costs: StepCosts, recipe: Recipe, model: str, part: Graphs) -> float:
    """Return the seconds in which a network ranks all configs of a split."""
    step = step_of(recipe, model, part.nodes, part.distinct)
    kernels_ms, host_ms = costs.step_ms(recipe, model, step)
    config: Any = getattr(recipe, model)
    n_kept = kept_nodes(recipe.features.prune, part.nodes) if part.kind == "layout" else part.nodes
    n_scores = part.distinct * getattr(config, "permutations", 1)
    n_steps = n_kept * n_scores * step.hidden / step.values
    seconds = np.maximum(n_steps, 1 / step.n_graphs) * np.maximum(kernels_ms, host_ms) / 1e3
    return float(RANKING_SHARE * seconds.sum())


def _tree_plan(recipe: Recipe, model: str, sizes: Graphs, to_rank: Sequence[Graphs]) -> ModelPlan:
    config: Any = getattr(recipe, model)
    name = recipe.named_models.get(model, model)
    n_seeds, n_graphs = len(recipe.seeds_of(model)), len(sizes.nodes)
    train_s = rows = leaves = n_bytes = 0.0
    if not isinstance(config, BaselineConfig):
        n_configs = np.minimum(config.configs_per_graph, sizes.distinct)
        rows = float(n_configs.sum())
        train_s = _processor_s("statistics", sizes, n_configs)
        # One model of each graph is trained after the other.
        n_rows = float(n_configs.max()) if name == BY_GRAPH else rows
        has_folds = name in ROW_ROUND_S and getattr(config, "early_stop", 0) > 0
        by_statistic = BYTES_WITH_FOLDS if has_folds else BYTES_PER_STATISTIC
        n_bytes = n_rows * by_statistic * len(ALL_STATISTICS[sizes.kind])
        if name in ROW_ROUND_S:
            n_fits = config.folds * len(config.leaves_to_try) if has_folds else 1
            train_s += config.num_boost_round * n_fits * ROW_ROUND_S[name] * rows
            leaves = config.num_boost_round * getattr(config, "num_leaves", 31)
    ranking_s = sum(_processor_s("rank", part, part.distinct) for part in to_rank)
    return ModelPlan(
        collection=sizes.collection,
        model=model,
        runs=n_seeds,
        train_hours=train_s / HOUR_S,
        rank_hours=n_seeds * ranking_s / HOUR_S,
        process_mib=LIBRARIES_MIB + n_bytes / MIB,
        files_bytes=n_seeds * LEAF_BYTES * leaves * (n_graphs if name == BY_GRAPH else 1),
    )


def _processor_s(stage: str, part: Graphs, configs: NDArray[Any]) -> float:
    """Return the seconds of a stage on all graphs, with (g,) configs of each."""
    by_graph, by_node, by_config, by_both = PROCESSOR_S[part.kind][stage]
    seconds = by_graph + by_node * part.nodes + by_config * configs + by_both * part.nodes * configs
    return float(seconds.sum())


def model_plan(
    costs: StepCosts,
    recipe: Recipe,
    model: str,
    fits: Sequence[Graphs],
    to_rank: Sequence[Graphs] = (),
) -> ModelPlan:
    """Return the cost of a model on a collection, with the recipe of that collection.

    `fits` has the graphs of each training of a seed. It is empty if the collection's models are
    trained with another collection.
    """
    is_network = bool(model_entry(recipe, model).network)
    rows = [
        _network_plan(costs, recipe, model, sizes, to_rank)
        if is_network
        else _tree_plan(recipe, model, sizes, to_rank)
        for sizes in fits or to_rank
    ]
    if not fits:
        return replace(rows[0], runs=0, train_hours=0.0, card_mib=0.0, files_bytes=0.0)
    hours = sum(row.train_hours for row in rows) / len(rows)
    runs, n_bytes = (sum(getattr(row, key) for row in rows) for key in ("runs", "files_bytes"))
    return replace(rows[-1], runs=runs, train_hours=hours, files_bytes=n_bytes)


@dataclass(frozen=True)
class CollectionPlan:
    """The cost of the stages of a collection that train nothing.

    Attributes:
        prepare_hours: Hours of one thread to check and pack the files.
        score_hours: Hours of one thread to blend, to score and to write the submission.
        disk_bytes: Bytes of files: "raw" and "store" are upper bounds, "run" is an estimate.
    """

    collection: str
    prepare_hours: float
    score_hours: float
    disk_bytes: dict[str, float]


def _collection_plan(
    recipe: Recipe, parts: Sequence[Graphs], to_rank: Sequence[Graphs], models: Sequence[ModelPlan]
) -> CollectionPlan:
    kind = parts[0].kind
    n_configs = sum(int(part.configs.sum()) for part in parts)
    if kind == "tile":
        raw, store = RAW_TILE_CONFIG * n_configs, STORE_TILE_CONFIG * n_configs
    else:
        n_bytes_of = [RAW_NODE_CONFIG * part.nodes * part.configs for part in parts]
        raw = sum(float(np.minimum(MAX_RAW_BYTES, n_bytes).sum()) for n_bytes in n_bytes_of)
        store = STORE_NODE * sum(int(part.nodes.sum()) for part in parts)
        store += STORE_LAYOUT_CONFIG * n_configs
    n_tables = sum(len(recipe.seeds_of(model)) for model in recipe.models_of(kind)) + SCORE_TABLES
    run = n_tables * SCORES_OF_CONFIG[kind] * sum(int(part.configs.sum()) for part in to_rank)
    run += sum(model.files_bytes for model in models)
    return CollectionPlan(
        collection=parts[0].collection,
        prepare_hours=sum(_processor_s("prepare", p, p.configs) for p in parts) / HOUR_S,
        score_hours=sum(_processor_s("score", p, p.distinct) for p in to_rank) / HOUR_S,
        disk_bytes={"raw": raw, "store": store, "run": run},
    )


@dataclass(frozen=True)
class Plan:
    """The cost of a recipe.

    Attributes:
        card: The GPU, None without one.
        min_run_hours: Lower bound for the wall time of `run`, the largest of three: GPU time by
            cards, thread time by cores, the longest training.
    """

    recipe: Recipe
    models: list[ModelPlan]
    collections: list[CollectionPlan]
    card: Card | None
    n_cards: int
    n_cores: int
    source: str

    @property
    def gpu_hours(self) -> float:
        """Return the hours of one card."""
        return sum(m.runs * m.train_hours + m.rank_hours for m in self.models if m.on_gpu)

    @property
    def cpu_hours(self) -> float:
        """Return the hours of one thread. It launches and reads for a card, too."""
        hours = sum(row.prepare_hours + row.score_hours for row in self.collections)
        for m in self.models:
            host = m.runs * m.steps * m.host_ms / 1e3 / HOUR_S
            hours += host if m.on_gpu else m.runs * m.train_hours + m.rank_hours
        return hours

    @property
    def disk_bytes(self) -> dict[str, float]:
        """Return the bytes of all files: "raw", "store" and "run"."""
        parts = "raw", "store", "run"
        return {part: sum(row.disk_bytes[part] for row in self.collections) for part in parts}

    @property
    def min_run_hours(self) -> float:
        threads = self.recipe.threads or self.n_cores
        trainings = [m.train_hours / (1 if m.on_gpu else threads) for m in self.models]
        return max(self.gpu_hours / self.n_cards, self.cpu_hours / self.n_cores, *trainings)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {
            "recipe": self.recipe.name,
            "steps": self.source,
            "card": self.card and {"name": self.card.name, "memory_gib": self.card.memory_gib},
            "cards": self.n_cards,
            "cores": self.n_cores,
            "models": [asdict(row) for row in self.models],
            "collections": [asdict(row) for row in self.collections],
            "gpu_hours": self.gpu_hours,
            "cpu_hours": self.cpu_hours,
            "disk_bytes": self.disk_bytes,
            "min_run_hours": self.min_run_hours,
        }


def make_plan(
    recipe: Recipe,
    costs: StepCosts,
    graphs: Sequence[Graphs],
    *,
    n_cards: int = 1,
    n_cores: int = 8,
) -> Plan:
    """Return the cost of a recipe on graphs of some sizes. A training takes one of the cards."""
    rows, stages = [], []
    for name in dict.fromkeys(part.collection for part in graphs):
        settings = recipe.of(collection_named(name))
        parts = [part for part in graphs if part.collection == name]
        limit = settings.valid_configs if parts[0].kind == "layout" else 0
        to_rank = [
            part.at_most(limit) if part.split == "valid" and limit else part
            for part in parts
            if part.split != "train"
        ]
        models = [
            model_plan(costs, settings, model, _fits(settings, model, name, graphs), to_rank)
            for model in settings.models_of(parts[0].kind)
        ]
        rows += models
        stages.append(_collection_plan(settings, parts, to_rank, models))
    return Plan(recipe, rows, stages, costs.card, n_cards, n_cores, costs.source)
