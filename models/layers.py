"""Layers of the GNNs. Tensors are node-major, (n, c, h): nodes, configs, channels.

Node-major tensors make the aggregation over neighbours one product of a sparse (n, n) matrix with
a dense (n, c·h) one.
"""

import math

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex


class Neighbours:
    """A graph's edges, ready for means over what a node reads and over what reads it.

    Args:
        edge_index: (e, 2) int64 on the CPU; a row [u, v] means that u consumes v.
        n_nodes: n.
    """

    def __init__(self, edge_index: Tensor, n_nodes: int) -> None:
        consumer, producer = edge_index[:, 0], edge_index[:, 1]
        self.operands = _MeanOver(consumer, producer, n_nodes)
        self.users = _MeanOver(producer, consumer, n_nodes)
        # Each of the two holds rows and columns, the same transposed, and the order between them.
        self.nbytes = 2 * 5 * edge_index[:, 0].nbytes


class _MeanOver:
    """The mean over each row's neighbours as a sparse product; 0 where there are none."""

    def __init__(self, row: Tensor, column: Tensor, n_nodes: int) -> None:
        edges = EdgeIndex(torch.stack([row, column]), sparse_size=(n_nodes, n_nodes))
        self._edges = edges.sort_by("row").values.validate().fill_cache_()
        degree = torch.bincount(row, minlength=n_nodes).clamp(min=1)
        self._inverse_degree = (1.0 / degree)[:, None, None]

    def __call__(self, x: Tensor) -> Tensor:
        """Map (n, c, h) to the means (n, c, h)."""
        summed = self._edges.matmul(x.flatten(1))
        return summed.view_as(x) * self._inverse_degree


class ChannelAttention(nn.Module):
    """Gate each channel by what the others say: x · sigmoid(W2 relu(W1 x)).

    Squeeze-and-excitation (Hu et al., 2018) as the competition's winners used it on GNN layers.

    Args:
        width: h.
        reduction: the inner width is h / reduction.
    """

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        inner = max(1, width // reduction)
        self.gate = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, h) to (…, h)."""
        return x * self.gate(x)


class CrossConfigAttention(nn.Module):
    """Let a config see the others: join x with x · softmax over configs of x / T, T learned.

    From the competition's winning solution, with one change: the softmax is multiplied by the
    number of configs, so weights average 1 and 64 configs in training mean the same as 1,000 in
    ranking. What must be known of the other configs is one number per node and channel,
    log mean exp(x / T): `normaliser`. Given from outside, it makes scores independent of how
    configs are cut into chunks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def logits(self, x: Tensor) -> Tensor:
        """Return x / T, in the shape of x."""
        return x * torch.exp(-self.log_temperature)

    def forward(self, x: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Map (n, c, h) to (n, c, 2h).

        Args:
            x: (n, c, h).
            normaliser: (n, 1, h) log mean exp(x / T) over all configs; from x itself if None.
        """
        logits = self.logits(x)
        if normaliser is None:
            normaliser = log_mean_exp(logits, dim=1)
        return torch.cat([x, x * torch.exp(logits - normaliser)], dim=-1)


def log_mean_exp(x: Tensor, *, dim: int) -> Tensor:
    """Return log(mean(exp(x))) along `dim`, which stays as an axis of length 1."""
    return torch.logsumexp(x, dim=dim, keepdim=True) - math.log(x.shape[dim])


class SageBlock(nn.Module):
    """One residual round of message passing with attention over channels and configs.

    h = norm(x); y = gelu(W h + W' mean over operands of h + W'' mean over users of h);
    x + P [y, cross-config attention of y], with y gated by channel attention. The mean
    aggregation is GraphSAGE's (Hamilton et al., 2017), with edge directions kept apart. The norm
    is over channels, per node and config, so configs stay independent but for the attention.

    Args:
        width: h.
        channel_reduction: see ChannelAttention.
        cross_config: whether configs see each other.
    """

    def __init__(self, width: int, *, channel_reduction: int, cross_config: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, width)
        self.operands = nn.Linear(width, width, bias=False)
        self.users = nn.Linear(width, width, bias=False)
        self.channels = ChannelAttention(width, channel_reduction)
        self.configs = CrossConfigAttention() if cross_config else None
        self.project = nn.Linear(2 * width if cross_config else width, width)

    def messages(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        """Map (n, c, h) to (n, c, h): all that comes before configs see each other."""
        h = self.norm(x)
        y = self.own(h) + self.operands(neighbours.operands(h)) + self.users(neighbours.users(h))
        return self.channels(nn.functional.gelu(y))

    def forward(
        self, x: Tensor, neighbours: Neighbours, normaliser: Tensor | None = None
    ) -> Tensor:
        """Map (n, c, h) to (n, c, h); `normaliser` as in CrossConfigAttention."""
        y = self.messages(x, neighbours)
        if self.configs is not None:
            y = self.configs(y, normaliser)
        return x + self.project(y)
