"""Attention across configs: the messages u of a node in c configs become [u, u · w].

The layer is from the competition's winning solution, with one change. The weights w = c · softmax
over configs of u / T are multiplied by the number of configs, so their mean is 1 for 64 configs in
training and for 1,000 in ranking. The temperature T is learned, and 1 / T is the sharpness.

The weights equal exp(u / T - normaliser) for the normaliser log mean over configs of exp(u / T),
which contains all that depends on the other configs. With a given normaliser, scores do not depend
on the division into chunks.

Shapes: n nodes, s nodes of a slice, c configs, h channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Pullback = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class CrossConfigAttention(nn.Module):
    """The attention with its temperature. SageBlock calls the faster `attend` instead."""

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def sharpness(self) -> Tensor:
        return torch.exp(-self.log_temperature)

    def forward(self, messages: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Apply the attention.

        Args:
            messages: (n, c, h) messages u.
            normaliser: (n, 1, h) normaliser of all configs, which has no gradient. None uses these
                configs.

        Returns:
            (n, c, 2h).
        """
        if normaliser is not None:
            context = weigh(messages, self.sharpness(), normaliser)
        else:
            logits = messages * self.sharpness()
            context = messages * torch.softmax(logits, dim=1) * messages.shape[1]
        return torch.cat([messages, context], dim=-1)


def attend(halves: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Pullback]:
    """Gate an aggregation, and weigh it by the other configs.

    The messages are u = inner · sigmoid(gate). The result is [u, u · w], or [u] if `sharpness` is
    None.

    Args:
        halves: (2, s, c, h), inner and gate.
        sharpness: (), 1 / temperature.

    Returns:
        (2, s, c, h) or (1, s, c, h), and a function from its gradient to the gradients of `halves`
        and `sharpness`. The function may overwrite the gradient.
    """
    if sharpness is None:
        return F.glu(halves, 0), lambda grad: (torch.ops.aten.glu_backward(grad, halves, 0), None)
    attention, n_configs = torch.empty_like(halves), halves.shape[2]
    messages, context = torch.ops.aten.glu.out(halves, 0, out=attention[:1])[0], attention[1]
    logits = messages * sharpness.to(messages.dtype)
    weights = torch.softmax(logits, dim=1)
    zero = torch.zeros((), dtype=halves.dtype, device=halves.device)
    torch.addcmul(zero, messages, weights, value=n_configs, out=context)

    def pullback(grad: Tensor) -> tuple[Tensor, Tensor]:
        of_messages, of_context = grad
        of_weights = torch.addcmul(zero, of_context, messages, value=n_configs)
        of_logits = torch.ops.aten._softmax_backward_data(of_weights, weights, 1, weights.dtype)
        of_messages.addcmul_(of_context, weights, value=n_configs)
        of_messages.addcmul_(of_logits, sharpness.to(grad.dtype))
        if logits.dtype == torch.float32:
            slope = torch.dot(of_logits.view(-1), logits.view(-1))
        else:
            # The sum of all products overflows half precision.
            slope = (of_logits * logits).sum(dtype=torch.float32)
        return torch.ops.aten.glu_backward(grad[:1], halves, 0), slope / sharpness

    return attention, pullback


def weigh(messages: Tensor, sharpness: Tensor, normaliser: Tensor) -> Tensor:
    """Return u · exp(u · sharpness - normaliser), without a gradient.

    Args:
        messages: (s, c, h) messages u.
        sharpness: (), 1 / temperature.
        normaliser: (s, 1, h) normaliser of all configs.

    Returns:
        (s, c, h).
    """
    logits = messages.float() * sharpness
    return logits.sub_(normaliser).exp_().mul_(messages).to(messages.dtype)


def log_sum_exp(messages: Tensor, sharpness: Tensor) -> Tensor:
    """Return the log of the sum over configs of exp(u · sharpness), without a gradient.

    Args:
        messages: (s, c, h) messages u.
        sharpness: (), 1 / temperature.

    Returns:
        (s, 1, h) float32.
    """
    logits = messages.float() * sharpness
    highest = logits.amax(dim=1, keepdim=True)
    return logits.sub_(highest).exp_().sum(dim=1, keepdim=True).log_().add_(highest)
