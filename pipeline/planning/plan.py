"""The plan of a recipe: what it costs by collection and stage, and whether it fits a card.

Networks are counted, see counts.py, at one size, and what is counted grows with the nodes kept;
what the processor does is from the constants in cards.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from statistics import fmean
from typing import Any

import torch

from common.errors import UsageError
from common.progress import each
from data.cache import CACHE_BYTES
from data.official.published import CONFIGURABLE_SHARE, PartSize
from features.statistics.configs import ALL_STATISTICS
from models.config.networks import SegmentSageConfig, TgraphConfig
from models.config.recipe import Recipe
from models.registry import model_entry
from models.training.device import (
    RANKING_KEYS,
    TRAINING_KEYS,
    to_halve,
    torch_prepared,
    training_device,
)
from pipeline.planning import cards
from pipeline.planning.cards import CONTEXT_MIB, LIBRARIES_MIB, Card, Machine, card_named
from pipeline.planning.counts import Counts
from pipeline.planning.made_up import (
    Size,
    count_step,
    counted_ranking,
    counted_step,
    make_case,
    step_seconds,
)

TREES = ("layout_boosting", "tile_boosting")
LINEAR = ("layout_linear", "tile_linear")
SCORE_TABLES = 2  # beside those of the members: the blend's, and the floor's
# Kept nodes by configurable ones, as `features.pruning.prune` keeps them: the most of six layout
# graphs of the competition (hops-1: 3.0 to 3.6). Graphs of JAX programs on a CPU differ more: in
# data/sample hops-1 keeps 1.6 to 4.4.
KEPT_PER_CONFIGURABLE = {"config": 1.0, "hops-1": 3.6, "hops-2": 7.0}
# What is counted: a graph after pruning, and how many of its configs are ranked.
EDGES_PER_NODE = 1.65
COUNTED = Size(nodes=2_000, edges=3_400, configurable=560, configs=1_000)
ON_CPU = Size(nodes=250, edges=425, configurable=70, configs=1_000)  # what is timed without a GPU
STAGES = ("prepare", "train", "rank", "score")
HOUR_S = 3600.0
CACHE_MIB = CACHE_BYTES >> 20  # on host and device together
MIB = 2**20


@dataclass(frozen=True)
class StageCost:
    """What one stage takes on one card, or on one thread of the processor.

    Attributes:
        collection: of a training on all layout collections, the first of them.
        stage: "prepare", "train", "rank" or "score".
        model: "" where the stage has none.
    """

    collection: str
    stage: str
    model: str
    seconds: float
    on_gpu: bool


def is_network(recipe: Recipe, model: str) -> bool:
    return bool(model_entry(recipe, model).network)


def calibrated(machine: Machine, recipe: Recipe) -> Machine:
    """Time a step of the recipe's first layout network, and scale networks by what it takes.

    On a GPU those that it computes; without one, those on the processor.

    Raises:
        UsageError: there is no such network, or the GPU at hand is not the machine's.
    """
    network = next((name for name in recipe.models_of("layout") if is_network(recipe, name)), None)
    if network is None:
        raise UsageError(f"--calibrate: recipe {recipe.name} has no layout network to time")
    device = training_device(recipe.accelerator)
    on_gpu = device.type != "cpu"
    if on_gpu:
        name = torch.cuda.get_device_name()
        if machine.card is None or card_named(name) != machine.card:
            raise UsageError(f"--calibrate: this machine's GPU is {name}; expected --gpu to say so")
    size = COUNTED if on_gpu else ON_CPU
    counts = count_step(make_case(recipe, network, size), machine.card)
    with torch_prepared(threads=recipe.threads if on_gpu else 1, device=device):
        seconds = step_seconds(make_case(recipe, network, size), device)
    scale = seconds / machine.seconds(counts, on_gpu=on_gpu)
    told = f"a training step of {network} took {scale:.2f} times as long as computed on this"
    if on_gpu:
        return replace(machine, gpu_scale=scale, measured=f"{told} machine's GPU")
    return replace(machine, cpu_scale=scale, measured=f"{told} machine's processor, one thread")


def stage_costs(recipe: Recipe, sizes: Sequence[PartSize], machine: Machine) -> list[StageCost]:
    """Return the cost of every stage of a recipe on collections of these sizes.

    Raises:
        UsageError: the recipe has a model whose cost is not known.
    """
    for model in recipe.all_models:
        if model not in (*TREES, *LINEAR) and not is_network(recipe, model):
            raise UsageError(
                f"recipe {recipe.name}: what {model} costs is not known; expected networks and "
                f"{', '.join((*TREES, *LINEAR))}"
            )
    costs: list[StageCost] = []
    names = list(dict.fromkeys(part.collection for part in sizes))
    learned = {part.collection: part for part in learned_parts(recipe, sizes)}
    for name in each("count", names):
        parts = [part for part in sizes if part.collection == name]
        ranked = [as_ranked(recipe, part) for part in parts if part.split != "train"]
        kind, train = parts[0].kind, learned.get(name)
        prepare = (
            part.graphs * processor_s(f"{kind} prepare", part, part.configs) for part in parts
        )
        costs.append(StageCost(name, "prepare", "", sum(prepare), False))
        for model in recipe.models_of(kind):
            on_gpu = uses_gpu(recipe, model, machine)
            seconds = {"train": training_s(recipe, model, train, machine)} if train else {}
            rank = sum(part.graphs * ranking_s(recipe, model, part, machine) for part in ranked)
            for stage, own_s in (seconds | {"rank": rank}).items():
                costs += [StageCost(name, stage, model, own_s, on_gpu)] * len(recipe.seeds)
        score = (part.graphs * processor_s(f"{kind} score", part) for part in ranked)
        costs.append(StageCost(name, "score", "", sum(score), False))
    return costs


def learned_parts(recipe: Recipe, sizes: Sequence[PartSize]) -> list[PartSize]:
    """Return the train splits; those of layouts as one, the first, where models learn from all."""
    parts = [part for part in sizes if part.split == "train"]
    layouts = [part for part in parts if part.kind == "layout"]
    if not recipe.layout.together or not layouts:
        return parts
    graphs = [part.graphs for part in layouts]
    nodes, edges, configs, distinct = (
        fmean((getattr(part, key) for part in layouts), graphs)
        for key in ("nodes", "edges", "configs", "distinct")
    )
    all_layouts = replace(
        layouts[0],
        graphs=sum(graphs),
        nodes=round(nodes),
        most_nodes=max(part.most_nodes for part in layouts),
        edges=round(edges),
        configs=round(configs),
        most_configs=max(part.most_configs for part in layouts),
        repeated=1 - distinct / configs,
    )
    return [all_layouts, *(part for part in parts if part not in layouts)]


def as_ranked(recipe: Recipe, part: PartSize) -> PartSize:
    """Return a part with as many configs of a graph as a run ranks: of test ones all."""
    is_sampled = part.split == "valid" and part.kind == "layout"
    at_most = (is_sampled and recipe.valid_configs) or part.configs
    return replace(part, configs=min(part.configs, at_most))


def uses_gpu(recipe: Recipe, model: str, machine: Machine) -> bool:
    has_gpu = machine.card is not None and recipe.accelerator != "cpu"
    return has_gpu and is_network(recipe, model)


def processor_s(what: str, part: PartSize, n_configs: float | None = None) -> float:
    """Return the seconds of one thread for one graph of a part; all distinct configs if None."""
    n_configs = part.distinct if n_configs is None else n_configs
    if what == "tile statistics":
        return cards.TILE_STATISTICS_S
    if what in cards.TILE_CONFIG_S:
        return cards.TILE_CONFIG_S[what] * n_configs
    return cards.NODE_CONFIG_S[what] * part.nodes * n_configs


def training_s(recipe: Recipe, model: str, train: PartSize, machine: Machine) -> float:
    config = getattr(recipe, model)
    if is_network(recipe, model):
        counts, work = step_counts(recipe, model, train.nodes, train.distinct, machine.card)
        on_gpu = uses_gpu(recipe, model, machine)
        seconds = config.training.steps * machine.seconds(counts, on_gpu=on_gpu, work=work)
        if isinstance(config, SegmentSageConfig):  # the head learns from graphs embedded whole
            embedded = min(train.graphs, config.head_steps * config.graphs_per_step)
            pool = replace(train, configs=min(config.table_configs, round(train.distinct)))
            seconds += embedded * ranking_s(recipe, model, replace(pool, repeated=0.0), machine)
        return float(seconds)
    sampled = min(config.configs_per_graph, train.distinct)
    seconds = train.graphs * processor_s(f"{train.kind} statistics", train, sampled)
    if model in TREES:
        # On all rows at most; each fold learns from all rows but its own part.
        rounds = config.num_boost_round * (1 + (config.folds - 1 if config.early_stop else 0))
        seconds += rounds * cards.ROW_ROUND_S[model] * train.graphs * sampled
    return float(seconds)


def step_counts(
    recipe: Recipe, model: str, nodes: float, distinct: float, card: Card | None
) -> tuple[Counts, float]:
    """Return what a step was counted to take, and how many times as much work a mean one is.

    Args:
        nodes, distinct: of a graph before pruning.
    """
    entry, config = model_entry(recipe, model), getattr(recipe, model)
    if entry.kind == "tile":
        return counted_step(entry, config, _kernel(nodes, distinct), card), 1.0
    configs = min(config.configs_per_step, max(2, round(distinct)))
    kept, learned = kept_nodes(recipe.features.prune, nodes), COUNTED.nodes
    size = _graph(recipe, config)
    if isinstance(config, SegmentSageConfig):  # a step computes one segment with gradients
        kept = min(kept, config.segment_nodes)
        learned = ceil(COUNTED.nodes / ceil(COUNTED.nodes / config.segment_nodes))
    return counted_step(entry, config, replace(size, configs=configs), card), kept / learned


def ranking_s(recipe: Recipe, model: str, part: PartSize, machine: Machine) -> float:
    if not is_network(recipe, model):
        return processor_s(f"rank {model}", part)
    counts, work = ranking_counts(recipe, model, part, machine.card)
    on_gpu = uses_gpu(recipe, model, machine)
    return machine.seconds(counts, on_gpu=on_gpu, work=work, launches=max(1.0, work))


def ranking_counts(
    recipe: Recipe, model: str, part: PartSize, card: Card | None, *, whole: bool = False
) -> tuple[Counts, float]:
    """Return what ranking a graph was counted to take, and how much more work a part's mean is.

    Args:
        whole: count a layout graph with all of its nodes that are kept, for its memory.
    """
    entry, config = model_entry(recipe, model), getattr(recipe, model)
    if entry.kind == "tile":
        return counted_ranking(entry, config, _kernel(part.nodes, part.configs), card), 1.0
    share = kept_nodes(recipe.features.prune, part.nodes) / COUNTED.nodes
    size = _graph(recipe, config).times(share if whole else 1.0)
    if whole and isinstance(config, TgraphConfig):  # all of its shuffles hold as much as one
        config = config.model_copy(update={"permutations": 1})
    work = share * part.distinct / COUNTED.configs
    return counted_ranking(entry, config, size, card), work


def _graph(recipe: Recipe, config: Any) -> Size:
    """Return the graph that is counted: to segments it matters how many nodes are configurable."""
    if not isinstance(config, SegmentSageConfig):
        return COUNTED
    share = CONFIGURABLE_SHARE / kept_nodes(recipe.features.prune, 1.0)
    return replace(COUNTED, configurable=round(share * COUNTED.nodes))


def _kernel(nodes: float, configs: float) -> Size:
    return Size(round(nodes), round(EDGES_PER_NODE * nodes), 0, max(2, round(configs)))


def kept_nodes(rule: str, n_nodes: float) -> float:
    """Return about how many nodes a pruning rule leaves of a layout graph, rather too many.

    Of rules that were not counted, all nodes.
    """
    share = KEPT_PER_CONFIGURABLE.get(rule)
    return n_nodes if share is None else share * (CONFIGURABLE_SHARE * n_nodes)


def disk_bytes(recipe: Recipe, parts: Sequence[PartSize]) -> dict[str, float]:
    """Return the bytes of one collection's files: "raw" and "store" at most, "run" about."""
    kind = parts[0].kind
    n_tables = len(recipe.models_of(kind)) * len(recipe.seeds) + SCORE_TABLES
    ranked = sum(part.graphs * part.configs for part in parts if part.split != "train")

    def of_graph(part: PartSize) -> tuple[float, float]:
        if kind == "tile":
            return cards.RAW_TILE_CONFIG * part.configs, cards.STORE_TILE_CONFIG * part.configs
        raw = min(cards.MOST_RAW_BYTES, cards.RAW_NODE_CONFIG * part.nodes * part.configs)
        return raw, cards.STORE_NODE * part.nodes

    raw, store = (sum(of_graph(part)[place] * part.graphs for part in parts) for place in (0, 1))
    return {"raw": raw, "store": store, "run": n_tables * cards.SCORES_OF_CONFIG[kind] * ranked}


