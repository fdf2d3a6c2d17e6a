"""Message classes for HLO modules and tuning data, built at run time from messages.proto.

Generated code is tied to a range of protobuf versions, and other packages (jax, tensorflow) carry
the full messages under their own names; so the classes are made here, in a pool of their own.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

SOURCE = Path(__file__).with_name("messages.proto")

_PACKAGE = re.compile(r"package\s+([\w.]+)\s*;")
_BLOCK = re.compile(r"(message|oneof)\s+(\w+)\s*\{")
_FIELD = re.compile(r"(repeated\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*;")
_SCALARS = ("bool", "int32", "int64", "uint64", "string")


@cache
def message_class(name: str) -> Any:
    """Return the message class `name` of messages.proto, such as "HloModuleProto"."""
    file, pool = _file_and_pool()
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


@cache
def _file_and_pool() -> tuple[Any, Any]:
    file = file_descriptor(SOURCE.read_text(encoding="utf-8"))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return file, pool


def file_descriptor(text: str) -> Any:
    """Turn the text of messages.proto into a FileDescriptorProto.

    Understood are messages that are not nested, `oneof`, `repeated`, messages and _SCALARS as
    types, and comments; that is all the file uses.

    Raises:
        ValueError: another construct is used.
    """
    file = descriptor_pb2.FileDescriptorProto(name="fast_or_slow/hlo.proto", syntax="proto3")
    message = None
    in_oneof = False
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("//")[0].strip()
        if not line or line.startswith("syntax"):
            continue
        if match := _PACKAGE.fullmatch(line):
            file.package = match[1]
        elif (match := _BLOCK.fullmatch(line)) and match[1] == "message" and message is None:
            message = file.message_type.add(name=match[2])
        elif match and match[1] == "oneof" and message is not None:
            message.oneof_decl.add(name=match[2])
            in_oneof = True
        elif line == "}" and message is not None:
            message, in_oneof = (message, False) if in_oneof else (None, False)
        elif (match := _FIELD.fullmatch(line)) and message is not None:
            _add_field(message, file.package, match, in_oneof)
        else:
            raise ValueError(f"messages.proto, line {number}: '{line}' is not understood")
    return file


def _add_field(message: Any, package: str, match: re.Match[str], in_oneof: bool) -> None:
    repeated, kind, name, number = match.groups()
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type = field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"
    if in_oneof:
        field.oneof_index = len(message.oneof_decl) - 1
