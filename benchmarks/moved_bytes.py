"""Count the bytes that PyTorch operations and our fused kernels read and write."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.layout import fused_ops


class MovedBytes(TorchDispatchMode):
    """Counter of the bytes that operations read and write, each tensor once per operation.

    Views and new tensors without values move nothing. A kernel of models/layout/fused_ops.py moves
    its tensor arguments.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in function._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and "empty" not in function._schema.name:
            self.add((args, kwargs, result))
        return result

    def add(self, values: Any) -> None:
        """Count the bytes of tensors.

        Args:
            values: Tensors in nested tuples, lists and dictionaries.
        """
        tensors = [t for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor)]
        distinct = {t.data_ptr(): t for t in tensors if t.layout == torch.strided}
        self.total += sum(t.nbytes for t in distinct.values())


@contextmanager
def moved_bytes() -> Iterator[MovedBytes]:
    """Count the bytes that the operations of a `with` block move."""
    launch, counter = fused_ops._launch, MovedBytes()

    def counted(name: str, grid: tuple[int, ...], *arguments: Any, **sizes: int) -> None:
        counter.add(arguments)
        launch(name, grid, *arguments, **sizes)

    fused_ops._launch = counted
    try:
        with counter:
            yield counter
    finally:
        fused_ops._launch = launch
