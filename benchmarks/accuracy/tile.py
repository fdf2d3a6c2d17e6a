"""How well tile models pick configs of kernels they have not seen, against each other.

`python -m benchmarks.accuracy.tile --out runs/tile-accuracy` trains every (task, model, seed) that
is not there yet; `… --report` writes docs/results/tile_accuracy.md from what is there.
`… --tuning --set KEY=VALUE` tries hyper-parameters on families of the train split alone, of which
the task `sample` judges none.
"""

import sys
from collections.abc import Sequence

from benchmarks import PAGES
from benchmarks.accuracy.command import Command, run_command
from benchmarks.accuracy.tile_table import report

COMMAND = Command("tile", __doc__, report, PAGES / "tile_accuracy.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, or write the report."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
