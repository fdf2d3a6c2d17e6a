"""Count what code would ask of a GPU: kernels, bytes, operations and waits, with or without one.

`counted()` gives a device "cuda" that is none. Its tensors know their shapes, types and storages;
whole numbers, bools and float64 have values too, so that code may look at them, while all others
take no memory. The project's own code runs on it as on a GPU, backward pass and optimiser included,
and each operation that reaches torch's dispatcher is counted:

- a kernel for each but views and allocations, though some, such as a sort, take several; a custom
  operation, torch.library.custom_op, is one that reads what it is given and writes what it returns;
- as bytes what it reads and writes: each argument once, by the part of its storage that it covers,
  so that what is broadcast counts unbroadcast; of a table that is gathered from or scattered to the
  rows that are touched; of a sparse matrix its non-zeros, and the dense one once;
- two operations for each multiply-add of a matrix product, one for each element of all else;
- a wait for each value that the host asks for, each operation whose result's shape depends on
  values (a mask without values holds everywhere), and each upload from memory that is not pinned.

A mix of devices is refused as CUDA would, and so is a matrix product of whole numbers.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
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
HALF = (torch.float16, torch.bfloat16)
VALUED = 1 << 22  # elements of the largest tensor that has values
UNKNOWN = 1.0  # what the host reads where there is no value
# What torch.autocast computes in 16 bits, and what in float32, among the operations in use.
IN_HALF = {"linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "einsum"}
IN_WHOLE = {
    *("softmax", "log_softmax", "layer_norm", "logsumexp", "exp", "log", "pow", "rsqrt", "norm"),
    *("sum", "cumsum", "prod", "softplus", "reciprocal", "__pow__"),
}


@dataclass
class Counts:
    """What some work asked of the device; bytes and operations of one element or multiply-add.

    Attributes:
        flops, half_flops: of matrix products, all and with operands of 16 bits.
        elements, half_elements: of results of all other kernels.
        peak_bytes: the most that was held at once, what was there before included.
        waits: by their reason.
    """

    kernels: int = 0
    bytes: float = 0
    flops: float = 0
    half_flops: float = 0
    elements: float = 0
    half_elements: float = 0
    peak_bytes: float = 0
    waits: Counter[str] = field(default_factory=Counter)

    def since(self, before: "Counts") -> "Counts":
        """Return what came after `before`, a copy of these counts; peak_bytes is of all."""
        parts = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
        return Counts(**{**parts, "peak_bytes": self.peak_bytes})

    @property
    def host_syncs(self) -> int:
        return self.waits.total()

    @property
    def half_share(self) -> float:
        """Return the share of all operations that are done in half precision."""
        done = self.flops + self.elements
        return (self.half_flops + self.half_elements) / done if done else 0.0


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


def _without_values(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)


class _Counting(TorchDispatchMode):
    def __init__(self, counts: Counts, *, with_values: bool) -> None:
        super().__init__()
        self.counts, self.with_values = counts, with_values
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.held_bytes = 0
        self.pinned: list[StorageWeakRef] = []
        self.shapes: dict[tuple[Any, ...], Any] = {}

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        call = Call(function, args, dict(kwargs or {}))
        if not torch.is_inference_mode_enabled():
            return self._answer(call)
        with self:  # operations that consist of others come as a whole
            result = function.decompose(*args, **call.given)
        if result is not NotImplemented:
            return result
        # Tensors of this mode cannot stand for views of others.
        with torch.inference_mode(mode=False), torch.no_grad():
            return self._answer(call)

    def _answer(self, call: Call) -> Any:
        target, name, args = call.given.get("device"), call.name, call.args
        goes = bool(call.inputs) if target is None else torch.device(target).type != "cpu"
        with unset_fake_temporarily():
            if name in ("is_pinned", "_pin_memory") and not call.inputs:
                return self._pin(name, args[0])
            if name == "copy_" and call.inputs and call.others:
                return self._cross(args[0], args[1], args[2:] == (True,))
            if name == "_to_copy" and (call.others if goes else call.inputs):
                return self._moved(args[0], call.given)
            if not goes:
                return call.function(*tree_map(held_of, args), **tree_map(held_of, call.given))
            return self._compute(call)

    def _pin(self, name: str, tensor: Tensor) -> Any:
        if name == "is_pinned":
            key = storage_of(tensor)
            return any(ref.cdata == key and not ref.expired() for ref in self.pinned)
        copy = tensor.clone()
        self.pinned.append(StorageWeakRef(copy.untyped_storage()))
        return copy

    def _moved(self, source: Tensor, given: Mapping[str, Any]) -> Tensor:
        dtype = given.get("dtype") or source.dtype
        if is_fake(source):
            return self._cross(torch.empty(source.shape, dtype=dtype), source, False)
        self._upload(source, given.get("non_blocking"))
        there: Tensor = self._wrapped(source.to(dtype, copy=True))
        return there

    def _cross(self, into: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
        if not isinstance(source, FakeGpuTensor):
            self._upload(source, non_blocking)
            if not held_of(into).is_meta:
                held_of(into).copy_(source)
            return into
        self.counts.waits["to the host"] += 1
        return into.zero_() if source.held.is_meta else into.copy_(source.held)

    def _upload(self, source: Tensor, non_blocking: Any) -> None:
        if not non_blocking or not self._pin("is_pinned", source):
            self.counts.waits["from the host"] += 1

    def _compute(self, call: Call) -> Any:
        check(call)
        if call.name == "_local_scalar_dense":
            self.counts.waits["a value"] += 1
            held = call.inputs[0]
            return (UNKNOWN if held.is_floating_point() else 1) if held.is_meta else held.item()
        if call.name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            call = self._without_masks(call)
        if call.name in SHAPED_BY_VALUES:
            self.counts.waits[call.name] += 1
        result = self._result(call)
        self._count(call, result)
        if call.writes and isinstance(result, Tensor):
            return call.argument(call.writes[0])
        return tree_map(self._wrapped, result)

    def _without_masks(self, call: Call) -> Call:
        """Put positions in the place of masks, as torch does, at the price of a wait."""
        indices: list[Any] = []
        for index in call.args[1]:
            if not (is_fake(index) and index.dtype == torch.bool):
                indices.append(index)
                continue
            self.counts.waits["a mask"] += 1
            self.counts.kernels += 1
            mask = torch.ones(index.shape) if index.held.is_meta else index.held
            indices += [FakeGpuTensor(part) for part in mask.nonzero(as_tuple=True)]
        return Call(call.function, [call.args[0], indices, *call.args[2:]], call.given)

    def _result(self, call: Call) -> Any:
        are_known = not any(held.is_meta for held in call.inputs)
        if call.inputs and (are_known or ("sparse_c" in call.name and not call.factors)):
            return call.on(CPU)
        if any(held.layout in SPARSE for held in call.inputs):
            return sparse_result(call)
        if call.name.startswith("_fused_adam"):
            return None
        if call.name in SHAPED_BY_VALUES:
            raise RuntimeError(f"{call.function}: its values are not known")
        if not call.inputs:
            result = call.on(META)
            return call.on(CPU) if isinstance(result, Tensor) and self._keeps(result) else result
        if call.function.is_view or call.writes or call.name in ALLOCATIONS:
            return call.on(META)
        key = call.key()
        if key not in self.shapes:  # the same shapes come again and again
            self.shapes[key] = tree_map(_without_values, call.on(META))
        return tree_map(_without_values, self.shapes[key])

    def _wrapped(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, FakeGpuTensor):
            return value
        if not value.is_meta and value.layout == torch.strided and not self._keeps(value):
            value = _without_values(value)
        self._hold(value)
        return FakeGpuTensor(value)

    def _keeps(self, value: Tensor) -> bool:
        is_counted = not value.is_floating_point() or value.dtype == torch.float64
        return self.with_values or (is_counted and value.numel() <= VALUED)

    def _hold(self, held: Tensor) -> None:
        storage = (held.values() if held.layout in SPARSE else held).untyped_storage()
        ref = StorageWeakRef(storage)
        if ref.cdata not in self.live or self.live[ref.cdata][0].expired():
            self.live[ref.cdata] = ref, storage.nbytes()
            self.held_bytes += storage.nbytes()
        if self.held_bytes > self.counts.peak_bytes:  # as far as what has gone is still counted
            self.live = {key: kept for key, kept in self.live.items() if not kept[0].expired()}
            self.held_bytes = sum(size for _, size in self.live.values())
            self.counts.peak_bytes = max(self.counts.peak_bytes, self.held_bytes)

    def _count(self, call: Call, result: Any) -> None:
        if call.function.is_view or call.name in ALLOCATIONS:
            return
        counts, name = self.counts, call.name
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        counts.kernels += 1
        counts.bytes += moved_bytes(call, sum(map(nbytes, results)))
        if call.factors:
            left, right = call.factors
            flops = 2.0 * (left._nnz() if left.layout in SPARSE else left.numel()) * right.shape[-1]
            counts.flops += flops
            counts.half_flops += flops * (left.dtype in HALF)
            return
        every = [tensor for tensor in (*results, *call.inputs) if tensor.is_floating_point()]
        if not name.startswith(("_foreach", "_fused")):  # they do as much for each of a list
            every = sorted(every, key=lambda tensor: -tensor.numel())[:1]
        counts.elements += sum(tensor.numel() for tensor in every)
        counts.half_elements += sum(t.numel() for t in every if t.dtype in HALF)


class _Autocast(TorchFunctionMode):
    """torch.autocast for the device that is none: its tensors are not CUDA's to torch itself."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        is_cast = name in IN_HALF or name in IN_WHOLE
        if not is_cast or "out" in kwargs or not torch.is_autocast_enabled("cuda"):
            return func(*args, **kwargs)
        dtype = torch.get_autocast_dtype("cuda") if name in IN_HALF else torch.float32

        def cast(value: Any) -> Any:
            is_meant = is_fake(value) and value.dtype in (*HALF, torch.float32)
            return value.to(dtype) if is_meant else value

        return func(*tree_map(cast, args), **tree_map(cast, kwargs))


