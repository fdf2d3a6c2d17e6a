"""Families of graphs: folds that do not separate them, and held-out parts of the train split.

Many graphs differ only in batch size, precision or the number of chips. A model that has seen one
of them knows the others, so all graphs of an architecture are in one fold. If there is one family,
some configs of each graph are held out instead. The valid split is not used here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.metrics import family_folds
from data.tree import GraphFile

HELD_OUT_SHARE = 0.1
MAX_HELD_OUT = 100  # graphs
# Graphs with fewer configs have no held-out configs.
MIN_CONFIGS = 20

# A kernel's name ends in its fingerprint: a signed 64-bit number in hex, leading zeros dropped.
_KERNEL_FINGERPRINT = re.compile(r"_-?[0-9a-f]{10,16}$")
_SIBLING_PARTS = (
    r"[._]\d+x\d+",  # chips: .4x4
    r"[._](?:bf|fp|f)\d+",  # precision: .bf16, _f32
    r"\.performance",
    r"_batch(?:_size)?_\d+",
    r"_\d+_shard",
    r"_img\d+",  # image size
    r"_fast_epoch",
    r"_(?:train|eval|test)",  # the same network with and without its backward pass
    r"_dynamic(?:_batch_size|_sequence_length|_shape)?",
)
# Synthetic and measured programs: depth, width, backward pass, batch. Official names may have such
# parts only before a sibling part: mnasnet_b1_batch_128 is another network than _a1.
_SYNTHETIC_END = re.compile(r"(?<=.)(?:_d\d+)?(?:_w\d+)?(?:_train)?_b\d+$")
# Measured kernels: their sizes, two letters or more with a number each. Official names end in none.
_KERNEL_SIZES = re.compile(r"(?<=.)(?:_[a-z]\d+){2,}$")
# One network is unet3d in one official name and unet_3d in another.
_DIMENSIONS = re.compile(r"(?<=[a-z])_(?=[123]d$)")
_SIBLING_END = re.compile(rf"(?<=.)(?:{'|'.join(_SIBLING_PARTS)})+$")


def family_of(file: GraphFile) -> str:
    """Return the architecture's name: the file's stem without parts that differ in siblings.

    Sizes that make another architecture stay: resnet_v2_50 and resnet_v2_101 are two families.
    Depths and widths of synthetic programs are removed, because the generator draws them per
    sibling.

    Examples:
        bert_pretraining.4x4.fp16 -> bert_pretraining
        alexnet_train_batch_32_-1bae27a41d70f4dc, a kernel -> alexnet
        resnet_like_d4_w64_b32 -> resnet_like
        unet_3d.4x4.bf16 -> unet3d, as in the name of another file
    """
    # The name has a prefix if graphs of two collections have the same name.
    name = file.name.rpartition(":")[2]
    if file.collection.kind == "tile":
        name = _KERNEL_SIZES.sub("", _KERNEL_FINGERPRINT.sub("", name))
    return _DIMENSIONS.sub("", _SIBLING_END.sub("", _SYNTHETIC_END.sub("", name)))


def grouped_folds(
    files: Sequence[GraphFile], n_folds: int, seed: int
) -> tuple[tuple[GraphFile, ...], ...]:
    """Assign graphs to two or more folds as `family_folds`."""
    files_by_name = sorted(files, key=lambda file: file.name)
    fold_of = family_folds([family_of(file) for file in files_by_name], n_folds, seed)
    return tuple(
        tuple(file for file, fold in zip(files_by_name, fold_of, strict=True) if fold == number)
        for number in range(n_folds)
    )


@dataclass(frozen=True)
class HeldOut:
    """The graphs that a model learns from, and the graphs that judge it."""

    learned: tuple[GraphFile, ...]
    judged: tuple[GraphFile, ...] = ()
    by_config: bool = False

    def configs(self, n: int, *, judged: bool) -> NDArray[np.int64]:
        """Return positions (m,) of distinct configs of a graph, ascending; `n` decides them."""
        if not self.by_config:
            return np.arange(n)
        n_judged = round(n * HELD_OUT_SHARE) if n >= MIN_CONFIGS else 0
        permutation = np.random.default_rng(n).permutation(n)
        return np.sort(permutation[:n_judged] if judged else permutation[n_judged:])


def hold_out(files: Sequence[GraphFile], seed: int) -> HeldOut:
    """Hold out families of about a tenth of the graphs, at most 100, or configs of all graphs.

    If a family is held out of one collection, no collection learns from it. If configs are held out
    of one collection, they are held out of all.
    """
    collections = dict.fromkeys(file.collection for file in files)
    parts = [
        _hold_out_of_one([file for file in files if file.collection == collection], seed)
        for collection in collections
    ]
    if len(parts) == 1:
        return parts[0]
    by_family = [part for part in parts if not part.by_config]
    families = {family_of(file) for part in by_family for file in part.judged}
    learned = tuple(file for file in files if family_of(file) not in families)
    if not learned:
        raise PipelineError(
            "training.early_stop: what is held out of each collection leaves no graph for "
            "one model of all to learn from; set it to 0, or add train graphs"
        )
    judged = tuple(file for part in parts for file in part.judged)
    return HeldOut(learned, judged, by_config=len(by_family) < len(parts))


def _hold_out_of_one(files: Sequence[GraphFile], seed: int) -> HeldOut:
    n_families = len({family_of(file) for file in files})
    if n_families < 2:
        return HeldOut(tuple(files), tuple(files), by_config=True)
    target = min(len(files) * HELD_OUT_SHARE, MAX_HELD_OUT)
    n_folds = min(n_families, max(2, round(len(files) / target)))
    folds = grouped_folds(files, n_folds, seed)
    nearest = min(folds, key=lambda fold: abs(len(fold) - target))
    names = {file.name for file in nearest}
    return HeldOut(tuple(file for file in files if file.name not in names), nearest)
