"""The plan of a recipe: what it costs by collection and stage."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
from pipeline.planning.costs import (
    Machine,
    StageCost,
    disk_bytes,
    learned_parts,
    stage_costs,
)
from pipeline.planning.memory import CardMemory, card_memory, peak_mib

STAGES = ("prepare", "train", "rank", "score")
HOUR_S = 3600.0


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
    costs = stage_costs(recipe, sizes, machine)
    held = [*learned_parts(recipe, sizes), *(part for part in sizes if part.split != "train")]
    rows = []
    for name in dict.fromkeys(part.collection for part in sizes):
        own = [cost for cost in costs if cost.collection == name]
        parts = [part for part in sizes if part.collection == name]
        rows.append(
            CollectionPlan(
                name,
                {stage: _hours(own, stage, on_gpu=True) for stage in STAGES},
                {stage: _hours(own, stage, on_gpu=False) for stage in STAGES},
                disk_bytes(recipe, parts),
                peak_mib(recipe, [p for p in held if p.collection == name], machine),
            )
        )
    memory = card_memory(recipe, [row.peak_mib for row in rows], machine)
    return Plan(recipe.name, len(recipe.seeds), rows, machine, memory)


def _hours(costs: Sequence[StageCost], stage: str, *, on_gpu: bool) -> float:
    there = [cost for cost in costs if cost.stage == stage]
    return sum(cost.seconds for cost in there if cost.on_gpu == on_gpu) / HOUR_S


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
