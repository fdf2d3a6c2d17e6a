"""How much memory a recipe needs at most, and what to change so that it fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from data.official.published import PartSize
from models.config.recipe import Recipe
from models.registry import model_entry
from models.training.dataset import CACHE_BYTES
from models.training.gpu import RANKING_KEYS, TRAINING_KEYS, to_halve
from pipeline.planning.cards import CONTEXT_MIB, LIBRARIES_MIB
from pipeline.planning.costs import (
    TREES,
    Machine,
    is_network,
    ranking_counts,
    step_counts,
    uses_gpu,
)

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


def peak_mib(recipe: Recipe, sizes: Sequence[PartSize], machine: Machine) -> dict[str, float]:
    """Return the most memory by "train MODEL" and "rank MODEL", of the largest graph, in MiB.

    Of networks on a GPU it is the card's.
    """
    peaks: dict[str, float] = {}
    for model in recipe.all_models:
        kind = model_entry(recipe, model).kind
        parts = [part for part in sizes if part.kind == kind]
        trained = [part for part in parts if part.split == "train"]
        ranked = [part for part in parts if part.split != "train" and is_network(recipe, model)]
        if trained:
            peaks[f"train {model}"] = max(
                _training_mib(recipe, model, part, machine) for part in trained
            )
        if ranked:
            peaks[f"rank {model}"] = _ranking_mib(recipe, model, ranked, machine)
    return peaks


def _training_mib(recipe: Recipe, model: str, part: PartSize, machine: Machine) -> float:
    config, card = getattr(recipe, model), machine.card
    if not is_network(recipe, model):
        rows = part.graphs * min(config.configs_per_graph, part.most_configs)
        folds = model in TREES and config.early_stop > 0
        n_bytes = BYTES_WITH_FOLDS if folds else BYTES_PER_STATISTIC
        return float(rows * n_bytes * STATISTICS[part.kind] / MIB)
    base = CONTEXT_MIB if uses_gpu(recipe, model, machine) else LIBRARIES_MIB
    counts, work = step_counts(recipe, model, part.most_nodes, part.most_configs, card)
    return base + CACHE_MIB + work * counts.peak_bytes / MIB


def _ranking_mib(recipe: Recipe, model: str, parts: Sequence[PartSize], machine: Machine) -> float:
    """Return it with as many configs as are counted; of more, a card keeps what it has room for."""
    part = max(parts, key=lambda part: part.most_nodes)
    most = max(part.most_configs for part in parts)
    largest = replace(part, nodes=part.most_nodes, configs=most)
    base = CONTEXT_MIB if uses_gpu(recipe, model, machine) else LIBRARIES_MIB
    counts, _ = ranking_counts(recipe, model, largest, machine.card, whole=True)
    return base + counts.peak_bytes / MIB
