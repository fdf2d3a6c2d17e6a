"""The configuration of each network, typed and frozen; light to import.

A layout GNN adds its own widths to LayoutGnnConfig, which says how any of them is trained. Rankers
on statistics are in models/config/recipe.py.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from common.settings import FrozenConfig

Positive = Annotated[int, Field(gt=0)]
Depth = Annotated[int, Field(gt=0, le=100)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LossName = Literal["pairwise_hinge", "pairwise_logistic", "list_mle"]
StatisticsName = Literal["plain", "all"]
TileLossName = Literal[LossName, "best_of_five"]


class TrainingConfig(FrozenConfig):
    """How a GNN is trained: AdamW, linear warm-up, cosine decay, clipped gradients.

    Attributes:
        steps: updates of the weights.
        learning_rate: at its highest, when the warm-up ends.
        warmup_steps: the first steps, over which the learning rate rises to that.
        weight_decay: AdamW's.
        clip_norm: a step's gradients are scaled down to this norm where theirs is larger.
        checkpoint_every: steps between checkpoints, which a killed training goes on from.
        log_every: steps between lines of metrics.jsonl.
        precision: what activations are stored in, in training and in ranking; weights, norms and
            sums are float32. "auto": float32 on a CPU and, for tile networks, everywhere; else on
            a GPU bfloat16 from compute capability 8.0 on and float16 below.
        swa_start: the model ends with the mean of its weights after this share of the steps;
            1 = with the last ones.
        early_stop: stop after so many evaluations in a row that were no better than the best, and
            end with the best weights; 0 = take every step. What is judged on is held out of the
            train split, see data/families.py.
        eval_interval: steps between evaluations, where `early_stop` asks for such.
    """

    steps: Positive = 300
    learning_rate: PositiveFloat = 2e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    weight_decay: Weight = 1e-4
    clip_norm: PositiveFloat = 1.0
    checkpoint_every: Positive = 100
    log_every: Positive = 20
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    swa_start: Annotated[float, Field(ge=0, le=1)] = 1.0
    early_stop: Annotated[int, Field(ge=0)] = 0
    eval_interval: Positive = 100


def _exact_if_auto(training: TrainingConfig) -> TrainingConfig:
    """Say float32 for "auto": bfloat16 swaps close configs, and casts take more than it saves."""
    exact = training.model_copy(update={"precision": "float32"})
    return exact if training.precision == "auto" else training


class LayoutGnnConfig(FrozenConfig):
    """What all layout GNNs share: the loss, what a step takes, and how training goes.

    Attributes:
        loss: what training brings down, see models/training/losses.py.
        graphs_per_step: how many graphs a step takes.
        configs_per_step: how many configs of each of them, drawn at random.
        inference_tensor_mib: configs are ranked in chunks as large as keep the widest tensor within
            so many MiB. It decides speed and memory; scores do not depend on it.
        training: how the weights are found.
    """

    loss: LossName = "pairwise_hinge"
    graphs_per_step: Positive = 1
    configs_per_step: Annotated[int, Field(ge=2)] = 64
    inference_tensor_mib: Positive = 12
    training: TrainingConfig = TrainingConfig()


class SageConfig(LayoutGnnConfig):
    """What the layout GNNs for pruned and for whole graphs share.

    Attributes:
        hidden: channels of a node and config.
        blocks: rounds of message passing.
        opcode_width: channels of an opcode's embedding.
        layout_width: channels of the embedding of each of a layout's 18 entries.
        channel_reduction: channel attention squeezes `hidden` channels into so many times fewer.
        cross_config: configs see each other, by attention across them.
        fused: on a GPU, work on nodes goes through fused Triton kernels; false = plain torch.
    """

    hidden: Positive = 64
    blocks: Depth = 2
    opcode_width: Positive = 16
    layout_width: Positive = 4
    channel_reduction: Positive = 8
    cross_config: bool = True
    fused: bool = True


class CrossConfigSageConfig(SageConfig):
    """The layout GNN; see models/layout/cross_config_sage.py.

    Attributes:
        statistics: also read hand-crafted statistics of each config beside the graph, see
            features/statistics/configs.py.
        pool_by_bytes: also sum nodes weighted by their share of the bytes that all put out: what a
            layout costs grows with the tensor, and a plain mean counts all nodes alike.
    """

    statistics: bool = False
    pool_by_bytes: bool = False


class SegmentSageConfig(SageConfig):
    """The layout GNN for whole graphs, trained by segments; see models/segments/network.py.

    Attributes:
        segment_nodes: nodes in a segment, at most.
        keep_stale: the share of the other segments' remembered embeddings that a step keeps; what
            it drops is made up for by the live segment's weight, see models/segments/network.py.
        table_configs: of each graph so many configs are learned from, and remembered.
        head_steps: steps that then train the head alone, on fresh embeddings of all segments.
    """

    segment_nodes: Positive = 1000
    keep_stale: Annotated[float, Field(ge=0, le=1)] = 0.5
    table_configs: Annotated[int, Field(ge=2)] = 128
    head_steps: Annotated[int, Field(ge=0)] = 50


class TgraphConfig(LayoutGnnConfig):
    """The competition's winning layout model, for comparison; see models/layout/tgraph.py.

    Attributes:
        hidden: channels of a node and config.
        blocks: residual blocks, after two linear ones.
        dropout: the share of values that a training step drops.
        cross_config: configs of a batch see each other.
        inference_configs: configs are ranked in batches of at most so many; scores depend on it,
            and here `inference_tensor_mib` is not read.
        permutations: shuffles into batches whose scores are averaged.
    """

    hidden: Annotated[int, Field(gt=0, multiple_of=2)] = 256
    blocks: Depth = 2
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    cross_config: bool = True
    inference_configs: Positive = 128
    permutations: Positive = 10


class BaselineGcnConfig(LayoutGnnConfig):
    """The dataset paper's layout baseline, for comparison; see models/layout/gcn.py.

    Attributes:
        hidden: channels of a node and config.
        layers: graph convolutions.
    """

    hidden: Positive = 32
    layers: Depth = 2
    loss: LossName = "list_mle"
    graphs_per_step: Positive = 8
    configs_per_step: Annotated[int, Field(ge=2)] = 16


class TileGnnConfig(FrozenConfig):
    """What all tile GNNs share: the loss, what a step takes, and how training goes.

    Attributes:
        loss: what training brings down, see models/training/losses.py.
        statistics: what it reads of each config, see RowsConfig.
        relative_configs: also read how each config differs from the mean of its kernel's.
        kernels_per_step: how many kernels a step takes.
        configs_per_kernel: how many configs of each of them.
        opcode_width: channels of an opcode's embedding.
        training: how the weights are found.
    """

    loss: TileLossName = "list_mle"
    statistics: StatisticsName = "plain"
    relative_configs: bool = False
    kernels_per_step: Positive = 16
    configs_per_kernel: Annotated[int, Field(ge=2)] = 64
    opcode_width: Positive = 16
    training: Annotated[TrainingConfig, AfterValidator(_exact_if_auto)] = TrainingConfig()


class LateFusionSageConfig(TileGnnConfig):
    """The tile GNN; see models/tile/late_fusion_sage.py.

    Attributes:
        hidden: channels of a node, and of a config.
        blocks: rounds of message passing, and as many blocks over configs after pooling.
        cross_config: configs of a kernel see each other.
    """

    hidden: Positive = 64
    blocks: Depth = 2
    cross_config: bool = True


class EarlyFusionSageConfig(TileGnnConfig):
    """The dataset paper's tile baseline, for comparison; see models/tile/early_fusion_sage.py.

    Attributes:
        hidden: channels of a node and config.
        layers: rounds of message passing.
        inference_tensor_mib: configs are ranked in chunks as large as keep the widest tensor within
            so many MiB.
    """

    hidden: Positive = 64
    layers: Depth = 3
    opcode_width: Positive = 64
    inference_tensor_mib: Positive = 12
