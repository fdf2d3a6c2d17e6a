"""The configuration of each network, typed and frozen. The import is fast.

A layout GNN adds keys to LayoutGnnConfig, which has the keys of its training. Rankers on statistics
are in models/config/trees.py.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from common.settings import FrozenConfig

# LightGBM and the GPU read 32-bit integers.
MAX_INT = 2**31 - 1
Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Positive = Annotated[int, Field(gt=0, le=MAX_INT)]
Several = Annotated[int, Field(ge=2, le=MAX_INT)]
Depth = Annotated[int, Field(gt=0, le=100)]
# Sizes in a network or a training step, so that a typing error does not fill the memory.
Width = Annotated[int, Field(gt=0, le=16_384)]
StepGraphs = Annotated[int, Field(gt=0, le=4_096)]
StepConfigs = Annotated[int, Field(ge=2, le=65_536)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
LossName = Literal["pairwise_hinge", "pairwise_logistic", "list_mle"]
StatisticsName = Literal["plain", "all"]
StartName = Literal[
    "", "layout:xla:default", "layout:xla:random", "layout:nlp:default", "layout:nlp:random"
]
TileLossName = Literal[LossName, "best_of_five"]


def each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Raise a ValueError if a value occurs twice, else return the values."""
    if len(set(values)) != len(values):
        raise ValueError("expected each entry once")
    return values


def _train_first(splits: tuple[str, ...]) -> tuple[str, ...]:
    if splits not in ((), ("train",), ("train", "valid")):
        raise ValueError('expected ["train"] or ["train", "valid"]')
    return splits


Seeds = Annotated[tuple[Count, ...], AfterValidator(each_once)]
Splits = Annotated[tuple[Literal["train", "valid"], ...], AfterValidator(_train_first)]


class ModelConfig(FrozenConfig):
    """The keys that all models share.

    Attributes:
        seeds: Seeds of the trainings of this model, for example [0]. An empty list means the seeds
            of the recipe. The weight of a model in the blend does not depend on their number.
        fit_on: Splits that this model learns from to rank the test split, as the key `fit_on` of
            the recipe. An empty list means the recipe's.
    """

    seeds: Seeds = ()
    fit_on: Splits = ()


class TrainingConfig(FrozenConfig):
    """How a network is trained: AdamW, a linear warm-up, a cosine decay, and clipped gradients.

    Attributes:
        steps: Number of updates of the weights, for example 12000 for the full dataset.
        learning_rate: Highest learning rate, reached at the end of the warm-up.
        warmup_steps: Number of steps in which the learning rate rises from 0 to
            `learning_rate`.
        weight_decay: Weight decay of AdamW.
        clip_norm: Largest norm of the gradients of a step. Larger gradients are scaled down to it.
        checkpoint_every: Number of steps between checkpoints. A stopped training resumes from the
            last checkpoint.
        log_every: Number of steps between lines of `metrics.jsonl`.
        precision: Number format of the activations in training and ranking. Weights, norms and sums
            are always float32. "auto" is bfloat16 on a GPU of compute capability 8.0 or higher,
            float16 on an older GPU, and float32 on a CPU. For tile networks "auto" is always
            float32.
        swa_start: Share of the steps after which the weights are averaged. For example, 0.8
            averages the last 20 % of the steps. 1 turns averaging off.
        early_stop: Number of evaluations without a better result before training stops. The model
            then has the weights of the best evaluation. 0 turns early stopping off, and the model
            has the last weights. A value of at least `steps` never stops early, and the model still
            has the best weights. The evaluations use graphs that are held out of the train split.
        eval_interval: Number of steps between these evaluations. It has no effect if `early_stop`
            is 0.
        start_from: Layout collection whose trained weights the network starts from, for example
            "layout:nlp:random". They are of the same model and seed, trained in the same run. ""
            starts from random weights.
    """

    steps: Positive = 300
    learning_rate: PositiveFloat = 2e-3
    warmup_steps: Count = 20
    weight_decay: Weight = 1e-4
    clip_norm: PositiveFloat = 1.0
    checkpoint_every: Positive = 100
    log_every: Positive = 20
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    swa_start: Annotated[float, Field(ge=0, le=1)] = 1.0
    early_stop: Count = 0
    eval_interval: Positive = 100
    start_from: StartName = ""


