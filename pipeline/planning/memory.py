"""How much memory a recipe needs at most, and what to change so that it fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from common.errors import PipelineError
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
FEWEST_CONFIGS = 16
LEAST_TENSOR_MIB = 4
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


def fit_memory(
    recipe: Recipe, sizes: Sequence[PartSize], machine: Machine, *, limit_mib: float
) -> tuple[Recipe, list[str]]:
    """Halve what networks take at once, in training and in ranking, until they fit.

    A card is taken to have no more than the limit: in ranking, what it keeps follows from that.

    Returns:
        The recipe that fits, and the settings that were changed, as `--set` takes them.

    Raises:
        PipelineError: it does not fit at the least; says what takes most.
    """
    changed: dict[str, int] = {}
    if card := machine.card:
        smaller = replace(card, memory_gib=min(card.memory_gib, limit_mib / 1024))
        machine = replace(machine, card=smaller)
    while True:
        peaks = {
            name: peak
            for name, peak in peak_mib(recipe, sizes, machine).items()
            if is_network(recipe, name.split()[1])
        }
        over = [name for name, peak in peaks.items() if peak > limit_mib]
        if not over:
            return recipe, [f"{key}={value}" for key, value in changed.items()]
        halved = next((half for name in over if (half := _half(recipe, name))), None)
        if halved is None:
            most = max(peaks, key=lambda name: peaks[name])
            raise PipelineError(
                f"memory of {limit_mib / 1024:.1f} GiB: '{most}' takes "
                f"{peaks[most] / 1024:.1f} GiB with the fewest configs at once; expected "
                "a smaller network, more pruning, or more memory"
            )
        model, key, value = halved
        changed[f"{model}.{key}"] = value
        config = getattr(recipe, model).model_copy(update={key: value})
        recipe = recipe.model_copy(update={model: config})


def _half(recipe: Recipe, name: str) -> tuple[str, str, int] | None:
    stage, model = name.split()
    config = getattr(recipe, model)
    key, least = "inference_tensor_mib", LEAST_TENSOR_MIB
    if stage == "train":
        is_layout, least = model_entry(recipe, model).kind == "layout", FEWEST_CONFIGS
        key = "configs_per_step" if is_layout else "configs_per_kernel"
    half = getattr(config, key, 0) // 2
    return (model, key, half) if half >= least else None
