"""Read programs and their tuned configs from files, and write npz files (`featurize`).

A file does not name its format, so the content decides. This module reads protobufs, also as text
(data.hlo.protobuf_text). jaxlib parses all other formats (data.hlo.formats, data.hlo.parse).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from common.files import read_bytes
from common.progress import log, progress
from data.graphs.graph import N_LAYOUT_VALUES
from data.graphs.node_columns import RANK_MAX
from data.hlo import parse
from data.hlo.descriptor import message_class
from data.hlo.files import EXPECTED, choose, locate, unpack
from data.hlo.formats import lacks_main, split_modules
from data.hlo.graph import HloGraph, featurize_module, sequence_features
from data.hlo.jaxlib_parser import BYTECODE
from data.hlo.layouts import (
    ConfigurableNode,
    candidate_configs,
    check_layouts,
    configurable_nodes,
    nodes_at,
)
from data.hlo.protobuf_text import is_protobuf_text, serialized
from data.npz.archive import write_npz
from data.npz.graphs import KEYS_OF

TENSORS_MAX = N_LAYOUT_VALUES // RANK_MAX
TILE_BOUNDS = ("kernel_bounds", "output_bounds", "input_bounds")
# Runtimes up to this value are no measurements. A kernel that did not run reports 1 ns.
NO_RUNTIME_NS = {"layout": 0, "tile": 1}
CONFIG_KINDS = {"module_config": "layout", "op_config": "tile"}
ENDINGS = (".gz", ".pb", ".pbtxt", ".hlo", ".txt", ".mlir", ".mlirbc", ".bc", ".bin", ".jax_export")
# A text may have any number of modules, and each takes a process.
MAX_MODULES = 100
TEXT_FIELDS = "fields of the protobuf as text, for example literals"
_OPCODE = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class TunedConfigs:
    """The successful runs of one module."""

    kind: str  # "layout" or "tile"
    arrays: dict[str, NDArray[Any]]  # the config arrays of the dataset's files, by key
    n_failed: int  # runs left out: compile errors, and runs without a runtime
    run_numbers: NDArray[np.int64]  # (c,) position of each config's run in the file


def tuned_configs(entry: Any, n_nodes: int, source: str) -> TunedConfigs:
    """Convert the runs of a ModuleTuningData to the config arrays of its kind."""
    kinds = [CONFIG_KINDS[key] for run in entry.runs for key in CONFIG_KINDS if run.HasField(key)]
    if len(set(kinds)) != 1 or len(kinds) != len(entry.runs):
        raise PipelineError(
            f"{source}: {len(entry.runs)} runs, not all of layout or all of tile configs; "
            "expected one kind"
        )
    kind = kinds[0]
    has_runtime = [
        not run.error and run.profile.compute_time_ns > NO_RUNTIME_NS[kind] for run in entry.runs
    ]
    good = list(compress(entry.runs, has_runtime))
    if not good:
        raise PipelineError(
            f"{source}: none of {len(entry.runs)} runs succeeded; expected at least one"
        )
    runtime_ns = np.array([run.profile.compute_time_ns for run in good], dtype=np.int64)
    if kind == "layout":
        arrays = _layout_arrays(entry, good, n_nodes, source)
    else:
        arrays = _tile_arrays(good, runtime_ns, source)
    arrays["config_runtime"] = runtime_ns
    return TunedConfigs(kind, arrays, len(entry.runs) - len(good), np.flatnonzero(has_runtime))


def _layout_arrays(
    entry: Any, runs: Sequence[Any], n_nodes: int, source: str
) -> dict[str, NDArray[Any]]:
    ids = list(entry.config_index_to_node)
    if not ids or len(set(ids)) < len(ids) or max(ids) >= n_nodes:
        raise PipelineError(
            f"{source}: config_index_to_node names {len(ids)} nodes; expected at least one, "
            f"each once, of 0..{n_nodes - 1}"
        )
    layouts = [run.module_config.layout_config.nodes for run in runs]
    # Every run is checked before the array is allocated.
    for nodes in layouts:
        if len(nodes) != len(ids):
            raise PipelineError(
                f"{source}: a run gives layouts to {len(nodes)} nodes; expected {len(ids)}"
            )
    configs = np.full((len(runs), len(ids), TENSORS_MAX, RANK_MAX), -1, dtype=np.int64)
    for nodes, values in zip(layouts, configs, strict=True):
        for node, node_values in zip(nodes, values, strict=True):
            if len(node.tensors) > TENSORS_MAX:
                raise PipelineError(
                    f"{source}: a config lays out {len(node.tensors)} tensors of one node; "
                    f"expected at most {TENSORS_MAX}"
                )
            for tensor, tensor_values in zip(node.tensors, node_values, strict=False):
                order = tensor.dims[:RANK_MAX]
                tensor_values[: len(order)] = order
    if configs.min() < -1 or configs.max() >= RANK_MAX:
        raise PipelineError(
            f"{source}: a config holds dimension numbers {configs.min()}..{configs.max()}; "
            f"expected -1..{RANK_MAX - 1}"
        )
    return {
        "node_config_feat": configs.reshape(len(runs), len(ids), -1).astype(np.float32),
        "node_config_ids": np.array(ids, dtype=np.int64),
    }


def _tile_arrays(
    runs: Sequence[Any], runtime_ns: NDArray[np.int64], source: str
) -> dict[str, NDArray[Any]]:
    default = next((run for run in runs if run.is_default), None)
    if default is None:
        raise PipelineError(
            f"{source}: no run of the default config succeeded; expected one, to normalize by"
        )
    configs = [
        [value for field in TILE_BOUNDS for value in tile_bounds(getattr(tile, field))]
        for tile in (run.op_config.tile_size_config for run in runs)
    ]
    return {
        "config_feat": np.array(configs, dtype=np.int64).astype(np.float32),
        "config_runtime_normalizers": np.full_like(runtime_ns, default.profile.compute_time_ns),
    }


def tile_bounds(sizes: Sequence[int]) -> list[int]:
    """Return six sizes padded with 0, their sum and their product. All are 0 for an empty list."""
    return sequence_features(sizes, RANK_MAX) if sizes else [0] * (RANK_MAX + 2)


@dataclass(frozen=True)
class HloProgram:
    """One HLO module of a file, with the runs of its configs, if any."""

    name: str  # the file's stem, with the fingerprint of a kernel or the name of a module
    source: str  # name in messages: the file and, if it has several, the module or kernel
    graph: HloGraph
    module: Any  # the HloModuleProto message; not to be edited
    runs: tuple[Any, ...] = ()  # the ConfigProfile messages, in the order of the file
    configs: TunedConfigs | None = None  # the runs that succeeded; None where there are no configs
    left_out: str = ""  # parts of the file that the module lacks and no graph needs

    def nodes_at(self, positions: NDArray[np.int64]) -> list[ConfigurableNode]:
        return nodes_at(self.module, positions.tolist())

    def candidates(
        self, positions: NDArray[np.int64], n_configs: int, *, seed: int
    ) -> NDArray[np.int8]:
        """Draw configs, (c, k, 18), of nodes at positions, (k,), see `candidate_configs`."""
        return candidate_configs(self.nodes_at(positions), n_configs, seed=seed)

    def untuned_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of one config that leaves all layouts to the compiler."""
        nodes = configurable_nodes(self.module)
        if not nodes:
            raise PipelineError(
                f"{self.source}: the module has no convolution, dot or reshape with dimensions to "
                "order, so no layouts to rank; expected at least one"
            )
        check_layouts(nodes, self.source)
        return {
            "node_config_feat": np.full((1, len(nodes), N_LAYOUT_VALUES), -1, np.int8),
            "node_config_ids": np.array([node.position for node in nodes], np.int64),
            "config_runtime": np.zeros(1, np.int64),
        }


