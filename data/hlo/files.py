"""Read a protobuf file whose message type nobody tells: the content has to."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from common.errors import PipelineError
from data.hlo.descriptor import message_class

EXPECTED = "a serialised TuningData, ModuleTuningData, HloModuleProto or HloProto"

_OPCODE = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class HloFile:
    """What a protobuf file holds.

    Attributes:
        modules: HloModuleProto messages that come without configs; one or none.
        tuned: ModuleTuningData messages, modules with their measured configs.
        holds_many: whether the file is a TuningData, a list of kernels, even if of one.
    """

    modules: tuple[Any, ...] = ()
    tuned: tuple[Any, ...] = ()
    holds_many: bool = False


def read_hlo_file(path: Path) -> HloFile:
    """Read a file of tuning data, or an HLO module as JAX serialises or XLA dumps it.

    Raises:
        PipelineError: it cannot be read, or holds none of these.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not content:
        raise PipelineError(f"{path}: is empty; expected {EXPECTED}")
    if content.startswith(b"HloModule "):
        raise PipelineError(
            f"{path}: is HLO text; expected {EXPECTED} (XLA writes one with xla_dump_hlo_as_proto)"
        )
    for name, interpret in _INTERPRETATIONS.items():
        try:
            found = interpret(message_class(name).FromString(content))
        except DecodeError:
            continue
        if found is not None:
            return found
    raise PipelineError(f"{path}: damaged, cut short or something else; expected {EXPECTED}")


def _as_tuning_data(message: Any) -> HloFile | None:
    entries = tuple(message.modules)
    fits = entries and all(_is_tuned(entry) for entry in entries)
    return HloFile(tuned=entries, holds_many=True) if fits else None


def _as_module_tuning_data(message: Any) -> HloFile | None:
    return HloFile(tuned=(message,)) if _is_tuned(message) else None


def _as_module(message: Any) -> HloFile | None:
    return HloFile(modules=(message,)) if _is_module(message) else None


def _as_hlo(message: Any) -> HloFile | None:
    return _as_module(message.hlo_module)


# The order matters: tuning data of one module can be read as an HloProto, which starts alike.
_INTERPRETATIONS: dict[str, Callable[[Any], HloFile | None]] = {
    "TuningData": _as_tuning_data,
    "ModuleTuningData": _as_module_tuning_data,
    "HloProto": _as_hlo,
    "HloModuleProto": _as_module,
}


def _is_tuned(entry: Any) -> bool:
    """Tell a ModuleTuningData from an HloProto: only the former has a fingerprint or node list."""
    return bool(entry.fingerprint or entry.config_index_to_node) and _is_module(entry.module)


def _is_module(module: Any) -> bool:
    """Tell whether this reads as a module: computations, all of them of proper instructions."""
    return bool(module.computations) and all(
        computation.instructions
        and all(_OPCODE.fullmatch(instruction.opcode) for instruction in computation.instructions)
        for computation in module.computations
    )
