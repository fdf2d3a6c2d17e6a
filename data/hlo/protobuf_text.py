"""Protobufs as text: HLO modules of profilers and tests, and tuning data."""

import re
from pathlib import Path

from common.errors import PipelineError
from data.hlo.descriptor import message_class
from data.hlo.files import EXPECTED
from data.npz.archive import shown

# The pure Python parser reads about 1 MB/s.
MAX_TEXT_BYTES = 128 << 20
_BLANK = rb"(?>\s+|\xef\xbb\xbf|#[^\n]*)*+"
# The class of a message by its first field. All other fields are of HloModuleProto.
_CLASS_OF = {b"modules": "TuningData", b"hlo_module": "HloProto", b"hlo": "HloSnapshot"}
_TUNED = (b"module", b"fingerprint", b"runs", b"config_index_to_node")
_CLASS_OF |= dict.fromkeys(_TUNED, "ModuleTuningData")
_MODULE_FIELDS = (b"name", b"id", b"entry_computation_name", b"computations", b"host_program_shape")
# A computation of HLO text may have the name of a field, but its first line has an equals sign.
_START = re.compile(
    _BLANK
    + rb"(%s)\s*+(?::|[{<]" % b"|".join((*_CLASS_OF, *_MODULE_FIELDS))
    + _BLANK
    + rb"\w+\s*+[:{<])"
)


def is_protobuf_text(content: bytes) -> bool:
    """Return whether a file is a protobuf as text: an HLO module, or tuning data."""
    return _START.match(content) is not None


def serialized(content: bytes, path: Path) -> bytes:
    """Return a protobuf as text in the binary format. Only fields of messages.proto are kept."""
    from google.protobuf import text_format  # type: ignore[import-untyped]

    fault = f"a protobuf as text of over {MAX_TEXT_BYTES >> 20} MiB"
    if len(content) <= MAX_TEXT_BYTES:
        (name,) = _START.match(content).groups()  # type: ignore[union-attr]
        message = message_class(_CLASS_OF.get(name, "HloModuleProto"))()
        try:
            text = content.decode().removeprefix("\ufeff")
            text_format.Parse(text, message, allow_unknown_field=True)
            return bytes(message.SerializeToString())
        except (text_format.ParseError, ValueError, RecursionError) as error:
            # The parser quotes the whole line between the place and the reason.
            place, _, reason = str(error).partition(" : ")
            reason = reason.rpartition("': ")[2]
            fault = f"a damaged protobuf as text: {place}: {shown(reason)}"
    raise PipelineError(f"{path}: {fault}; expected {EXPECTED}")
