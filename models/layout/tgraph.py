"""The competition's winning layout model ("TGraph"), written plainly: a reference to beat.

Equations, widths and the way of scoring follow the winners' write-up (Kaggle discussion 456343),
their repository (github.com/thanhhau097/google_fast_or_slow, model.py) and their paper
(arXiv:2405.16623); the code is ours. Tensors are configs first, (c, n, f), every config carries
all features of every node, and messages go edge by edge.

What is not as theirs: equal configs are merged by their mean runtime, they kept the first; our
scaler leaves flags and dimension numbers as they are and clips at ±10; the loss is the mean over
ordered pairs, theirs over all c² pairs, about half as large; float32 where they had 16 bits; the
last weights are kept where they took the best on the validation split.
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
NOT_CONFIGURABLE = N_SYMBOLS  # a node without settings has a symbol of its own, 18 times
N_NUMERIC = MINOR_TO_MAJOR.start  # node features without the layout, which is embedded


def instance_norm(x: Tensor) -> Tensor:
    """Give each config's channels mean 0 and variance 1 over the nodes; (c, n, h) to (c, n, h)."""
    variance, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + NORM_EPSILON)


class BatchAttention(nn.Module):
    """Join x with x · softmax over the batch's configs of x / T, T learned.

    Unlike CrossConfigAttention of models.layout.cross_config_sage, the weights add up to 1 over the
    configs at hand: what comes out depends on how many they are, and on which.
    """

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(FIRST_TEMPERATURE))

    def forward(self, x: Tensor) -> Tensor:
        """Map (c, n, h) to (c, n, 2h)."""
        return torch.cat([x, x * torch.softmax(x / self.temperature, dim=0)], dim=-1)


class Attentions(nn.Module):
    """Attention over channels, then over the batch's configs, up to the block's width h.

    What goes in is `inner` wide: h/2 where configs see each other.
    """

    def __init__(self, width: int, *, cross_config: bool) -> None:
        super().__init__()
        self.inner = width // 2 if cross_config else width
        self.channels = ChannelAttention(self.inner, CHANNEL_REDUCTION)
        self.configs = BatchAttention() if cross_config else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (c, n, inner) to (c, n, h)."""
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
        """Map (c, n, f) to (c, n, h)."""
        return nn.functional.gelu(self.attend(instance_norm(self.linear(x))))


class ResidualBlock(nn.Module):
    """dropout(gelu(x + attentions(SAGEConv(norm(x))))).

    SAGEConv is W h + W' mean of h over a node's users + b: their edges run from the instruction
    that reads to the one that is read, in that direction only.
    """

    def __init__(self, width: int, *, dropout: float, cross_config: bool) -> None:
        super().__init__()
        self.attend = Attentions(width, cross_config=cross_config)
        self.convolution = SAGEConv(width, self.attend.inner)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Map (c, n, h) to (c, n, h); edges (2, e) int64 from user to operand."""
        messages = self.attend(self.convolution(instance_norm(x), edges))
        return self.dropout(nn.functional.gelu(x + messages))


class Tgraph(LayoutNetwork):
    """Score configs of one graph; lower = faster.

    Shapes: m kept nodes, e edges, c configs, k configurable nodes, h channels.
    """

    Config: ClassVar[type[LayoutGnnConfig]] = TgraphConfig
    config: TgraphConfig

    def __init__(self, config: TgraphConfig) -> None:
        super().__init__(config)
        self.opcode = nn.Embedding(N_OPCODES, OPCODE_WIDTH)
        # One table for "which dimension stands here", for node layouts and config layouts alike.
        self.layout = nn.Embedding(N_SYMBOLS + 1, LAYOUT_WIDTH)
        layout_width = LAYOUT_WIDTH * (N_LAYOUT_VALUES + VALUES_PER_TENSOR)
        width, cross_config = config.hidden, config.cross_config
        # Two, as in their repository; the write-up draws one.
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
        """Return what their pruning keeps: edges that touch a configurable node; (2, e) int64."""
        edge_index = inputs.neighbours.edge_index
        configurable = edge_index.new_zeros(len(inputs.opcode), dtype=torch.bool)
        configurable[inputs.config_ids] = True
        return edge_index[configurable[edge_index].any(dim=1)].T

    def features(self, inputs: LayoutInputs, choices: Tensor) -> Tensor:
        """Join all that is known of each node under the configs (c, k) int64; (c, m, f)."""
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
        """Score the configs at `distinct` (c,), which see each other alone; (c,) float32."""
        edges = self.edges(inputs)
        x = self.features(inputs, inputs.choices(distinct))  # (c, m, f)
        x = self.second(self.first(x))  # (c, m, h)
        for block in self.blocks:
            x = block(x, edges)
        return self.head(x.mean(dim=1)).squeeze(-1)

    @torch.inference_mode()
    def score_all(self, inputs: LayoutInputs) -> NDArray[np.float32]:
        """Score every config of a graph as the winners do; (c,) float32, lower = faster.

        A score depends on the batch that its config stands in, so the configs are shuffled
        `permutations` times, from the order of their content hashes, cut into equal batches of at
        most `inference_configs`, and averaged.
        """
        by_content = np.argsort(inputs.configs.content_hashes()[inputs.first])
        n_batches = -(-len(by_content) // self.config.inference_configs)
        # In a batch that holds all configs, a shuffle changes nothing.
        n_shuffles = self.config.permutations if n_batches > 1 else 1
        total = np.zeros(len(by_content))
        for number in range(n_shuffles):
            order = np.random.default_rng(number).permutation(by_content)
            for batch in np.array_split(order, n_batches):
                total[batch] += self(inputs, batch).double().cpu().numpy()
        scores: NDArray[np.float32] = (total / n_shuffles).astype(np.float32)
        return scores[inputs.group]
