"""Train models against each other on what they have not seen, and report how well they rank.

`python -m benchmarks.accuracy layout --out runs/accuracy` trains every (task, model, seed) that is
not there yet; `… --report` writes layout_accuracy.md and ladder.md below docs/results from what is
there. `tile` does the same for tile models.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import PAGES, write_page
from benchmarks.accuracy.cells import CONTENDERS, Cell, run_cell
from benchmarks.accuracy.ladder import write_ladders
from benchmarks.accuracy.table import read_cells, report
from benchmarks.accuracy.tasks import TASKS, Sources, why_no_data
from common.errors import PipelineError
from common.settings import SAMPLE


def cells_of(
    kind: str,
    tasks: Sequence[str],
    contenders: Sequence[str],
    seeds: Sequence[int],
    sources: Sources,
    *,
    overrides: Sequence[str] = (),
) -> Iterator[Cell]:
    """Yield the cells that can be trained here, seed by seed; says what is left out, and why.

    Contenders that another one's training serves have no cell of their own.
    """
    known = CONTENDERS[kind]
    reasons = {task: why_no_data(TASKS[kind][task], sources) for task in tasks}
    for task, reason in reasons.items():
        if reason:
            _say(f"{task}: left out: {reason}")
    for seed in seeds:
        for task in (task for task in tasks if not reasons[task]):
            for name in contenders:
                if known[name].part_of is None and task in (known[name].tasks or (task,)):
                    yield Cell(task, name, seed, tuple(overrides), kind)


def run_cells(cells: Sequence[Cell], sources: Sources, out: Path) -> int:
    """Run cells; return how many failed."""
    failed = 0
    for number, cell in enumerate(cells, start=1):
        start = time.perf_counter()
        try:
            is_new = run_cell(cell, sources, out)
            text = f"{time.perf_counter() - start:.1f} s" if is_new else "was there"
        except PipelineError as error:
            failed, text = failed + 1, f"failed: {error}"
        _say(f"{number}/{len(cells)} {cell.task}, {cell.contender}, seed {cell.seed}: {text}")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, or write the report; return the exit code."""
    options = _options(arguments)
    kind = options.kind
    try:
        if options.report:
            cells = read_cells(options.out / "cells")
            write_page(options.report / f"{kind}_accuracy.md", report(kind, cells))
            write_ladders(kind, cells, options.report)
            return 0
        sources = Sources(options.sample, options.real)
        given = options.tasks, options.models, options.seeds, sources
        todo = list(cells_of(kind, *given, overrides=options.set))
        return int(run_cells(todo, sources, options.out) > 0)
    except PipelineError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    real = os.environ.get("TPUGRAPHS_REAL")
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("layout", "tile"):
        own = kinds.add_parser(kind)
        names = {"--tasks": list(TASKS[kind]), "--models": list(CONTENDERS[kind])}
        own.add_argument("--out", type=Path, required=True, help="folder of results; resumes")
        for flag, known in names.items():
            own.add_argument(flag, nargs="+", choices=known, default=known, metavar="NAME")
        own.add_argument("--seeds", type=int, nargs="+", default=list(range(5)), metavar="N")
        own.add_argument("--real", type=Path, default=Path(real) if real else None, metavar="DIR")
        own.add_argument("--sample", type=Path, default=SAMPLE, metavar="DIR")
        own.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
        own.add_argument("--report", type=Path, nargs="?", const=PAGES, help="folder for the pages")
    return parser.parse_args(arguments)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
