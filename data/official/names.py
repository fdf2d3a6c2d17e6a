"""Which graphs the public dataset holds: names.json.gz, by "collection/split"."""

import gzip
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

NAMES = Path(__file__).parent / "names.json.gz"


@cache
def official_names() -> Mapping[str, frozenset[str]]:
    """Return the names that graphs of each "collection/split" have.

    Of layout:xla:random/train and layout:nlp:default/train they are a few more than graphs: only
    their number was published, and their programs are those of the sibling collections.
    """
    listed = json.loads(gzip.decompress(NAMES.read_bytes()))
    return {part: frozenset(names) for part, names in listed.items()}