def _exact_if_auto(training: TrainingConfig) -> TrainingConfig:
    # bfloat16 swaps close configs, and its casts take more time than it saves.
    exact = training.model_copy(update={"precision": "float32"})
    return exact if training.precision == "auto" else training


class LayoutGnnConfig(ModelConfig):
    """The keys that all layout networks share.

    Attributes:
        loss: Ranking loss that training minimizes. "pairwise_hinge" and "pairwise_logistic" compare
            pairs of configs. "list_mle" compares each config with all slower ones.
        graphs_per_step: Number of graphs in a training step. The gradient is the mean of the
            gradients of the graphs.
        configs_per_step: Number of configs of each graph in a training step, drawn at random.
        inference_tensor_mib: Limit in MiB for the largest tensor in ranking. Configs are ranked in
            chunks that respect the limit. The key changes speed and memory, but not the scores.
    """

    loss: LossName = "pairwise_hinge"
    graphs_per_step: StepGraphs = 1
    configs_per_step: StepConfigs = 64
    inference_tensor_mib: Positive = 12
    training: TrainingConfig = TrainingConfig()


class SageConfig(LayoutGnnConfig):
    """The keys that the layout networks for pruned and for whole graphs share.

    Attributes:
        hidden: Number of channels of a node in one config.
        blocks: Number of rounds of message passing.
        opcode_width: Number of channels of an opcode's embedding.
        layout_width: Number of channels for each of the 18 numbers of a node's layouts.
        channel_reduction: Factor by which channel attention narrows `hidden`. For example, 8
            narrows 64 channels to 8.
        cross_config: Use attention across the configs of a graph.
        fused: Use fused Triton kernels on a GPU. If false, the network uses plain PyTorch.
    """

    hidden: Width = 64
    blocks: Depth = 2
    opcode_width: Width = 16
    layout_width: Width = 4
    channel_reduction: Width = 8
    cross_config: bool = True
    fused: bool = True


class CrossConfigSageConfig(SageConfig):
    """The layout network for pruned graphs, in `models/layout/cross_config_sage.py`.

    Attributes:
        statistics: Read the statistics of each config in addition to the graph.
        pool_by_bytes: Also sum the nodes weighted by the bytes of their outputs. The cost of a
            layout grows with its tensor, but a plain mean counts all nodes equally.
        dropout: Share of the channels of each node that a training step sets to 0, for example 0.2.
            All configs of the step lose the same channels.
        step_tensor_mib: Limit in MiB for one tensor of a training step, counted as nodes after
            pruning x configs x `hidden` x 2 bytes on every device. For example, with 512 and 256
            channels a graph of 14,966 nodes takes 64 configs. A larger graph takes fewer configs
            per step: the largest multiple of 16 that respects the limit, but at least 16. 0 sets no
            limit.
        norm: Axis of the norm in front of each block. "channels" normalises each node in each
            config. "nodes" normalises each channel over the nodes of a config, as the competition's
            winner does, without fused kernels for this part.
    """

    norm: Literal["channels", "nodes"] = "channels"
    statistics: bool = False
    pool_by_bytes: bool = False
    dropout: Share = 0.0
    step_tensor_mib: Count = 0


# A graph above the limit of a step takes a multiple of this number of configs.
CONFIG_GROUP = 16


def step_configs(config: LayoutGnnConfig, n_nodes: float) -> int:
    """Return the number of configs that a training step takes of a graph.

    Args:
        config: Config of the network. `cross_config_sage` limits the tensors of large graphs.
    """
    if not (isinstance(config, CrossConfigSageConfig) and config.step_tensor_mib):
        return config.configs_per_step
    config_bytes = 2 * max(1, n_nodes) * config.hidden
    n_groups = int((config.step_tensor_mib << 20) / config_bytes) // CONFIG_GROUP
    return min(config.configs_per_step, CONFIG_GROUP * max(1, n_groups))


