"""The layout network in plain PyTorch Geometric: the speed baseline, and a reference for tests.

`PlainLayoutModel` has the equations of models/layout/cross_config_sage.py without optimisation.
Configs are the first axis, (c, n, f), and each config has a copy of all node features. Messages are
gathered and scattered edge by edge. The attention is a softmax over the configs of the batch.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from data.graphs.graph import N_NODE_FEATURES
from data.graphs.packing import N_SYMBOLS, N_TENSORS, VALUES_PER_TENSOR
from models.config.networks import CrossConfigSageConfig, LayoutGnnConfig
from models.layout.cross_config_sage import ChannelAttention, CrossConfigSage
from models.layout.inputs import LayoutInputs
from models.layout.network import N_OPCODES, LayoutNetwork, Positions


class PlainBlock(nn.Module):
    """One residual round of message passing with attention over channels and configs."""

    def __init__(self, config: CrossConfigSageConfig) -> None:
        super().__init__()
        width, cross_config = config.hidden, config.cross_config
        self.norm = nn.LayerNorm(width)
        self.operands = SAGEConv(width, width)
        self.users = SAGEConv(width, width, root_weight=False, bias=False)
        self.channels = ChannelAttention(width, config.channel_reduction)
        self.log_temperature = nn.Parameter(torch.zeros(())) if cross_config else None
        self.project = nn.Linear(2 * width if cross_config else width, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return new node states.

        Args:
            x: Node states, (c, n, h).
            edge_index: Edges from operand to user, (2, e) int64.
        """
        h = self.norm(x)
        y = self.operands(h, edge_index) + self.users(h, edge_index.flip(0))
        y = self.channels(nn.functional.gelu(y))
        if self.log_temperature is not None:
            weights = torch.softmax(y / self.log_temperature.exp(), dim=0) * len(y)
            y = torch.cat([y, y * weights], dim=-1)
        return x + self.project(y)


class PlainLayoutModel(LayoutNetwork):
    """Network that scores the configs of one graph; lower = faster."""

    Config: ClassVar[type[LayoutGnnConfig]] = CrossConfigSageConfig

    def __init__(self, config: CrossConfigSageConfig) -> None:
        super().__init__(config)
        self.opcode = nn.Embedding(N_OPCODES, config.opcode_width)
        self.layout = nn.Embedding(N_SYMBOLS, config.layout_width)
        layout_width = VALUES_PER_TENSOR * config.layout_width
        # The last value is a flag of configurable nodes.
        self.settings_width = N_TENSORS * layout_width + 1
        node_width = N_NODE_FEATURES + config.opcode_width + layout_width
        self.embed = nn.Linear(node_width + self.settings_width, config.hidden)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Sequential(
            nn.Linear(3 * config.hidden, config.hidden),
            nn.GELU(),
            nn.Linear(config.hidden, 1, bias=False),
        )

    def features(self, inputs: LayoutInputs, symbols: Tensor) -> Tensor:
        """Join the features of nodes with the layouts of configs.

        Args:
            inputs: Graph with n nodes.
            symbols: Layouts of the k configurable nodes, (c, k, 18).

        Returns:
            Features, (c, n, f).
        """
        nodes = torch.cat(
            [inputs.node_feat, self.opcode(inputs.opcode), self.layout(inputs.layout).flatten(1)],
            dim=1,
        )
        layouts = self.layout(symbols).flatten(2)  # (c, k, 18·w)
        settings = layouts.new_zeros(len(symbols), len(nodes), self.settings_width)
        settings[:, inputs.config_ids] = nn.functional.pad(layouts, (0, 1), value=1.0)
        return torch.cat([nodes.expand(len(symbols), -1, -1), settings], dim=2)

    def forward(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score configs.

        Args:
            inputs: Graph with its configs.
            distinct: Positions of c distinct configs, (c,).

        Returns:
            Scores, (c,) float32, lower = faster.
        """
        edges = inputs.neighbours.edge_index.T.flip(0)  # (2, e) from operand to user
        x = self.embed(self.features(inputs, inputs.symbols(distinct)))
        for block in self.blocks:
            x = block(x, edges)
        x = self.norm(x)
        pools = [x.mean(dim=1), x.amax(dim=1), x[:, inputs.config_ids].mean(dim=1)]
        scores: Tensor = self.head(torch.cat(pools, dim=-1)).squeeze(-1)
        return scores


def plain_copy(model: CrossConfigSage) -> PlainLayoutModel:
    """Return a plain model with the weights of our model.

    Args:
        model: Our model. Its training data must have all opcodes.
    """
    assert model.known_opcode.all()
    plain = PlainLayoutModel(model.config)
    plain.load_state_dict(plain_names(dict(model.named_parameters())))
    return plain


def plain_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert tensors to the names and shapes of the plain model."""
    same_names = ("opcode", "layout", "norm", "head")
    plain = {name: value for name, value in weights.items() if name.split(".")[0] in same_names}
    plain["embed.weight"] = torch.cat(
        [
            weights["node.weight"],
            weights["tensor_roles.weight"],
            weights["tensor_roles.bias"][:, None],
        ],
        1,
    )
    plain["embed.bias"] = weights["node.bias"]
    new_names = {
        "own.weight": "operands.lin_r.weight",
        "own.bias": "operands.lin_l.bias",
        "operands.weight": "operands.lin_l.weight",
        "users.weight": "users.lin_l.weight",
        "configs.log_temperature": "log_temperature",
    }
    for name, value in weights.items():
        if name.startswith("blocks."):
            _, number, suffix = name.split(".", 2)
            plain[f"blocks.{number}.{new_names.get(suffix, suffix)}"] = value
    return plain
