"""Tensors on a GPU that is none, and what an operation on them reads, writes and refuses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

FAKE_GPU = torch.device("cuda", 0)
META, CPU = torch.device("meta"), torch.device("cpu")
SPARSE = (torch.sparse_csr, torch.sparse_csc)
# Operations that launch nothing, beside views.
ALLOCATIONS = {
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"),
    *("_unsafe_view", "_reshape_alias", "lift_fresh", "is_same_size"),
    *("sparse_compressed_tensor", "_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe"),
}
WRITE_ONLY = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"}
GATHERS = {"embedding", "index", "index_select", "gather"}
# Which argument is what is written to some rows, and whether these are read before.
SCATTERS = {
    "index_add_": (3, True),
    "index_copy_": (3, False),
    "index_put_": (2, True),
    "_index_put_impl_": (2, True),
    "scatter_": (3, False),
    "scatter_add_": (3, True),
    "scatter_reduce_": (3, True),
}
# Which argument is the left one, of those that are multiplied.
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "_sparse_csr_mm": 0}
SHAPED_BY_VALUES = {"nonzero", "masked_select", "unique_dim", "_unique2", "equal"}


class FakeGpuTensor(Tensor):
    """A tensor on the device that is none; `held` is on the CPU where it has values, else meta."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "FakeGpuTensor":
        place: dict[str, Any] = {}
        if inner.layout == torch.strided:
            place = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=META, **place
        )
        made.held = inner
        return made

    # A CUDA device to Python; torch's engine, in a build without CUDA, would not take one.
    device = property(lambda _: FAKE_GPU)
    is_cuda = property(lambda _: True)
    is_meta = property(lambda _: False)
    layout = property(lambda tensor: tensor.held.layout)

    def numpy(self, **_: object) -> Any:
        """Refuse, as CUDA does."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any, kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{function}: used after the device that is none is gone")


@dataclass(frozen=True)
class Call:
    """An operation that reached the dispatcher, with all that it is given."""

    function: Any
    args: Sequence[Any]
    given: dict[str, Any]

    @cached_property
    def name(self) -> str:
        return str(self.function._schema.name.split("::")[1])

    @cached_property
    def leaves(self) -> list[Any]:
        return tree_leaves((self.args, self.given))

    @cached_property
    def inputs(self) -> list[Tensor]:
        """What is held of all tensors on the device."""
        return [leaf.held for leaf in self.leaves if is_fake(leaf)]

    @cached_property
    def others(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor) and not is_fake(leaf)]

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor] | None:
        """The tensors that are multiplied, in a product of matrices."""
        first = PRODUCTS.get(self.name)
        return None if first is None else (held_of(self.args[first]), held_of(self.args[first + 1]))

    def argument(self, place: int) -> Any:
        name, is_placed = self.function._schema.arguments[place].name, place < len(self.args)
        return self.args[place] if is_placed else self.given.get(name)

    @cached_property
    def writes(self) -> list[int]:
        """The places of arguments that are written to."""
        aliases = enumerate(argument.alias_info for argument in self.function._schema.arguments)
        return [place for place, alias in aliases if alias and alias.is_write]

    def on(self, device: torch.device) -> Any:
        """Compute on the CPU, with 0 for what has no values, or on meta."""
        moved = _with_values if device == CPU else _on_meta
        given = tree_map(moved, self.given)
        if "device" in given:
            given["device"] = device
        return self.function(*tree_map(moved, self.args), **given)

    def key(self) -> tuple[Any, ...]:
        """Return all that the shape of the result depends on."""
        facts = (
            (*leaf.shape, *leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf
            for leaf in self.leaves
        )
        return (self.function, tuple(self.given), len(self.args), *facts)


def is_fake(value: Any) -> bool:
    return isinstance(value, FakeGpuTensor)


def held_of(value: Any) -> Any:
    return value.held if isinstance(value, FakeGpuTensor) else value


def _with_values(value: Any) -> Any:
    value = held_of(value)
    is_unknown = isinstance(value, Tensor) and value.is_meta
    return torch.zeros(value.shape, dtype=value.dtype) if is_unknown else value


def _on_meta(value: Any) -> Any:
    value = held_of(value)
    return value.to(META) if isinstance(value, Tensor) and not value.is_meta else value


def check(call: Call) -> None:
    """Refuse what CUDA would; a number of the host may stand beside tensors of the device."""
    mixed = [tuple(tensor.shape) for tensor in call.others if tensor.ndim > 0]
    if mixed and call.inputs:
        raise RuntimeError(f"{call.function}: tensors of {mixed} are on the CPU, others are not")
    types = {factor.dtype for factor in call.factors or ()}
    if len(types) > 1 or not all(kind.is_floating_point for kind in types):
        raise RuntimeError(f"{call.function}: not on CUDA for {sorted(map(str, types))}")


def sparse_result(call: Call) -> Any:
    if call.factors is None:
        return call.on(CPU)
    if "addmm" in call.name:
        out = call.inputs[0]
        return out if call.writes else torch.empty_like(out)
    matrix, dense = call.factors
    return torch.empty(matrix.shape[0], dense.shape[1], dtype=dense.dtype, device=META)


def nbytes(tensor: Tensor) -> int:
    """Return the bytes of what a tensor covers of its storage, broadcast dimensions once."""
    if tensor.layout in SPARSE:
        values = tensor.values()
        return values.nbytes + (values.numel() + tensor.shape[0]) * 4
    spans = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in spans if stride != 0) * tensor.element_size()


def moved_bytes(call: Call, results: int) -> int:
    """Return what a kernel reads and writes; `results` are the bytes of what it returns."""
    name, args = call.name, call.args
    if name in GATHERS:
        return 2 * results + sum(map(nbytes, call.inputs[1:]))
    if name in SCATTERS:
        place, is_read = SCATTERS[name]
        rows = nbytes(args[place].held) if is_fake(args[place]) else results
        where = [leaf.held for leaf in tree_leaves(args[1:place]) if is_fake(leaf)]
        return rows * (2 + is_read) + sum(map(nbytes, where))
    if name == "index_fill_":
        table, index = call.inputs[:2]
        return index.nbytes + nbytes(table) // max(1, len(table)) * len(index)
    if name.startswith("_embedding_bag"):
        table, index = call.inputs[:2]
        return results + index.nbytes + index.numel() * nbytes(table[:1])
    seen, total = dict[tuple[int, int], int](), 0
    for place, argument in enumerate(call.function._schema.arguments):
        for leaf in tree_leaves(call.argument(place)):
            if not is_fake(leaf):
                continue
            n_bytes = nbytes(leaf.held)
            if place in call.writes:
                total += n_bytes if name in WRITE_ONLY or argument.is_out else 2 * n_bytes
            else:  # the same one twice is read once
                key = storage_of(leaf.held), leaf.held.storage_offset()
                seen[key] = max(seen.get(key, 0), n_bytes)
    return total + sum(seen.values()) + (0 if call.writes else results)


def storage_of(tensor: Tensor) -> int:
    strided = tensor.values() if tensor.layout in SPARSE else tensor
    return int(strided.untyped_storage()._cdata)
