"""The command line of a comparison: train what is missing, side by side, or write the report."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cells import Cell, run_cell
from benchmarks.accuracy.comparisons import COMPARISONS
from benchmarks.accuracy.table import read_cells
from benchmarks.accuracy.tasks import REPORTED_SEEDS, Sources, Task, why_no_data
from common.atomic import write_text
from common.errors import PipelineError
from common.settings import SAMPLE

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

Report = Callable[[Sequence[dict[str, Any]]], list[str]]


@dataclass(frozen=True)
class Command:
    """One comparison's command.

    Attributes:
        kind: which of COMPARISONS.
        description: for --help.
        report: the lines of the report from the cells.
        page: where the report goes.
    """

    kind: str
    description: str
    report: Report
    page: Path


def cells_of(
    tasks: Sequence[str],
    contenders: Sequence[str],
    seeds: Sequence[int],
    sources: Sources,
    *,
    settings: Sequence[str] = (),
    tuning: bool = False,
    kind: str = "layout",
) -> Iterator[Cell]:
    """Yield the cells that can be trained here, seed by seed; says what is left out, and why."""
    known, given = COMPARISONS[kind].contenders, COMPARISONS[kind].tasks
    wanted = [
        task for task in tasks if not _left_out(task, _why_no_task(given[task], sources, tuning))
    ]
    models = [name for name in contenders if not _left_out(name, known[name].why_absent())]
    for seed, task, name in product(seeds, wanted, models):
        if not known[name].is_for(task):
            continue
        yield Cell(task, name, seed, overrides_for(name, settings, known), tuning, kind)


def overrides_for(
    contender: str, settings: Sequence[str], known: Collection[str]
) -> tuple[str, ...]:
    """Return the overrides meant for a contender: "key=value", or "contender:key=value" for it."""
    found = []
    for setting in settings:
        name, colon, rest = setting.partition(":")
        if not (colon and name in known):
            found.append(setting)
        elif name == contender:
            found.append(rest)
    return tuple(found)


def _why_no_task(task: Task, sources: Sources, tuning: bool) -> str | None:
    if tuning and task.tuning_parts is None:
        return "all of it is reported, nothing is left to tune on"
    return why_no_data(task, sources)


def _left_out(name: str, reason: str | None) -> bool:
    if reason:
        _say(f"{name}: left out: {reason}")
    return reason is not None


def run_cells(cells: Sequence[Cell], sources: Sources, out: Path, *, workers: int = 1) -> int:
    """Run cells, several processes side by side if asked for; return how many failed."""
    failed = 0
    for number, (cell, text) in enumerate(_outcomes(cells, sources, out, workers), start=1):
        failed += text.startswith("failed")
        name = f"{cell.task}, {cell.contender}, seed {cell.seed}"
        _say(f"{number}/{len(cells)} {name}: {text}")
    return failed


def _outcomes(
    cells: Sequence[Cell], sources: Sources, out: Path, workers: int
) -> Iterator[tuple[Cell, str]]:
    if workers == 1:
        yield from ((cell, _outcome(cell, sources, out)) for cell in cells)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(_outcome, cell, sources, out): cell for cell in cells}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _outcome(cell: Cell, sources: Sources, out: Path) -> str:
    """Run one cell; say in a few words what came of it."""
    start = time.perf_counter()
    try:
        is_new = run_cell(cell, sources, out)
    except PipelineError as error:
        return f"failed: {error}"
    return f"{time.perf_counter() - start:.1f} s" if is_new else "was there"


def run_command(command: Command, arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, or write the report; return the exit code."""
    options = _parser(command).parse_args(arguments)
    report = command.report
    try:
        if options.report:
            write_text(options.report, "\n".join(report(read_cells(options.out / "cells"))) + "\n")
            _say(str(options.report))
            return 0
        os.environ.update(ONE_THREAD)  # of the workers; in this process recipes see to it
        sources = Sources(options.sample, options.real)
        given = options.tasks, options.models, options.seeds, sources
        cells = list(
            cells_of(*given, settings=options.set, tuning=options.tuning, kind=command.kind)
        )
        failed = run_cells(cells, sources, options.out, workers=options.workers)
        if options.tuning and cells:
            print("\n".join(report(read_cells(options.out / "tuning"))))  # noqa: T201
    except PipelineError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return int(failed > 0)


def _parser(command: Command) -> argparse.ArgumentParser:
    comparison = COMPARISONS[command.kind]
    tasks, contenders = comparison.tasks, comparison.contenders
    parser = argparse.ArgumentParser(
        description=command.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of results; resumes")
    parser.add_argument("--tasks", type=_names(tasks), default=list(tasks), metavar="A,B")
    parser.add_argument(
        "--models", type=_names(contenders), default=list(contenders), metavar="A,B"
    )
    parser.add_argument("--seeds", type=_seeds, default=list(REPORTED_SEEDS), metavar="0,1,…")
    real = os.environ.get("TPUGRAPHS_REAL")
    parser.add_argument("--real", type=Path, default=Path(real) if real else None, metavar="DIR")
    parser.add_argument("--sample", type=Path, default=SAMPLE, metavar="DIR")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side")
    parser.add_argument("--tuning", action="store_true", help="judge on data never reported")
    parser.add_argument(
        "--set", action="append", default=[], metavar="[MODEL:]KEY=VALUE", help="override a recipe"
    )
    parser.add_argument(
        "--report", type=Path, nargs="?", const=command.page, help="write the report"
    )
    return parser


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"'{unknown[0]}': expected some of {', '.join(known)}")
        return names

    return parse


def _seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
