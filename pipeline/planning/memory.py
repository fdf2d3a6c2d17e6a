"""How much memory a recipe needs at most, and what to change so that it fits."""

from collections.abc import Sequence

from common.errors import PipelineError
from data.official.sizes import PartSize
from models.config.recipe import Recipe
from models.training.dataset import CACHE_BYTES
from pipeline.planning.costs import (
    LAYOUT_NETWORKS,
    NETWORKS,
    TILE_NETWORKS,
    TREES,
    configurable_nodes,
    kept_nodes,
)
from pipeline.planning.laws import Laws

CACHE_MIB = CACHE_BYTES >> 20  # on host and device together
FEWEST_CONFIGS = 16
LEAST_TENSOR_MIB = 4
# README: measured with a million rows of 100 statistics; 7 where folds find the rounds.
BYTES_PER_STATISTIC, BYTES_WITH_FOLDS = 3, 7
STATISTICS = {"layout": 194, "tile": 120}  # of "all", at most
# Of a layout network while it ranks: what is kept of configs between blocks, and some tensors.
KEPT_MIB, RANKING_TENSORS = 512, 8


def peak_mib(recipe: Recipe, sizes: Sequence[PartSize], laws: Laws) -> dict[str, float]:
    """Return the most memory by "train MODEL" and "rank MODEL", of the largest graph, in MiB."""
    peaks: dict[str, float] = {}
    for part in sizes:
        kind = part.collection.split(":", 1)[0]
        for model in recipe.models_of(kind):
            if part.split == "train":
                need = _training_mib(recipe, model, part, laws)
                name, peak = f"train {model}", laws.libraries_mib + need
            elif model in LAYOUT_NETWORKS:
                tensors = RANKING_TENSORS * getattr(recipe, model).inference_tensor_mib
                least = laws.libraries_mib + KEPT_MIB + tensors
                axes = {"kept": _most_kept(recipe, part), "configs": part.most_configs}
                measured = laws.libraries_mib + laws.mib[f"rank {model}"](**axes) + tensors
                name, peak = f"rank {model}", max(least, measured)
            else:
                continue
            peaks[name] = max(peaks.get(name, 0.0), peak)
    return peaks


def _most_kept(recipe: Recipe, part: PartSize) -> float:
    rule = recipe.features.prune
    return kept_nodes(rule, part.most_nodes, configurable_nodes(part.most_nodes))


def _training_mib(recipe: Recipe, model: str, part: PartSize, laws: Laws) -> float:
    config = getattr(recipe, model)
    if model in LAYOUT_NETWORKS:
        configs = min(config.configs_per_step, part.most_configs)
        law = laws.mib[f"train {model}"]
        one = law(kept=_most_kept(recipe, part), configs_per_step=configs, hidden=config.hidden)
        return CACHE_MIB + one * config.graphs_per_step
    if model in TILE_NETWORKS:
        pairs = config.kernels_per_step * config.configs_per_kernel
        return CACHE_MIB + laws.mib[f"train {model}"](pairs=pairs, hidden=config.hidden)
    rows = part.graphs * min(config.configs_per_graph, part.most_configs)
    folds = model in TREES and config.early_stop > 0
    n_bytes = BYTES_WITH_FOLDS if folds else BYTES_PER_STATISTIC
    return float(rows * n_bytes * STATISTICS[part.collection.split(":", 1)[0]] / 2**20)


def fit_memory(
    recipe: Recipe, sizes: Sequence[PartSize], laws: Laws, *, limit_mib: float
) -> tuple[Recipe, list[str]]:
    """Halve `configs_per_step` and `inference_tensor_mib` of networks until they fit.

    Returns:
        The recipe that fits, and the settings that were changed, as `--set` takes them.

    Raises:
        PipelineError: it does not fit at the least; says what takes most.
    """
    changed: dict[str, int] = {}
    while True:
        peaks = {
            name: peak
            for name, peak in peak_mib(recipe, sizes, laws).items()
            if name.split()[1] in NETWORKS
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
        smaller = getattr(recipe, model).model_copy(update={key: value})
        recipe = recipe.model_copy(update={model: smaller})


def _half(recipe: Recipe, name: str) -> tuple[str, str, int] | None:
    stage, model = name.split()
    config = getattr(recipe, model)
    if stage == "rank":
        half = config.inference_tensor_mib // 2
        return (model, "inference_tensor_mib", half) if half >= LEAST_TENSOR_MIB else None
    key = "configs_per_step" if model in LAYOUT_NETWORKS else "configs_per_kernel"
    half = getattr(config, key) // 2
    return (model, key, half) if half >= FEWEST_CONFIGS else None
