"""The programs of one protobuf file: their graphs, and the configs that were tuned of them.

Nobody tells of which message type a file is: its content has to.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from common.atomic import open_regular
from common.errors import PipelineError
from data.graphs.node_layouts import Padding
from data.hlo.descriptor import message_class
from data.hlo.graph import HloGraph, check_layouts, featurize_module
from data.hlo.tuning_data import TunedConfigs, tuned_configs

EXPECTED = "a serialised TuningData, ModuleTuningData, HloModuleProto or HloProto"

_OPCODE = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class HloProgram:
    """One HLO module of a file, with the runs of its configs if there are any."""

    name: str  # the file's stem; of a kernel among several `<stem>_<fingerprint>`
    source: str  # what error messages name: the file and, among several kernels, the kernel
    graph: HloGraph
    module: Any  # the HloModuleProto message; not to be edited
    runs: tuple[Any, ...] = ()  # the ConfigProfile messages, in the order of the file
    configs: TunedConfigs | None = None  # the runs that succeeded; None where there are no configs


def read_programs(path: Path, *, padding: Padding = "zero") -> list[HloProgram]:
    """Read tuning data or an HLO module; what the file is, is told from its content.

    Args:
        padding: of node layouts beyond a tensor's rank: "zero" as in the dataset, or "minus-one".

    Raises:
        PipelineError: the file is damaged or of another kind, or holds a kernel twice.
    """
    kind, message = _read_message(path)
    stem = program_name(path)
    if kind.startswith("Hlo"):
        graph = featurize_module(message, padding=padding, source=str(path))
        return [HloProgram(stem, str(path), graph, message)]
    programs: dict[str, HloProgram] = {}
    for entry in message.modules if kind == "TuningData" else [message]:
        name, source = stem, str(path)
        if kind == "TuningData":
            name = f"{stem}_{signed_hex(entry.fingerprint)}"
            source = f"{path}, {name}"
        if name in programs:
            raise PipelineError(f"{source}: a second kernel of this fingerprint; expected one")
        graph = featurize_module(entry.module, padding=padding, source=source)
        check_layouts(graph, source)
        configs = tuned_configs(entry, graph.n_nodes, source)
        programs[name] = HloProgram(name, source, graph, entry.module, tuple(entry.runs), configs)
    return list(programs.values())


def program_name(path: Path) -> str:
    """Return a file's name without its endings .pb and .hlo, which XLA's dumps have."""
    return path.name.removesuffix(".pb").removesuffix(".hlo") or path.name


def signed_hex(fingerprint: int) -> str:
    """Return an unsigned 64-bit number as signed hexadecimal: 2**64 - 1 gives "-1"."""
    return f"{fingerprint - (1 << 64) if fingerprint >= 1 << 63 else fingerprint:x}"


def _read_message(path: Path) -> tuple[str, Any]:
    """Return the type and the message of a file; of an HloProto the module that it holds."""
    with open_regular(path) as file:
        content = file.read()
    if not content:
        raise PipelineError(f"{path}: is empty; expected {EXPECTED}")
    if content.startswith(b"HloModule "):
        raise PipelineError(
            f"{path}: is HLO text; expected {EXPECTED} (XLA writes one with xla_dump_hlo_as_proto)"
        )
    for name in ("TuningData", "ModuleTuningData", "HloProto", "HloModuleProto"):
        # In this order: tuning data of one module can be read as an HloProto, which starts alike.
        try:
            message = message_class(name).FromString(content)
        except DecodeError:
            continue
        if name == "HloProto":
            message = message.hlo_module
        entries = message.modules if name == "TuningData" else [message]
        fits = _is_module if name.startswith("Hlo") else _is_tuned
        if entries and all(map(fits, entries)):
            return name, message
    raise PipelineError(f"{path}: damaged, cut short or something else; expected {EXPECTED}")


def _is_tuned(entry: Any) -> bool:
    return bool(entry.fingerprint or entry.config_index_to_node) and _is_module(entry.module)


def _is_module(module: Any) -> bool:
    return bool(module.computations) and all(
        computation.instructions
        and all(_OPCODE.fullmatch(instruction.opcode) for instruction in computation.instructions)
        for computation in module.computations
    )