@contextmanager
def counted(
    capability: tuple[int, int] = (8, 0), memory_bytes: int = 80 << 30, *, with_values: bool = False
) -> Iterator[Counts]:
    """Count what is computed on FAKE_GPU while the block runs, in this thread.

    With values, all is computed too, on the CPU. Code that asks torch.cuda for a capability or for
    memory is told these. What is moved there is to be moved within the block, and by that name: a
    build without CUDA takes no plain "cuda".
    """
    counts = Counts()
    answers = {
        "get_device_capability": lambda *_: capability,
        "mem_get_info": lambda *_: (memory_bytes, memory_bytes),
        "is_bf16_supported": lambda *_: capability >= (8, 0),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        amp = torch.cuda.amp.common
        stack.enter_context(patch.object(amp, "amp_definitely_not_available", lambda: False))
        # AdamW and clipping take several tensors at once, of types and devices that they know.
        for module in (_foreach_utils, optimizer):
            types = [*module._foreach_supported_types, FakeGpuTensor]
            stack.enter_context(patch.object(module, "_foreach_supported_types", types))
        known = ["cuda", "meta"]
        name = "_get_foreach_kernels_supported_devices"
        stack.enter_context(patch.object(_foreach_utils, name, lambda: known))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(_Counting(counts, with_values=with_values))
        stack.enter_context(_Autocast())
        yield counts
