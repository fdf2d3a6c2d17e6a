"""The competition's winning layout model ("TGraph") in plain PyTorch, as a reference.

Equations, widths and the way of scoring follow the winners' write-up (Kaggle discussion 456343),
their repository (github.com/thanhhau097/google_fast_or_slow, model.py) and their paper
(arXiv:2405.16623). The code is ours. Tensors are (c, n, f): every config has all features of every
node, and messages pass edge by edge.

There are five differences. Equal configs have their mean runtime, and the winners kept the first
one. Our scaler leaves flags and dimension numbers unchanged and clips at ±10. The loss is the
mean over ordered pairs, and theirs is the mean over all c² pairs, about half as large. Tensors are
float32, and theirs have 16 bits. The last weights are kept, and theirs are the best on the
validation split. The winners' padding of node features is `features.padding = "minus_one"`.
"""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from data.graphs.graph import N_LAYOUT_VALUES
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.graphs.packing import N_SYMBOLS, VALUES_PER_TENSOR
from models.config.networks import LayoutGnnConfig, TgraphConfig
from models.layout.cross_config_sage import ChannelAttention
from models.layout.inputs import LayoutInputs
from models.layout.network import N_OPCODES, LayoutNetwork, Positions

OPCODE_WIDTH = 16
LAYOUT_WIDTH = 4
CHANNEL_REDUCTION = 8
FIRST_TEMPERATURE = 0.5
NORM_EPSILON = 1e-5
# Symbol of each of the 18 settings of a node that is not configurable.
NOT_CONFIGURABLE = N_SYMBOLS
# The layout columns follow and are embedded.
N_NUMERIC = MINOR_TO_MAJOR.start


def instance_norm(x: Tensor) -> Tensor:
    """Normalise the channels of x, (c, n, h), to mean 0 and variance 1 over the nodes."""
    variance, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + NORM_EPSILON)


class BatchAttention(nn.Module):
    """Join x with x · softmax over the batch's configs of x / T, with a learned T.

    The weights sum to 1 over the configs of the batch, so scores depend on the batch.
    CrossConfigAttention of models/layout/attention.py does not have this property.
    """

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(FIRST_TEMPERATURE))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x * torch.softmax(x / self.temperature, dim=0)], dim=-1)


class Attentions(nn.Module):
    """Attention over channels, then over the batch's configs, up to the block's width h.

    The input is `inner` wide, which is h/2 with attention across configs.
    """

    def __init__(self, width: int, *, cross_config: bool) -> None:
        super().__init__()
        self.inner = width // 2 if cross_config else width
        self.channels = ChannelAttention(self.inner, CHANNEL_REDUCTION)
        self.configs = BatchAttention() if cross_config else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.configs(self.channels(x))


class LinearBlock(nn.Module):
    """gelu(attentions(norm(W x + b))), node by node."""

    def __init__(self, in_width: int, width: int, *, cross_config: bool) -> None:
        super().__init__()
        self.attend = Attentions(width, cross_config=cross_config)
        self.linear = nn.Linear(in_width, self.attend.inner)
        nn.init.xavier_normal_(self.linear.weight)
        nn.init.constant_(self.linear.bias, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.attend(instance_norm(self.linear(x))))