@dataclass(frozen=True)
class CardMemory:
    """Whether a network's training or ranking fits a card.

    Attributes:
        stage: "train" or "rank".
        halve: where it does not, the keys of which one is to be halved, with their values.
    """

    model: str
    stage: str
    peak_gib: float
    card_gib: float
    fits: bool
    halve: list[str]


@dataclass(frozen=True)
class CollectionPlan:
    """What a recipe costs on one collection: by stage, by folder, and by "train MODEL"."""

    collection: str
    gpu_hours: dict[str, float]
    cpu_hours: dict[str, float]
    disk_bytes: dict[str, float]
    peak_mib: dict[str, float]


@dataclass(frozen=True)
class Plan:
    """What a recipe, by name, costs with so many seeds of each model.

    Attributes:
        machine: hours on a GPU are those of one of its cards.
        min_run_hours: Lower bound for the wall time of `run` on all cards and cores.
        card_memory: whether each network fits a card, in training and in ranking.
    """

    recipe: str
    seeds: int
    collections: list[CollectionPlan]
    machine: Machine
    min_run_hours: float
    card_memory: list[CardMemory]

    def total(self, table: str) -> float:
        return float(sum(sum(getattr(row, table).values()) for row in self.collections))

    def as_json(self) -> dict[str, Any]:
        tables = ("gpu_hours", "cpu_hours", "disk_bytes")
        return {**asdict(self), "total": {table: self.total(table) for table in tables}}


