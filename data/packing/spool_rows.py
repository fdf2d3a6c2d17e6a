"""Pack a stream of configs: skim it while it brings nothing new, else compare it bit by bit.

What a stretch of the stream would be, had it brought nothing new, has a known checksum. Where the
stretch has another one, it is read once more and compared.
"""

from data.npz.rows import Rows
from data.packing.config_encoder import ConfigEncoder

LOOKED_AT = 16  # chunks in a row that must bring nothing new before the next are skimmed
SHORTEST_BYTES, LONGEST_BYTES = 4 << 20, 16 << 20  # of a stretch
MOST_SKIMMED_BYTES = 4 << 20  # of its first columns, which are all columns where none are tied


def spool_rows(rows: Rows, spool: ConfigEncoder) -> None:
    """Add all rows to a spool.

    A stretch that has to be read again makes more chunks be compared before the next is skimmed, so
    that a stream that always brings something is not inflated twice.

    Raises:
        UnknownValueError: a value is not a whole number -1..5; its position is counted from the
            last config that the spool holds.
        DamagedError: the stream is damaged.
    """
    looked_at, wanted, n_bytes = 0, LOOKED_AT, SHORTEST_BYTES
    while rows.left:
        if looked_at < wanted or not spool.can_skim():
            looked_at = looked_at + 1 if spool.add(rows.read()) else 0
            continue
        start, stop = rows.mark(), max(0, rows.left - n_bytes)
        while rows.left > stop and spool.skimmed_bytes < MOST_SKIMMED_BYTES:
            spool.skim(rows.read())
        if spool.settle(rows.end_part()):
            wanted, n_bytes = max(LOOKED_AT, wanted // 2), min(2 * n_bytes, LONGEST_BYTES)
        else:
            rows.go_back(start)
            looked_at, wanted, n_bytes = 0, 2 * wanted, SHORTEST_BYTES