class ResidualBlock(nn.Module):
    """dropout(gelu(x + attentions(SAGEConv(norm(x))))).

    SAGEConv is W h + W' mean of h over a node's users + b. The winners' edges lead from the
    consumer to the producer, in that direction only.
    """

    def __init__(self, width: int, *, dropout: float, cross_config: bool) -> None:
        super().__init__()
        self.attend = Attentions(width, cross_config=cross_config)
        self.convolution = SAGEConv(width, self.attend.inner)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Apply the block.

        Args:
            x: (c, n, h) nodes.
            edges: (2, e) int64 edges from user to operand.

        Returns:
            (c, n, h).
        """
        messages = self.attend(self.convolution(instance_norm(x), edges))
        return self.dropout(nn.functional.gelu(x + messages))


class Tgraph(LayoutNetwork):
    """Score configs of one graph. A lower score means a faster config.

    Shapes: m kept nodes, e edges, c configs, k configurable nodes, h channels.
    """

    Config: ClassVar[type[LayoutGnnConfig]] = TgraphConfig
    config: TgraphConfig

    def __init__(self, config: TgraphConfig) -> None:
        super().__init__(config)
        self.opcode = nn.Embedding(N_OPCODES, OPCODE_WIDTH)
        # Node layouts and config layouts share the embedding of dimensions.
        self.layout = nn.Embedding(N_SYMBOLS + 1, LAYOUT_WIDTH)
        layout_width = LAYOUT_WIDTH * (N_LAYOUT_VALUES + VALUES_PER_TENSOR)
        width, cross_config = config.hidden, config.cross_config
        # There are two blocks, as in the winners' repository. The write-up shows one.
        self.first = LinearBlock(
            N_NUMERIC + OPCODE_WIDTH + layout_width, width, cross_config=cross_config
        )
        self.second = LinearBlock(width, width, cross_config=cross_config)
        self.blocks = nn.ModuleList(
            ResidualBlock(width, dropout=config.dropout, cross_config=cross_config)
            for _ in range(config.blocks)
        )
        self.head = nn.Linear(width, 1)

    def edges(self, inputs: LayoutInputs) -> Tensor:
        """Return the edges, (2, e), of the winners' pruning, which touch a configurable node."""
        edge_index = inputs.neighbours.edge_index
        configurable = edge_index.new_zeros(len(inputs.opcode), dtype=torch.bool)
        configurable[inputs.config_ids] = True
        return edge_index[configurable[edge_index].any(dim=1)].T

    def features(self, inputs: LayoutInputs, choices: Tensor) -> Tensor:
        """Join all features of each node in some configs.

        Args:
            inputs: Inputs of the graph.
            choices: (c, k) int64 rows of `inputs.vectors`.

        Returns:
            (c, m, f) float32.
        """
        n_configs, n_nodes = len(choices), len(inputs.opcode)
        symbols = choices.new_full((n_configs, n_nodes, N_LAYOUT_VALUES), NOT_CONFIGURABLE)
        symbols[:, inputs.config_ids] = inputs.vectors[choices]
        shared = [
            inputs.node_feat[:, :N_NUMERIC],
            self.layout(inputs.layout).flatten(1),
            self.opcode(inputs.opcode),
        ]
        nodes = torch.cat(shared, dim=1).expand(n_configs, -1, -1)
        return torch.cat([nodes, self.layout(symbols).flatten(2)], dim=2)

    def forward(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score a batch of configs that see each other."""
        edges = self.edges(inputs)
        x = self.features(inputs, inputs.choices(distinct))  # (c, m, f)
        x = self.second(self.first(x))  # (c, m, h)
        for block in self.blocks:
            x = block(x, edges)
        mean = x.mean(dim=1, dtype=torch.float32)
        # Rounded to half precision, the scores of close configs are equal.
        with torch.autocast(mean.device.type, enabled=False):
            scores: Tensor = self.head(mean).squeeze(-1)
        return scores

    @torch.inference_mode()
    def score_all(self, inputs: LayoutInputs) -> NDArray[np.float32]:
        """Score every config of a graph in the way of the winners.

        A score depends on the batch of its config. So the configs are shuffled `permutations` times
        and cut into equal batches of at most `inference_configs`. The scores are averaged. The
        shuffles start from the order of content hashes.
        """
        by_content = np.argsort(inputs.configs.content_hashes()[inputs.first])
        n_batches = -(-len(by_content) // self.config.inference_configs)
        # A shuffle has no effect if one batch contains all configs.
        n_shuffles = self.config.permutations if n_batches > 1 else 1
        total = np.zeros(len(by_content))
        for number in range(n_shuffles):
            order = np.random.default_rng(number).permutation(by_content)
            for batch in np.array_split(order, n_batches):
                total[batch] += self(inputs, batch).double().cpu().numpy()
        scores: NDArray[np.float32] = (total / n_shuffles).astype(np.float32)
        return scores[inputs.group]