class SegmentSageConfig(SageConfig):
    """The layout network for whole graphs, trained by segments, in `models/segments/network.py`.

    Attributes:
        segment_nodes: Largest number of nodes in a segment.
        live_segments: Number of segments of each graph that a step trains. The others have stored
            embeddings from earlier steps, so a step is faster but its gradient is not exact. 0
            trains all segments one after the other, with the gradient of the whole graph.
        table_configs: Number of configs of each graph that are used in training and stored, if
            `live_segments` is not 0. They form fixed groups of at least `configs_per_step`.
    """

    segment_nodes: Positive = 1000
    live_segments: Count = 0
    table_configs: StepConfigs = 128


class TgraphConfig(LayoutGnnConfig):
    """The layout model of the competition's winners, in `models/layout/tgraph.py`.

    Attributes:
        hidden: Number of channels of a node in one config.
        blocks: Number of residual blocks after the two linear layers.
        dropout: Share of the activations that a training step sets to 0.
        cross_config: Use attention across the configs of a batch.
        inference_configs: Largest number of configs in a ranking batch. The scores depend on it.
            This model does not read `inference_tensor_mib`.
        permutations: Number of random divisions into batches whose scores are averaged.
    """

    hidden: Annotated[Width, Field(multiple_of=2)] = 256
    blocks: Depth = 2
    dropout: Share = 0.2
    cross_config: bool = True
    inference_configs: Positive = 128
    permutations: Positive = 10


class BaselineGcnConfig(LayoutGnnConfig):
    """The layout baseline of the dataset's authors, in `models/layout/gcn.py`.

    Attributes:
        hidden: Number of channels of a node in one config.
        layers: Number of graph convolutions.
    """

    hidden: Width = 32
    layers: Depth = 2
    loss: LossName = "list_mle"
    graphs_per_step: StepGraphs = 8
    configs_per_step: StepConfigs = 16


class TileGnnConfig(ModelConfig):
    """The keys that all tile networks share.

    Attributes:
        loss: Ranking loss that training minimizes. "best_of_five" is made for the tile score. The
            other losses are those of the layout networks.
        statistics: Statistics that the network reads of each config: "plain" or "all". See
            docs/reference/statistics.md.
        relative_configs: Also read the difference between a config and the mean config of its
            kernel.
        kernels_per_step: Number of kernels in a training step.
        configs_per_kernel: Number of configs of each kernel in a training step.
        opcode_width: Number of channels of an opcode's embedding.
    """

    loss: TileLossName = "list_mle"
    statistics: StatisticsName = "plain"
    relative_configs: bool = False
    kernels_per_step: StepGraphs = 16
    configs_per_kernel: StepConfigs = 64
    opcode_width: Width = 16
    training: Annotated[TrainingConfig, AfterValidator(_exact_if_auto)] = TrainingConfig()


class LateFusionSageConfig(TileGnnConfig):
    """The tile network that joins configs after pooling, in `models/tile/late_fusion_sage.py`.

    Attributes:
        hidden: Number of channels of a node, and of a config.
        blocks: Number of rounds of message passing, and number of blocks over configs after
            pooling.
        cross_config: Use attention across the configs of a kernel.
    """

    hidden: Width = 64
    blocks: Depth = 2
    cross_config: bool = True


class EarlyFusionSageConfig(TileGnnConfig):
    """The tile baseline of the dataset's authors, in `models/tile/early_fusion_sage.py`.

    Attributes:
        hidden: Number of channels of a node in one config.
        layers: Number of rounds of message passing.
        inference_tensor_mib: Limit in MiB for the largest tensor in ranking. Configs are ranked in
            chunks that respect the limit.
    """

    hidden: Width = 64
    layers: Depth = 3
    opcode_width: Width = 64
    inference_tensor_mib: Positive = 12