def read_programs(path: Path, batch: int | None = None) -> list[HloProgram]:
    """Read tuning data or HLO modules. The content decides the type of the file.

    Args:
        path: The file, or a folder that XLA dumped. `FILE#NAME` is one module of it. A folder needs
            a name if it has several modules.
        batch: The symbolic size of a `jax.export` artifact. None if it has none.

    Raises:
        UsageError: Not exactly one module has the name, or a batch size is of no use.
    """
    path, choice = locate(path)
    return parse_programs(path, read_bytes(path), choice, batch)


def parse_programs(
    path: Path, content: bytes, choice: str | None = None, batch: int | None = None
) -> list[HloProgram]:
    """Parse the content of a file as `read_programs` does."""
    content, stem = unpack(path, content), program_name(path)
    kind, message = ("", None) if batch is not None else _parse_protobuf(content, path)
    if kind:
        programs = _programs_of(message, kind, path)
        if is_protobuf_text(content):
            programs = [replace(program, left_out=TEXT_FIELDS) for program in programs]
        if choice is None:
            return programs
        names = [(p.name.removeprefix(f"{stem}_"), p.name, p.graph.name) for p in programs]
        return [programs[choose(path, names, choice)]]
    if lacks_main(content):
        content = parse.convert(content, BYTECODE, str(path))
    modules = split_modules(path, content, batch)
    is_only, programs = len(modules) == 1, []
    if choice is not None or len(modules) > MAX_MODULES:
        modules = [modules[choose(path, [(module.name,) for module in modules], choice)]]
    for module in modules:
        source = str(path) if is_only else f"{path}#{module.name}"
        message = message_class("HloModuleProto").FromString(parse.parse_module(module, source))
        name = stem if is_only else f"{stem}_{module.name}"
        program = _untuned_program(name, source, message)
        left_out = "constants, as `{...}`" * (b"({...})" in module.content)
        programs.append(replace(program, left_out=left_out))
    return programs


