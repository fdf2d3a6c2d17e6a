"""How well layout models rank held-out configs and graphs, against each other.

`python -m benchmarks.accuracy.layout --out runs/accuracy` trains every (task, model, seed) that is
not there yet; `… --report` writes docs/results/layout_accuracy.md from what is there.
`… --tuning --set KEY=VALUE` tries hyper-parameters on data that is never reported.
"""

import sys
from collections.abc import Sequence

from benchmarks import PAGES
from benchmarks.accuracy.command import Command, run_command
from benchmarks.accuracy.table import report

COMMAND = Command("layout", __doc__, report, PAGES / "layout_accuracy.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, or write the report."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
