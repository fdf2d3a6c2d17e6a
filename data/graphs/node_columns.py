"""The names and the order of the 140 node features, and of the opcodes: node_columns.toml."""

import tomllib
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

RANK_MAX = 6

ELEMENT_TYPES = tuple(_TABLE["element_bytes"])
ELEMENT_BYTES = tuple(_TABLE["element_bytes"].values())  # in the order of ELEMENT_TYPES

NODE_FEATURE_NAMES = tuple(_TABLE["features"])
COLUMN_OF = {name: column for column, name in enumerate(NODE_FEATURE_NAMES)}

ELEMENT_TYPE = slice(2, 21)
SHAPE_DIMENSIONS = slice(21, 27)
SHAPE_PRODUCT = 28
MINOR_TO_MAJOR = slice(134, 140)

# Columns with a dimension number or a 0/1 flag, of which a logarithm is meaningless.
CATEGORICAL = tuple(
    i
    for i, name in enumerate(NODE_FEATURE_NAMES)
    if name.startswith(("is_", "shape_element_type", "dimensions_", "convolution_dim_numbers"))
    or name.startswith(("layout_minor_to_major", "window_window_reversal"))
)

UNKNOWN_OPCODE = 0
OPCODE_NAMES = tuple(_TABLE["opcodes"])
OPCODES = {name: number for number, name in enumerate(OPCODE_NAMES, start=1)}