def make_plan(recipe: Recipe, sizes: Sequence[PartSize], machine: Machine) -> Plan:
    """Compute what a recipe costs on a machine.

    Raises:
        UsageError: the recipe has a model whose cost is not known.
    """
    every = stage_costs(recipe, sizes, machine)
    held = [*learned_parts(recipe, sizes), *(part for part in sizes if part.split != "train")]
    rows = []
    for name in dict.fromkeys(part.collection for part in sizes):
        hours = {True: dict.fromkeys(STAGES, 0.0), False: dict.fromkeys(STAGES, 0.0)}
        for cost in (cost for cost in every if cost.collection == name):
            hours[cost.on_gpu][cost.stage] += cost.seconds / HOUR_S
        disk = disk_bytes(recipe, [part for part in sizes if part.collection == name])
        peaks = peak_mib(recipe, [part for part in held if part.collection == name], machine)
        rows.append(CollectionPlan(name, hours[True], hours[False], disk, peaks))
    memory = card_memory(recipe, [row.peak_mib for row in rows], machine)
    least_h = min_run_s(every, machine, threads=recipe.threads or machine.n_cores) / HOUR_S
    return Plan(recipe.name, len(recipe.seeds), rows, machine, least_h, memory)


def min_run_s(costs: Sequence[StageCost], machine: Machine, *, threads: int) -> float:
    """Return a lower bound for the wall time of `run`, in seconds.

    Args:
        costs: Cost of every stage of the run.
        machine: Cards and cores that share the work.
        threads: Threads of a training on the processor.

    Returns:
        The largest of three: GPU time by cards, thread time by cores, the longest training.
    """
    gpu_s = sum(cost.seconds for cost in costs if cost.on_gpu)
    cpu_s = sum(cost.seconds for cost in costs if not cost.on_gpu)
    trainings = (cost for cost in costs if cost.stage == "train")
    trainings_s = (cost.seconds / (1 if cost.on_gpu else threads) for cost in trainings)
    return max(gpu_s / machine.n_cards, cpu_s / machine.n_cores, *trainings_s)


