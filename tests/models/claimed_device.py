"""A device that is none: tensors that say they lie on it, hold real values, and mix with no others.

A machine without a GPU cannot tell whether a tensor was forgotten on the CPU; here it can. Torch's
own FakeTensorMode would do, but it takes no gradients on "cuda" in a build without CUDA, and has no
values to go on with. So tensors claim "meta", the one other device that any build knows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from models.training import device
from models.training.dataset import LRUCache

CLAIMED = torch.device("meta")
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class Claimed(Tensor):
    """A tensor on the claimed device; its values lie in `inner`, on the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Claimed":
        place: dict[str, Any] = {}
        if inner.layout == torch.strided:
            place = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=CLAIMED, **place
        )
        made.inner = inner
        return made

    def numpy(self, **_: object) -> Any:
        """Refuse, as CUDA does."""
        raise TypeError("can't convert a tensor of the claimed device to numpy")

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        raise RuntimeError(f"{function}: used after the claimed device is gone")


class ClaimedDevice(TorchDispatchMode):
    """Computes on the CPU what is asked of the claimed device; refuses a mix of the two.

    As on CUDA, a CPU tensor without axes may stand beside others, and copies cross over. CUDA also
    takes indices from the CPU, by a copy that waits for the device: here that is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n_calls = 0

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if not torch.is_inference_mode_enabled():
            return self._call(function, args, given)
        with self:  # operations that consist of others come as a whole
            result = function.decompose(*args, **given)
        if result is not NotImplemented:
            return result
        # Tensors of this mode cannot stand for views of others.
        with torch.inference_mode(mode=False), torch.no_grad():
            return self._call(function, args, given)

    def _call(self, function: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        claimed = [tensor for tensor in tensors if isinstance(tensor, Claimed)]
        others = [t for t in tensors if not isinstance(t, Claimed) and t.ndim > 0]
        if claimed and others and function not in COPIES:
            shapes = [tuple(tensor.shape) for tensor in others]
            raise RuntimeError(f"{function}: tensors of {shapes} are on the CPU, others are not")
        goes, target = bool(claimed), given.get("device")
        if target is not None:
            goes = torch.device(target) == CLAIMED
            given["device"] = torch.device("cpu")
        result = function(*tree_map(_inner, args), **tree_map(_inner, given))
        self.n_calls += goes
        for place, argument in enumerate(function._schema.arguments):
            if argument.alias_info and argument.alias_info.is_write and isinstance(result, Tensor):
                return given[argument.name] if argument.kwarg_only else args[place]
        return tree_map(_claimed, result) if goes else result


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Claimed) else value


def _claimed(value: Any) -> Any:
    return Claimed(value) if type(value) is Tensor else value


@contextmanager
def claimed_device() -> Iterator[ClaimedDevice]:
    """Make the claimed device the GPU that `models.training.device` finds, while the block runs."""
    autocast = torch.autocast

    def same_on_cpu(device_type: str, **keys: Any) -> torch.autocast:
        return autocast("cpu" if device_type == CLAIMED.type else device_type, **keys)

    with pytest.MonkeyPatch.context() as patch, ClaimedDevice() as mode:
        patch.setattr(device, "GPU", CLAIMED)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch, "autocast", same_on_cpu)
        # The mode is this thread's: another one's tensors would not be claimed.
        patch.setattr(LRUCache, "prefetch", lambda cache, files: None)
        yield mode
