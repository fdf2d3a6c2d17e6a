"""Small HLO modules and tuning data, built message by message."""

from typing import Any

from data.hlo.descriptor import message_class

F32, S32, PRED, TUPLE, BF16, F8 = 11, 4, 1, 13, 16, 20
FINGERPRINT = (1 << 64) - 0x1234  # -1234 as signed hexadecimal


class ModuleBuilder:
    """Adds instructions to one module; ids are sparse, so that they are no node positions."""

    def __init__(self, name: str = "small") -> None:
        self.module = message_class("HloModuleProto")(name=name, entry_computation_name="main")
        self._next_id = 7

    def computation(self, name: str) -> Any:
        """Begin a computation; its root is the last instruction added."""
        self._next_id += 3
        return self.module.computations.add(name=name, id=self._next_id)

    def add(
        self,
        opcode: str,
        *operands: Any,
        shape: tuple[int, ...] = (),
        order: tuple[int, ...] | None = None,
        element_type: int = F32,
        calls: tuple[Any, ...] = (),
        **fields: Any,
    ) -> Any:
        """Add an instruction to the last computation; the layout is row-major by default."""
        self._next_id += 2
        computation = self.module.computations[-1]
        instruction = computation.instructions.add(
            name=f"{opcode}.{self._next_id}",
            opcode=opcode,
            id=self._next_id,
            operand_ids=[operand.id for operand in operands],
            called_computation_ids=[called.id for called in calls],
            **fields,
        )
        instruction.shape.element_type = element_type
        instruction.shape.dimensions.extend(shape)
        minor_to_major = range(len(shape))[::-1] if order is None else order
        instruction.shape.layout.minor_to_major.extend(minor_to_major)
        computation.root_id = instruction.id
        self.module.entry_computation_id = computation.id
        return instruction


def small_module(*, deepest: int = 7) -> Any:
    """Return a module of four computations that uses every field the features read.

    Args:
        deepest: the highest rank of a tensor; the format has room for 6.
    """
    build = ModuleBuilder()
    region = build.computation("region_add")
    left = build.add("parameter")
    build.add("add", left, build.add("parameter", parameter_number=1))
    body = build.computation("while_body.1")
    state = build.add("parameter", element_type=TUPLE)
    state.shape.tuple_shapes.add(element_type=F32)
    state.shape.tuple_shapes.add(element_type=S32)
    build.add("tuple", build.add("get-tuple-element", state), element_type=TUPLE)
    condition = build.computation("region_cond")
    build.add("compare", build.add("parameter", element_type=TUPLE), element_type=PRED)
    build.computation("main")
    image = build.add("parameter", shape=(4, 8, 9, 3), order=(3, 0, 2, 1), element_type=BF16)
    kernel = build.add("parameter", shape=(3, 3, 3, 16), parameter_number=1)
    side = {"stride": 2, "padding_low": -1, "window_dilation": 1, "base_dilation": 3}
    sides = [side | {"size": n, "padding_high": n, "window_reversal": n == 5} for n in (3, 5)]
    numbers = dict.fromkeys(("input", "output"), (1, 2)) | {"kernel": (0, 1)}
    features = {"input": 3, "kernel_input": 2, "kernel_output": 3, "output": 3}
    convolved = build.add(
        "convolution",
        image,
        kernel,
        shape=(4, 8, 9, 16),
        feature_group_count=1,
        batch_group_count=2,
        window={"dimensions": sides},
        convolution_dimension_numbers={
            **{f"{tensor}_spatial_dimensions": given for tensor, given in numbers.items()},
            **{f"{tensor}_feature_dimension": given for tensor, given in features.items()},
        },
    )
    _add_slices(build, convolved)
    total = build.add("reduce", convolved, convolved, shape=(16,), calls=(region,))
    total.dimensions.extend([0, 1, 2])
    loop = build.add("while", total, element_type=TUPLE, calls=(body, condition))
    odd = build.add("erf", total, shape=(16,), element_type=F8)
    odd.shape.layout.element_size_in_bits = 4
    deep = build.add("broadcast", odd, shape=(*[1] * (deepest - 1), 16), dimensions=[5])
    build.add("tuple", loop, deep, element_type=TUPLE)
    return build.module


def _add_slices(build: ModuleBuilder, source: Any) -> None:
    cut = build.add("slice", source, shape=(4, 2, 9, 8))
    for start, limit, stride in ((0, 4, 1), (1, 7, 3), (0, 9, 1), (8, 16, 1)):
        cut.slice_dimensions.add(start=start, limit=limit, stride=stride)
    build.add("dynamic-slice", source, shape=(1, 8, 9, 16), dynamic_slice_sizes=[1, 8, 9, 16])
    grown = build.add("pad", cut, shape=(4, 5, 9, 8))
    for low, high in ((0, 0), (1, 2), (0, 0), (-3, 3)):
        grown.padding_config.dimensions.add(edge_padding_low=low, edge_padding_high=high)
    build.add("sort", grown, shape=(4, 5, 9, 8), is_stable=True)


def layout_tuning() -> Any:
    """Return a ModuleTuningData of 20 nodes: four runs, one of them failed."""
    entry = message_class("ModuleTuningData")(fingerprint=FINGERPRINT)
    entry.module.CopyFrom(small_module(deepest=6))
    entry.config_index_to_node.extend([10, 12])  # the convolution and the dynamic slice
    for number, order in enumerate([(3, 2, 1, 0), (0, 1, 2, 3), (3, 0, 2, 1), (1, 2, 3, 0)]):
        run = entry.runs.add(error=number == 2, is_default=number == 0)
        nodes = run.module_config.layout_config.nodes
        for _ in entry.config_index_to_node:
            node = nodes.add()
            node.tensors.add(dims=order)
            node.tensors.add()
            node.tensors.add(dims=order[:2])
        run.profile.compute_time_ns = 3_000_000_000 + number
    return entry


def tile_tuning() -> Any:
    """Return a TuningData of two kernels: 3 and 2 good runs, one failed, one without runtime."""
    data = message_class("TuningData")()
    for fingerprint, runtimes in ((FINGERPRINT, (50, 1, 40, 60)), (0xABC, (7, 9))):
        build = ModuleBuilder(name=f"fusion.{len(data.modules)}")
        build.computation("main")
        build.add("copy", build.add("parameter", shape=(8, 4)), shape=(8, 4), order=(0, 1))
        entry = data.modules.add(fingerprint=fingerprint)
        entry.module.CopyFrom(build.module)
        for number, runtime in enumerate(runtimes):
            run = entry.runs.add(is_default=number == 0)
            run.op_config.tile_size_config.output_bounds.extend([number + 1, 4])
            run.profile.compute_time_ns = runtime
    failed = data.modules[1].runs.add(error=True)
    failed.op_config.tile_size_config.output_bounds.append(1)
    return data
