"""The plan of a recipe: what it costs by collection and stage, and whether it fits a card."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.npz.read import Archive
from data.official.published import PartSize
from data.tree import GraphFile, find_graphs
from models.config.recipe import Recipe
from models.training.dataset import CACHE_BYTES
from models.training.device import RANKING_KEYS, TRAINING_KEYS, to_halve
from pipeline.planning.cards import CONTEXT_MIB, LIBRARIES_MIB
from pipeline.planning.costs import (
    TREES,
    Machine,
    disk_bytes,
    is_network,
    learned_parts,
    ranking_counts,
    stage_costs,
    step_counts,
    uses_gpu,
)

STAGES = ("prepare", "train", "rank", "score")
HOUR_S = 3600.0
CACHE_MIB = CACHE_BYTES >> 20  # on host and device together
MIB = 2**20
# README: measured with a million rows of 100 statistics; 7 where folds find the rounds.
BYTES_PER_STATISTIC, BYTES_WITH_FOLDS = 3, 7
STATISTICS = {"layout": 194, "tile": 120}  # of "all", at most


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
        card_memory: whether each network fits a card, in training and in ranking.
    """

    recipe: str
    seeds: int
    collections: list[CollectionPlan]
    machine: Machine
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
    return Plan(recipe.name, len(recipe.seeds), rows, machine, memory)


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
        n_bytes = BYTES_WITH_FOLDS if folds else BYTES_PER_STATISTIC
        return float(rows * n_bytes * STATISTICS[part.kind] / MIB)
    counts, work = step_counts(recipe, model, part.most_nodes, part.most_configs, machine.card)
    return base + CACHE_MIB + work * counts.peak_bytes / MIB


def sizes_of(data_dir: Path) -> list[PartSize]:
    """Return the size of each split that a data folder holds, by the headers of its files.

    How many configs repeat another is not known from headers: none is taken to.

    Raises:
        PipelineError: a file is damaged.
    """
    parts = groupby(find_graphs(data_dir), lambda file: (file.collection, file.split))
    return [part_size(list(files)) for _, files in parts]


def part_size(files: Sequence[GraphFile]) -> PartSize:
    """Return the size of one split of a collection, by the headers of its files; see `sizes_of`."""
    return mean_size(files[0], [_shape(file) for file in files])


def mean_size(
    file: GraphFile, shapes: Sequence[tuple[int, int, int]], *, repeated: float = 0.0
) -> PartSize:
    """Return the size of the split that a file is of.

    Args:
        shapes: nodes, edges and configs of each of its graphs.
        repeated: the share of configs that repeat another of their graph.
    """
    nodes, edges, configs = zip(*shapes, strict=True)
    return PartSize(
        collection=file.collection.name,
        split=file.split,
        graphs=len(shapes),
        nodes=round(fmean(nodes)),
        most_nodes=max(nodes),
        edges=round(fmean(edges)),
        configs=round(fmean(configs)),
        most_configs=max(configs),
        repeated=repeated,
        counted_in="files",
    )


def _shape(file: GraphFile) -> tuple[int, int, int]:
    with Archive(file.path) as archive:
        nodes = archive.header("node_opcode", dtype=np.uint8, shape=(None,))
        edges = archive.header("edge_index", dtype=np.int64, shape=(None, 2))
        if file.collection.kind == "layout":
            shape: tuple[int | None, ...] = (None, None, N_LAYOUT_VALUES)
            configs = archive.header("node_config_feat", dtype=np.float32, shape=shape)
        else:
            configs = archive.header("config_feat", dtype=np.float32, shape=(None, N_TILE_VALUES))
    return nodes.shape[0], edges.shape[0], configs.shape[0]