def card_memory(
    recipe: Recipe, peaks: Sequence[Mapping[str, float]], machine: Machine
) -> list[CardMemory]:
    """Compare what `peak_mib` tells of some collections with the memory of the machine's cards."""
    found, card = [], machine.card
    for name in dict.fromkeys(name for peak in peaks for name in peak):
        stage, model = name.split()
        if card and uses_gpu(recipe, model, machine):
            gib = max(peak.get(name, 0.0) for peak in peaks) / 1024
            fits, keys = gib <= card.memory_gib, TRAINING_KEYS if stage == "train" else RANKING_KEYS
            halve = [] if fits else to_halve(model, getattr(recipe, model), keys)
            found.append(CardMemory(model, stage, gib, card.memory_gib, fits, halve))
    return found


def peak_mib(recipe: Recipe, parts: Sequence[PartSize], machine: Machine) -> dict[str, float]:
    """Return the most memory by "train MODEL" and "rank MODEL", of the largest graph, in MiB.

    Of networks on a GPU it is the card's. Ranking's is with as many configs as are counted; of
    more, a card keeps what it has room for.

    Args:
        parts: splits of one collection.
    """
    peaks: dict[str, float] = {}
    ranked = [part for part in parts if part.split != "train"]
    for model in recipe.models_of(parts[0].kind) if parts else ():
        base = CONTEXT_MIB if uses_gpu(recipe, model, machine) else LIBRARIES_MIB
        for part in parts:
            if part.split == "train":
                peaks[f"train {model}"] = _training_mib(recipe, model, part, machine, base)
        if ranked and is_network(recipe, model):
            most = max(ranked, key=lambda part: part.most_nodes)
            configs = max(part.most_configs for part in ranked)
            largest = replace(most, nodes=most.most_nodes, configs=configs)
            counts, _ = ranking_counts(recipe, model, largest, machine.card, whole=True)
            peaks[f"rank {model}"] = base + counts.peak_bytes / MIB
    return peaks


def _training_mib(
    recipe: Recipe, model: str, part: PartSize, machine: Machine, base: float
) -> float:
    config = getattr(recipe, model)
    if not is_network(recipe, model):
        rows = part.graphs * min(config.configs_per_graph, part.most_configs)
        folds = model in TREES and config.early_stop > 0
        n_bytes = cards.BYTES_WITH_FOLDS if folds else cards.BYTES_PER_STATISTIC
        return float(rows * n_bytes * len(ALL_STATISTICS[part.kind]) / MIB)
    counts, work = step_counts(recipe, model, part.most_nodes, part.most_configs, machine.card)
    return base + CACHE_MIB + work * counts.peak_bytes / MIB