def _untuned_program(name: str, source: str, module: Any) -> HloProgram:
    graph = featurize_module(module, source=source)
    if graph.unknown:
        unknown = ", ".join(graph.unknown)
        log.info(f"note: {source}: the dataset of 2023 has no number for {unknown}")
    return HloProgram(name, source, graph, module)


def _programs_of(message: Any, kind: str, path: Path) -> list[HloProgram]:
    stem = program_name(path)
    if kind.startswith("Hlo"):
        return [_untuned_program(stem, str(path), message)]
    programs: dict[str, HloProgram] = {}
    for entry in message.modules if kind == "TuningData" else [message]:
        name, source = stem, str(path)
        if kind == "TuningData":
            number = entry.fingerprint  # unsigned: 2**64 - 1 is named "-1"
            name = f"{stem}_{number - (1 << 64) if number >= 1 << 63 else number:x}"
            source = f"{path}, {name}"
        if name in programs:
            raise PipelineError(f"{source}: a second kernel of this fingerprint; expected one")
        graph = featurize_module(entry.module, source=source)
        configs = tuned_configs(entry, graph.n_nodes, source)
        if configs.kind == "layout":
            check_layouts(nodes_at(entry.module, entry.config_index_to_node), source)
        programs[name] = HloProgram(name, source, graph, entry.module, tuple(entry.runs), configs)
    return list(programs.values())


def program_name(path: Path) -> str:
    """Return a file's name without the endings of formats, for example ".hlo.pb.gz"."""
    name = path.name
    while (ending := Path(name).suffix) in ENDINGS and name != ending:
        name = name.removesuffix(ending)
    return name


def _parse_protobuf(content: bytes, path: Path) -> tuple[str, Any]:
    """Return the type and the message of a protobuf. HLO is its module. The type may be ""."""
    if is_text := is_protobuf_text(content):
        content = serialized(content, path)
    for name in ("TuningData", "ModuleTuningData", "HloProto", "HloModuleProto", "HloSnapshot"):
        # Tuning data comes first, because that of one module can be parsed as an HloProto.
        try:
            message = message_class(name).FromString(content)
        except DecodeError:
            continue
        if name == "HloSnapshot":
            message = message.hlo
        if name in ("HloProto", "HloSnapshot"):
            message = message.hlo_module
        entries = message.modules if name == "TuningData" else [message]
        fits = _is_module if name.startswith("Hlo") else _is_tuned
        if entries and all(map(fits, entries)):
            return name, message
    if is_text:
        raise PipelineError(f"{path}: a protobuf as text without instructions; expected {EXPECTED}")
    return "", None


def _is_tuned(entry: Any) -> bool:
    return bool(entry.fingerprint or entry.config_index_to_node) and _is_module(entry.module)


def _is_module(module: Any) -> bool:
    return bool(module.computations) and all(
        computation.instructions
        and all(_OPCODE.fullmatch(instruction.opcode) for instruction in computation.instructions)
        for computation in module.computations
    )


class FeaturizedGraph(NamedTuple):
    """One graph that `featurize_files` has written."""

    path: Path
    kind: str  # "module" is an HLO module without configs
    n_nodes: int
    n_edges: int
    n_configs: int
    n_failed: int  # runs that were left out


def featurize_files(
    paths: Sequence[Path], out: Path, batch: int | None = None
) -> list[FeaturizedGraph]:
    """Write the graphs of programs, in the order of the files.

    A module gives `<stem>.npz`, or `<stem>_<module>.npz` if its file has several. Each kernel of a
    TuningData gives `<stem>_<fingerprint>.npz`, with the fingerprint as a signed hexadecimal
    number.

    Args:
        paths: The files. `FILE#NAME` is one module of a file or dump folder.

    Raises:
        UsageError: There is no file, or two files would have the same output.
    """
    if not paths:
        raise UsageError(f"no file given; expected {EXPECTED}")
    first: dict[str, Path] = {}
    for path in paths:
        first_path = first.setdefault(program_name(path), path)
        if first_path is not path:
            raise UsageError(
                f"{path}: would be written over what {first_path} gives; rename one of them, "
                "or give them different --out folders"
            )
    graphs = []
    for number, path in enumerate(paths, start=1):
        # All graphs of a file are made before the first is written.
        graphs += [_write(program, out) for program in read_programs(path, batch=batch)]
        progress("featurize", number, len(paths))
    return graphs


def _write(program: HloProgram, out: Path) -> FeaturizedGraph:
    graph, configs = program.graph, program.configs
    arrays = graph.arrays | (configs.arrays if configs else {})
    path, kind = out / f"{program.name}.npz", configs.kind if configs else "module"
    write_npz(path, {key: arrays[key] for key in KEYS_OF[kind]})
    n_configs, n_failed = (len(configs.run_numbers), configs.n_failed) if configs else (0, 0)
    return FeaturizedGraph(path, kind, graph.n_nodes, len(graph.edge_index), n_configs, n_failed)
