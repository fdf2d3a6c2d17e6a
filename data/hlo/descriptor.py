"""Message classes for HLO modules and tuning data, built at run time from messages.proto.

Generated code fits only a range of protobuf versions. Other packages (jax, tensorflow) register the
full messages, so these classes are built here, in a separate pool.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

SOURCE = Path(__file__).with_name("messages.proto")
PACKAGE = "fast_or_slow.hlo"

_MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.M | re.S)
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
_ENUM = re.compile(r"^enum (\w+) \{\n(.*?)^\}", re.M | re.S)
_VALUE = re.compile(r"(\w+) = (\d+);")
_SCALARS = ("bool", "int32", "int64", "uint64", "string")


@cache
def message_class(name: str) -> Any:
    """Return the message class `name` of messages.proto, such as "HloModuleProto"."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="fast_or_slow/hlo.proto", package=PACKAGE, syntax="proto3"
    )
    source = SOURCE.read_text(encoding="utf-8")
    for name, body in _ENUM.findall(source):
        values = [{"name": value, "number": int(n)} for value, n in _VALUE.findall(body)]
        file.enum_type.add(name=name, value=values)
    enums = {enum.name for enum in file.enum_type}
    for name, body in _MESSAGE.findall(source):
        message = file.message_type.add(name=name)
        for repetition, kind, field_name, number in _FIELD.findall(body):
            field = message.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_REPEATED if repetition else field.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
            else:
                field.type = field.TYPE_ENUM if kind in enums else field.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool
